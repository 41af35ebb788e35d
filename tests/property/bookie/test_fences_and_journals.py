"""Adds and fences of several ledgers over several journals, in any order, cut at any moment."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.journaling.journal_format import RecordType
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.replies import Batch
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.ledger.wire import PACKET_HEADER, Flag, Frame, Op, Status, decode_block
from tests.bookie_parts import (
    KEY,
    ManualConnection,
    ManualJournal,
    MemoryStorage,
    add_request,
    make_handler,
    read_lac_request,
    read_request,
)

JOURNALS = 2
LEDGERS = (4, 5, 6)
ENTRIES, FENCE, KEY_RECORD = RecordType.ENTRY_BLOCK, RecordType.FENCE, RecordType.MASTER_KEY

requests = st.tuples(
    st.sampled_from(("add", "add", "add", "fenced read", "fence")), st.sampled_from(LEDGERS)
)
steps = st.one_of(
    st.lists(requests, min_size=1, max_size=6),  # one network read
    st.tuples(st.sampled_from(("commit", "fail")), st.integers(0, JOURNALS - 1)),
    st.just(("flush", 0)),
)


class Bookie:
    """A handler over a dictionary, whose journals report when the test says so."""

    def __init__(self, descriptors_max: int) -> None:
        self.storage = MemoryStorage()
        self.ledgers = LedgerTable(self.storage, descriptors_max=descriptors_max)
        self.connection = ManualConnection()
        self.handler = make_handler(self.storage, self.ledgers)
        self.journals = [WatchedJournal(self.handler) for _ in range(JOURNALS)]
        self.handler.use_journal(*self.journals)
        self._next_entry = dict.fromkeys(LEDGERS, 0)
        self.requests: dict[int, Frame] = {}

    def read_from_network(self, wanted: list[tuple[str, int]]) -> None:
        frames = [self._request(kind, ledger_id) for kind, ledger_id in wanted]
        assert self.handler.handle(self.connection, frames) == len(frames)

    def _request(self, kind: str, ledger_id: int) -> Frame:
        request_id = len(self.requests) + 1
        if kind == "add":
            entry_id = self._next_entry[ledger_id]
            self._next_entry[ledger_id] += 1
            frame = add_request(request_id, ledger_id, entry_id)
        elif kind == "fence":
            frame = read_lac_request(request_id, ledger_id, fence_key=KEY)
        else:
            frame = read_request(request_id, ledger_id, 0, 1000, fence_key=KEY)
        self.requests[request_id] = frame
        return frame

    def acked(self) -> set[tuple[int, int]]:
        return {
            (reply.ledger_id, reply.entry_id)
            for reply in self.connection.replies.values()
            if reply.op == Op.ADD and reply.status == Status.OK
        }

    def told_fenced(self) -> set[int]:
        """Ledgers of which any reply has told that they are fenced."""
        return {
            reply.ledger_id
            for reply in self.connection.replies.values()
            if reply.flags & Flag.FENCED or reply.status == Status.FENCED
        }


class WatchedJournal(ManualJournal):
    """Remembers what was committed."""

    def __init__(self, handler: RequestHandler) -> None:
        super().__init__(handler)
        self.durable: list[Batch] = []

    def commit(self) -> None:
        self.durable += self.batches
        super().commit()

    def replayed(self) -> tuple[dict[int, list[int]], set[int]]:
        """What a start would make of it: entries in order by ledger, fenced ledgers."""
        entries: dict[int, list[int]] = {}
        fenced: set[int] = set()
        for batch in self.durable:
            for record in batch.records:
                if record.type == KEY_RECORD:
                    entries.setdefault(record.ledger_id, [])
                elif record.type == FENCE and record.ledger_id in entries:
                    fenced.add(record.ledger_id)
                elif record.type == ENTRIES and record.ledger_id in entries:
                    assert record.ledger_id not in fenced, "an ordinary add behind the fence"
                    block = decode_block(record.body)
                    first = PACKET_HEADER.unpack_from(block.data, block.packets_offset)[1]
                    entries[record.ledger_id].append(first)
        return entries, fenced


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from((1, 2, 100)))
def test_b03_no_add_slips_past_a_fence_and_nothing_told_is_lost(
    todo: list[list[tuple[str, int]] | tuple[str, int]], descriptors_max: int
) -> None:
    """B1, B2, B3 and rule 2.3: check, storage and hand-over are one step, whatever the journals do,
    and a crash at any moment finds what was told; also when descriptors go and come back."""

    async def run() -> None:
        bookie = Bookie(descriptors_max)
        sealed: dict[int, set[int]] = {}
        for step in todo:
            if isinstance(step, list):
                bookie.read_from_network(step)
            elif step[0] == "flush":
                await bookie.ledgers.put_changed_states()
            elif step[0] == "commit":
                bookie.journals[step[1]].commit()
            else:
                bookie.journals[step[1]].fail()
            check(bookie, sealed)
        await bookie.handler.close()

    asyncio.run(run())


def check(bookie: Bookie, sealed: dict[int, set[int]]) -> None:
    """`sealed`: the entries a ledger had when a reply first told that it is fenced."""
    durable: dict[int, list[int]] = {}
    fenced: set[int] = set()
    for number, journal in enumerate(bookie.journals):
        entries, fenced_here = journal.replayed()
        assert all(ledger_id % JOURNALS == number for ledger_id in entries)
        durable |= entries
        fenced |= fenced_here
    assert bookie.told_fenced() <= fenced, "told and lost in a crash (B1, B2)"
    for ledger_id, entry_id in bookie.acked():
        assert entry_id in durable.get(ledger_id, [])
    for ledger_id in bookie.told_fenced():
        held = set(bookie.storage.packets.get(ledger_id, {}))
        assert held <= sealed.setdefault(ledger_id, held), "an add slipped past the fence (B3)"
    for stored in durable.values():
        assert stored == sorted(stored), "records of a ledger changed their order (rule 2.3)"
