"""The rules of a bookie: durability, fencing, what it may deny."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.bookie import bookie as bookie_module
from magnetar.bookie.cookie import Cookie
from magnetar.bookie.cookie_rules import Wanted
from magnetar.bookie.cookie_stamping import Identity
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.read_requests import ReadRequests
from magnetar.bookie.requests.request_handler import AddRequests
from magnetar.ledger.hello import BookieIdentity
from magnetar.ledger.wire import Status
from tests.simulation.mutations.mutation import Mutation, edited, replaced


@contextmanager
def _no_identity() -> Iterator[None]:
    async def check_nothing(
        registry: object, disk: object, directories: object, wanted: Wanted, **named: object
    ) -> Identity:
        cookie = Cookie(
            bookie_id=wanted.bookie_id, instance_id=wanted.instance_id, incarnation="any"
        )
        return Identity(cookie, ())

    with replaced(bookie_module, "check_cookies", check_nothing):
        yield


@contextmanager
def _no_journal() -> Iterator[None]:
    record = "batch.add(NewRecord(RecordType.ENTRY_BLOCK, ledger_id, data), count)"
    answer = "batch.context.adds.append((frame.request_id, ledger_id, entry_id))"
    with (
        edited(AddRequests, "_add", (record, "pass")),
        edited(
            AddRequests,
            "add",
            (answer, "self._replies.put(batch.context.connection, frame)"),
        ),
    ):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="reads_do_not_fence",
        rule="7",
        defects=("D1",),
        invariants=(),  # without the bit, a recoverer does not believe the answer (rule 7.2)
        description="a bookie ignores the fence flag of a recovery read",
        apply=lambda: edited(ReadRequests, "read", ("if frame.flags & _FENCE:", "if False:")),
    ),
    Mutation(
        name="fence_in_memory_only",
        rule="7",
        defects=("D13",),
        invariants=("I1", "I9", "I13"),
        description="a fence is not journalled: it is confirmed at once and lost in a crash",
        apply=lambda: edited(
            FenceRequests,
            "after_fence",
            (
                'batch.add(NewRecord(RecordType.FENCE, ledger_id, b""))\n'
                "        batch.context.fences.append(ledger)",
                "ledger.on_fence_written(None)",
            ),
        ),
    ),
    Mutation(
        name="add_confirmed_before_it_is_durable",
        rule="4.3",
        defects=("D14",),
        invariants=("I1", "I14"),
        description="a bookie confirms an add from memory; the journal never hears of it",
        apply=_no_journal,
    ),
    Mutation(
        name="emptied_bookie_starts",
        rule="11.1",
        defects=("D14",),
        invariants=("I1", "I14"),
        description="a bookie starts whether or not its disks are those of its identity",
        apply=_no_identity,
    ),
    Mutation(
        name="unreadable_means_absent",
        rule="8.2",
        defects=("D15",),
        invariants=("I1", "I14"),
        description="a bookie that cannot read its files says that there is no such entry",
        apply=lambda: replaced(StorageIOError, "status", Status.NO_SUCH_ENTRY),
    ),
    Mutation(
        name="failed_sync_is_ignored",
        rule="11.3",
        defects=(),
        invariants=("I1", "I14"),
        description="a bookie goes on when a sync of its journal fails, and confirms the adds",
        apply=lambda: edited(
            JournalFiles,
            "sync",
            (
                'raise JournalFailedError(\n            f"sync of',
                "self._length += self._appended\n"
                "        return LastMark(self._file_id, self._length)\n"
                '        raise JournalFailedError(\n            f"sync of',
            ),
        ),
    ),
    Mutation(
        name="anybody_may_answer",
        rule="11",
        defects=("D31",),
        invariants=("I1", "I2", "I10", "I16"),
        description="whoever listens at an address is taken for the bookie that is meant",
        apply=lambda: replaced(BookieIdentity, "is_other_than", lambda meant, other: False),
    ),
]
