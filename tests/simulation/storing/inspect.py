"""What a bookie holds after a start, compared with what it must and may hold."""

from collections.abc import Callable, Mapping, Sequence

from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageIOError,
)
from magnetar.bookie.parts import BookieParts
from magnetar.bookie.requests.fencing import FenceState
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.wire import PACKET_HEADER
from tests.simulation.storing.client import ViolationError
from tests.simulation.storing.model import Expected, Fence, Found

_PAGE_BYTES = 4
_READ_BYTES = 700
"""Small, so that a read crosses runs and is cut."""


class Inspection:
    """One look at everything. While `may_fail`, errors are allowed, and wrong answers are not."""

    def __init__(self, parts: BookieParts, may_fail: Callable[[], bool] = lambda: False) -> None:
        self._parts = parts
        self._storage: LedgerStorage = parts.storage
        self._may_fail = may_fail
        self.errors = 0
        """Answers that were errors."""

    async def compare(self, expected: Mapping[int, Expected]) -> dict[int, Found]:
        """
        Raises:
            ViolationError: something is missing, wrong, or too much.
        """
        found: dict[int, Found] = {}
        known = set(self._storage.ledger_ids())
        if not known <= set(expected):
            raise ViolationError(f"ledgers from nowhere: {sorted(known - set(expected))}")
        for ledger_id in sorted(expected):
            held = await self._compare_ledger(ledger_id, expected[ledger_id])
            if held is not None:
                found[ledger_id] = held
        return found

    async def _compare_ledger(self, ledger_id: int, expected: Expected) -> Found | None:
        state = self._storage.state(ledger_id)
        if state is None:
            if expected.is_known:
                raise ViolationError(f"C1: ledger {ledger_id} is not known")
            await self._check_unknown(ledger_id)
            return None
        if expected.is_gone:
            raise ViolationError(f"B25: ledger {ledger_id} was deleted and is back")
        ids = await self._list(ledger_id, expected)
        packets = await self._read(ledger_id, ids, expected)
        if ids is not None:
            await self._check_denials(ledger_id, set(ids))
            await self._check_last(ledger_id, ids, expected)
        return self._check_state(ledger_id, expected, packets)

    async def _check_unknown(self, ledger_id: int) -> None:
        try:
            await self._storage.read(ledger_id, 0, 0, 1)
        except NoSuchLedgerInStorageError:
            return
        except StorageIOError:
            if self._may_fail():
                return
            raise
        raise ViolationError(f"ledger {ledger_id} is not known, and has entries")

    async def _list(self, ledger_id: int, expected: Expected) -> list[int] | None:
        """The ids that are held; None if that could not be found out."""
        ids: list[int] = []
        first = 0
        while first != -1:
            try:
                page = await self._storage.list_entries(ledger_id, first, _PAGE_BYTES)
            except StorageIOError as error:
                self._on_error(error)
                return None
            ids += page.entry_ids()
            first = page.next_entry_id
        missing = set(expected.sure) - set(ids)
        if missing:
            raise ViolationError(f"C1, C3: ledger {ledger_id} lacks {sorted(missing)} in its list")
        foreign = set(ids) - set(expected.versions)
        if foreign:
            raise ViolationError(f"ledger {ledger_id} lists {sorted(foreign)}, never sent")
        return ids

    async def _read(
        self, ledger_id: int, ids: Sequence[int] | None, expected: Expected
    ) -> dict[int, bytes]:
        wanted = sorted(expected.versions) if ids is None else ids
        packets: dict[int, bytes] = {}
        for entry_id in wanted:
            if entry_id in packets:
                continue
            try:
                read = await self._storage.read(ledger_id, entry_id, entry_id + 50, _READ_BYTES)
            except NoSuchEntryInStorageError as error:
                if ids is not None or expected.must_hold(entry_id):
                    raise ViolationError(
                        f"C3: ledger {ledger_id} denies {entry_id}: {error}"
                    ) from error
                continue
            except StorageIOError as error:
                self._on_error(error)
                continue
            for at, packet in enumerate(read, entry_id):
                if not expected.may_be(at, packet):
                    raise ViolationError(
                        f"C4: ledger {ledger_id} entry {at} is {packet[36:80]!r}; "
                        f"sent: {[each[36:80] for each in expected.versions.get(at, [])]}, "
                        f"sure from {expected.sure.get(at)} on"
                    )
                packets[at] = packet
        return packets

    async def _check_denials(self, ledger_id: int, ids: set[int]) -> None:
        top = max(ids, default=0) + 2
        for entry_id in [*[each for each in range(top + 1) if each not in ids][:6], top]:
            try:
                await self._storage.read(ledger_id, entry_id, entry_id, 1)
            except NoSuchEntryInStorageError:
                continue
            except StorageIOError as error:
                self._on_error(error)
                continue
            raise ViolationError(f"ledger {ledger_id} reads {entry_id}, which it does not list")

    async def _check_last(self, ledger_id: int, ids: Sequence[int], expected: Expected) -> None:
        try:
            last = await self._storage.last_packet(ledger_id)
        except StorageIOError as error:
            self._on_error(error)
            return
        if last is None:
            if ids:
                raise ViolationError(f"C3: ledger {ledger_id} says that it has no last entry")
            return
        entry_id = PACKET_HEADER.unpack_from(last)[1]
        if entry_id != max(ids, default=None) or not expected.may_be(entry_id, last):
            raise ViolationError(f"ledger {ledger_id}: last packet {last!r}")

    def _check_state(
        self, ledger_id: int, expected: Expected, packets: Mapping[int, bytes]
    ) -> Found:
        ledger = self._parts.ledgers.find(ledger_id)
        assert ledger is not None
        fenced = ledger.fence is not FenceState.OPEN
        if fenced and expected.fence is Fence.NO:
            raise ViolationError(f"ledger {ledger_id} is fenced, which nobody asked for")
        if not fenced and expected.fence is Fence.YES:
            raise ViolationError(f"C2: ledger {ledger_id} is not fenced any more")
        lac, explicit = ledger.last_add_confirmed, ledger.explicit_lac
        if not expected.lac_sure <= lac <= expected.lac_sent:
            raise ViolationError(
                f"ledger {ledger_id}: LAC {lac}, must be in "
                f"{expected.lac_sure} to {expected.lac_sent}"
            )
        if explicit and explicit not in expected.explicit_sent:
            raise ViolationError(f"ledger {ledger_id}: explicit LAC {explicit!r} never sent")
        explicit_lac = ledger.explicit_last_add_confirmed
        if explicit_lac < expected.explicit_sure:
            raise ViolationError(
                f"ledger {ledger_id}: explicit LAC {explicit_lac} < {expected.explicit_sure}"
            )
        return Found(packets, fenced, lac, explicit)

    def _on_error(self, error: StorageIOError) -> None:
        self.errors += 1
        if not self._may_fail():
            raise ViolationError(f"an answer is an error: {error}") from error
