"""The hierarchical layouts: ledgers in directories with at most 10 000 children.

An id below 2^31 - 1 has ten digits split 2-4-4, `{root}/00/0000/L0001` for id 1. Any other has
nineteen digits split 3-4-4-4-4, `{root}/000/0000/0042/9496/L7296` for id 2^32 (the hybrid rule).
`hierarchical` takes short ids until they are used up, `longhierarchical` long ones from the start.
Both read both.

Source: ledger protocol, section 3.
"""

import re
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate, pairwise

from magnetar.ledger.errors import LedgerLayoutError, NoNodeError, NoSuchLedgerError
from magnetar.ledger.layouts.ledger_ids import (
    LEDGER_ID_LIMIT,
    LedgerIds,
    LongLedgerIds,
    ShortThenLongLedgerIds,
)
from magnetar.ledger.layouts.ledger_layout import LayoutName, LedgerRange
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX
from magnetar.ledger.metadata.store import MetadataStore, join_path

_SHORT = (2, 4, 4)
_LONG = (3, 4, 4, 4, 4)
"""Digits per level; "L" precedes those of the last level."""


class HierarchicalLayout:
    """The hierarchical layout, with short ids first or only long ones."""

    def __init__(self, store: MetadataStore, root: str, *, is_long: bool) -> None:
        self._store = store
        self._root = root
        self._is_long = is_long
        self._ids: LedgerIds = (LongLedgerIds if is_long else ShortThenLongLedgerIds)(store, root)

    @property
    def name(self) -> LayoutName:
        return "longhierarchical" if self._is_long else "hierarchical"

    def path(self, ledger_id: int) -> str:
        return ledger_path(self._root, ledger_id)

    async def next_id(self) -> int:
        return await self._ids.next_id()

    def keeps(self, child_of_root: str) -> bool:
        return re.fullmatch(r"[0-9]{2,3}", child_of_root) is not None

    async def ranges(self) -> AsyncIterator[LedgerRange]:
        names = await self._store.children(self._root)
        next_id = 0
        for widths, id_max in ((_SHORT, LEDGER_ID_LIMIT - 1), (_LONG, LEDGER_ID_MAX)):
            async for path, first_id, end_id in self._directories(names, widths):
                last_id = min(end_id, id_max)
                ids = await self._ledgers_in(path, first_id)
                if ids:
                    # There are no ledgers between the last directory and this one.
                    yield LedgerRange(next_id, last_id, ids)
                    next_id = last_id + 1
        if next_id <= LEDGER_ID_MAX:
            yield LedgerRange(next_id, LEDGER_ID_MAX, ())

    async def _directories(
        self, names: Sequence[str], widths: Sequence[int]
    ) -> AsyncIterator[tuple[str, int, int]]:
        """Yield the directories of ledger nodes, with the first and last id that fit into each.

        Names of one length sort as their numbers do, so a walk in the order of the names is in
        numeric order.
        """
        digits = sum(widths)
        levels = list(accumulate(widths[:-1]))

        async def walk(path: str, prefix: str, names: Sequence[str]) -> AsyncIterator[str]:
            depth = levels.index(len(prefix)) + 1 if prefix else 0
            width = widths[depth]
            for name in names:
                if len(name) != width or not _is_number(name):
                    continue
                below = prefix + name
                child = join_path(path, name)
                if len(below) == levels[-1]:
                    yield below
                    continue
                async for found in walk(child, below, await self._children_if_any(child)):
                    yield found

        async for prefix in walk(self._root, "", names):
            rest = digits - len(prefix)
            first_id = int(prefix) * 10**rest
            ends = [0, *levels]
            parts = [prefix[start:end] for start, end in pairwise(ends)]
            yield join_path(self._root, "/".join(parts)), first_id, first_id + 10**rest - 1

    async def _ledgers_in(self, path: str, first_id: int) -> tuple[int, ...]:
        names = [
            name
            for name in await self._children_if_any(path)
            if len(name) == 5 and name[0] == "L" and _is_number(name[1:])
        ]
        # One bound decides whether an id's path is short or long. If the first and the last id are
        # in the right place, so are those in between. There may be ten thousand.
        for name in (*names[:1], *names[-1:]):
            ledger_id = first_id + int(name[1:])
            if ledger_id > LEDGER_ID_MAX or self.path(ledger_id) != join_path(path, name):
                raise LedgerLayoutError(
                    f"{path}/{name} would be ledger {ledger_id}, which this manager keeps "
                    f"elsewhere: another system writes to {self._root}. Listing ledgers is not "
                    f"safe until that is cleared up"
                )
        return tuple([first_id + int(name[1:]) for name in names])

    async def _children_if_any(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []  # Its last ledger was deleted meanwhile.


def ledger_path(root: str, ledger_id: int) -> str:
    """Return the path of a ledger's node: short or long by the hybrid rule.

    Raises:
        NoSuchLedgerError: the id is not an int64 from 0.
    """
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise NoSuchLedgerError(f"ledger ids are from 0 to {LEDGER_ID_MAX}, not {ledger_id}")
    if ledger_id < LEDGER_ID_LIMIT:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
