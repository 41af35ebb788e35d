"""Ledger ids that are given out once and never again.

Short ids come from an ephemeral sequential node below `{root}/idgen`: the counter that the store
appends is the id. ZooKeeper's counter is a signed 32-bit number, so short ids end at 2^31 - 2. Long
ids come from directories `{root}/idgen-long/HOB-xxxxxxxxxx`. The number in the name gives the high
32 bits, the counter within the directory the low ones. When a counter is used up, the next
directory is created.

No generator's parent is ever deleted: the counters are there, and ids would repeat while bookies
still hold old data (D30). Metadata restored from a backup has old counters. When bookies start,
they move the counters past the ids that they hold (`LedgerManager.pass_ids`). Gaps are normal.

Source: ledger protocol, section 3.
"""

import re
from typing import Protocol

from magnetar.ledger.errors import (
    LedgerIdsExhaustedError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.ledger.metadata.store import SEQUENCE_DIGITS, MetadataStore

LEDGER_ID_LIMIT = (1 << 31) - 1
"""Upper limit, exclusive, of short ids and of the low part of long ones."""

_HIGH_FIRST = 1
"""High bits 0 would repeat the short ids."""

_HIGH_BITS = 32
_HIGH_DIRECTORY = re.compile(r"HOB-([0-9]{10})")


class LedgerIds(Protocol):
    """A source of ledger ids. No two callers ever get the same id."""

    async def next_id(self) -> int:
        """Return a new ledger id.

        Raises:
            LedgerIdsExhaustedError, UnknownOutcomeError, MetadataUnavailableError
        """
        ...


class ShortLedgerIds:
    """Ids from 0 to 2^31 - 2."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._parent = f"{root}/idgen"

    async def next_id(self) -> int:
        return await _next_number(self._store, self._parent)


class LongLedgerIds:
    """Ids from 2^32 on, to the end of int64."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._parent = f"{root}/idgen-long"

    async def next_id(self) -> int:
        high = max(await self._highs(), default=None)
        if high is None:
            high = await self._begin(_HIGH_FIRST)
        while True:
            try:
                low = await _next_number(self._store, f"{self._parent}/{_directory(high)}")
            except LedgerIdsExhaustedError:
                # Two clients may find this out at once; both continue in the same next directory.
                high = await self._begin(high + 1)
            else:
                return high << _HIGH_BITS | low

    async def _highs(self) -> list[int]:
        try:
            names = await self._store.children(self._parent)
        except NoNodeError:
            return []
        return [int(found[1]) for name in names if (found := _HIGH_DIRECTORY.fullmatch(name))]

    async def _begin(self, high: int) -> int:
        if high >= LEDGER_ID_LIMIT:
            raise LedgerIdsExhaustedError(f"no ledger id is left below {self._parent}")
        try:
            await self._store.create(f"{self._parent}/{_directory(high)}")
        except NodeExistsError:
            pass  # Another client was faster.
        return high


class ShortThenLongLedgerIds:
    """Short ids until they are used up, then long ones."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._short = ShortLedgerIds(store, root)
        self._long = LongLedgerIds(store, root)
        self._is_short_used_up = False

    async def next_id(self) -> int:
        if not self._is_short_used_up:
            try:
                return await self._short.next_id()
            except LedgerIdsExhaustedError:
                self._is_short_used_up = True
        return await self._long.next_id()


async def _next_number(store: MetadataStore, parent: str) -> int:
    path = await store.create(f"{parent}/ID-", ephemeral=True, sequential=True)
    number = parse_generated_id(path)
    try:
        await store.delete(path)
    except MetadataError:
        pass  # The node is ephemeral, and only its name matters.
    return number


def parse_generated_id(path: str) -> int:
    """Return the number in the name of a generator node: the counter that the store appended.

    Raises:
        LedgerIdsExhaustedError: the counter has left the range; ZooKeeper's becomes negative.
    """
    text = path.rpartition("/ID-")[2]
    if len(text) != SEQUENCE_DIGITS or not text.isdecimal() or int(text) >= LEDGER_ID_LIMIT:
        raise LedgerIdsExhaustedError(f"no ledger id below {LEDGER_ID_LIMIT} in {path!r}")
    return int(text)


def _directory(high: int) -> str:
    return f"HOB-{high:010d}"
