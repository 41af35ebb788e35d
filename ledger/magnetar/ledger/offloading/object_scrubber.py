"""Reads objects back in full, at a bounded rate, and says whether they are as they were written.

A process has one `ObjectScrubber`. One log at a time uses it (`take_turn`), so the rate bounds the
load of the process on the stores, whatever the number of its logs. Due logs wait in a queue: if
reading takes longer than the period, each log is read less often, and none is left out.

The checks cover the header, the footer, the log's node, and the checksum of each run: all bytes of
the object. Digests of packets were checked before the object was named as a copy, and the checksums
show that nothing has changed since. So neither the ledger nor its password is needed.

Source: tiered storage, section 18 (rule 18.1).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.ledger.errors import (
    LedgerError,
    LogClosedError,
    LogFencedError,
    ObjectDamagedError,
    ObjectMissingError,
)
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.offloading.object_format import (
    HEADER_BYTES,
    ObjectFooter,
    ObjectName,
    check_header,
    check_run,
    ranges_of,
)
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectStores
from magnetar.ledger.offloading.offloader import OffloadedLog, read_footer
from magnetar.ledger.offloading.scrub_plan import Verdict, check_named
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock

_READ_BYTES = 8 << 20
"""Bytes of one request, and so the memory of a scrub: stores charge by requests. A larger run is
read whole."""


@dataclass(slots=True)
class ScrubCounts:
    """Results so far. The counters only grow."""

    whole: int = 0
    damaged: int = 0
    gone: int = 0
    unreachable: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of reading one object back."""

    verdict: Verdict
    why: LedgerError | None = None
    """The error; None if the object is whole."""


class ObjectScrubber:
    """Reads objects back for all logs of a process."""

    def __init__(self, stores: ObjectStores, *, bytes_per_s_max: float, clock: Clock) -> None:
        """Make the scrubber of a process. `bytes_per_s_max` bounds the reads from the stores; 0: no
        bound."""
        self._stores = stores
        self._clock = clock
        self._pace = Pace(bytes_per_s_max)
        self.is_busy = False
        """Whether objects of some log are being read."""
        self._waiting: dict[Callable[[], object], None] = {}
        """The logs that wait for their turn, in the order of their requests."""
        self.counts = ScrubCounts()
        self.lost: dict[str, int] = {}
        """Number of ledgers that lie only in a damaged or missing object, by the path of an open
        log. Logs without such a ledger have no item."""

    def take_turn(self, look: Callable[[], object]) -> bool:
        """Return whether a due log may begin; it must call `end_turn` when it is done. If not,
        `look` is called when its turn comes, and requests the turn again if the log is still due.
        """
        if self.is_busy:
            self._waiting[look] = None
            return False
        self.is_busy = True
        return True

    def leave(self, look: Callable[[], object]) -> None:
        """Remove a log from the queue, since it is closed."""
        self._waiting.pop(look, None)

    def end_turn(self) -> None:
        """End the turn of a log, and offer it to the waiting ones."""
        self.is_busy = False
        while self._waiting and not self.is_busy:
            look = next(iter(self._waiting))
            del self._waiting[look]
            look()

    async def check(self, owned: OffloadedLog, ledger: LogLedger) -> Checked | None:
        """Read the object of a ledger. Return None if the ledger left the log meanwhile, or got
        another object.

        Raises:
            LogFencedError, LogClosedError: this handle no longer owns the log.
        """
        checked = await self._judge(owned, ledger)
        if checked is not None:
            name = checked.verdict.value
            setattr(self.counts, name, getattr(self.counts, name) + 1)
        return checked

    async def _judge(self, owned: OffloadedLog, ledger: LogLedger) -> Checked | None:
        """Judge an object. It counts as damaged, or gone, only if two reads agree, and the node
        still names it after that."""
        first = await self._try(owned, ledger)
        if first.verdict in (Verdict.WHOLE, Verdict.UNREACHABLE):
            return first
        second = await self._try(owned, ledger)
        if second.verdict in (Verdict.WHOLE, Verdict.UNREACHABLE):
            return second
        if first.verdict is not second.verdict:
            return Checked(Verdict.UNREACHABLE, second.why)  # the store contradicts itself
        assert ledger.object is not None
        try:
            named = await owned.objects.reread(ledger.ledger_id)
        except (LogFencedError, LogClosedError):
            raise
        except LedgerError as error:
            return Checked(Verdict.UNREACHABLE, error)
        return second if named is not None and named.attempt == ledger.object.attempt else None

    async def _try(self, owned: OffloadedLog, ledger: LogLedger) -> Checked:
        found = ledger.object
        assert found is not None
        try:
            store = self._stores.store(owned.objects.base(found).store)
            key = owned.objects.key(ledger.ledger_id, found, found.attempt)
            name = ObjectName(ledger.ledger_id, bytes.fromhex(found.attempt))
            footer = await read_footer(store, key, name)
            check_named(footer, ledger)
            await self._read_runs(store, key, footer)
        except ObjectDamagedError as error:
            return Checked(Verdict.DAMAGED, error)
        except ObjectMissingError as error:
            return Checked(Verdict.GONE, error)
        except LedgerError as error:
            return Checked(Verdict.UNREACHABLE, error)
        return Checked(Verdict.WHOLE)

    async def _read_runs(self, store: ObjectStore, key: str, footer: ObjectFooter) -> None:
        """Read and check the header and all runs.

        Raises:
            ObjectDamagedError
            ObjectMissingError, ObjectStoreUnavailableError, ObjectStoreRefusedError
        """
        check_header(await store.get(key, 0, HEADER_BYTES), footer.name)
        number = 0
        for start, end in ranges_of(footer.runs, _READ_BYTES):
            data = await store.get(key, start, end)
            while number < len(footer.runs) and (run := footer.runs[number]).offset < end:
                at = run.offset - start
                check_run(data[at : at + run.size_bytes], footer, number)
                number += 1
                await asyncio.sleep(0)  # the loop runs other tasks between two runs
            self.counts.bytes_read += len(data)
            wait_s = self._pace.take(len(data), self._clock.monotonic_s())
            if wait_s:
                await asyncio.sleep(wait_s)
