"""The ledger cache: pages and headers of page files in memory, bounded in bytes.

Changed pages and headers stay until they are written; clean ones are evicted when room is needed,
the least recently used first. The owner guards the cache with its lock.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from magnetar.bookie.indexes.pages.page_format import LedgerHeader, Page

_PAGE_OVERHEAD_BYTES = 500
"""Bytes of a page in memory beside its cells: the objects, keys and places in tables around it."""

_HEADER_COST_BYTES = 900
"""Bytes of a header in memory, with its state and the objects around it."""


_UNCACHED_BYTES = 1 << 20
"""Bytes of unwritten changes that are collected without a cache.

A round of writes costs several syncs: one for each ledger would hold up a flush for minutes.
"""


@dataclass(slots=True)
class Unwritten:
    """Changes to one ledger since its file was last written."""

    header: LedgerHeader
    pages: dict[int, Page] = field(default_factory=dict)


class PageCache:
    """Clean pages and headers, and the unwritten changes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pages: OrderedDict[tuple[int, int], Page] = OrderedDict()
        self._headers: OrderedDict[int, LedgerHeader] = OrderedDict()
        self._numbers: dict[int, set[int]] = {}
        """Numbers of the clean pages, by ledger."""
        self.unwritten: dict[int, Unwritten] = {}
        self.removed: set[int] = set()
        """Ledgers whose file must be removed, before any change of them is written."""
        self._clean_bytes = 0
        self.unwritten_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._clean_bytes + self.unwritten_bytes

    @property
    def wants_write(self) -> bool:
        """Whether unwritten changes take a quarter of the cache; writing them takes as much
        again."""
        return self.unwritten_bytes >= (self._bytes_max // 4 or _UNCACHED_BYTES)

    @property
    def has_unwritten(self) -> bool:
        return bool(self.unwritten or self.removed)

    def header(self, ledger_id: int) -> LedgerHeader | None:
        changed = self.unwritten.get(ledger_id)
        if changed is not None:
            return changed.header
        header = self._headers.get(ledger_id)
        if header is not None:
            self._headers.move_to_end(ledger_id)
        return header

    def page(self, ledger_id: int, number: int) -> Page | None:
        changed = self.unwritten.get(ledger_id)
        if changed is not None and number in changed.pages:
            return changed.pages[number]
        key = (ledger_id, number)
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def keep_header(self, header: LedgerHeader) -> None:
        """Cache a header as it is on disk."""
        if header.ledger_id not in self._headers:
            self._clean_bytes += _HEADER_COST_BYTES
        self._headers[header.ledger_id] = header
        self._headers.move_to_end(header.ledger_id)
        self._shrink()

    def keep_page(self, ledger_id: int, number: int, page: Page) -> None:
        """Cache a page as it is on disk."""
        key = (ledger_id, number)
        if key not in self._pages:
            self._clean_bytes += _cost(page)
            self._numbers.setdefault(ledger_id, set()).add(number)
        self._pages[key] = page
        self._pages.move_to_end(key)
        self._shrink()

    def change(self, header: LedgerHeader, pages: dict[int, Page]) -> None:
        """Replace header and pages of a ledger by these, which are still to be written."""
        changed = self.unwritten.get(header.ledger_id)
        if changed is None:
            changed = self.unwritten[header.ledger_id] = Unwritten(header)
            self.unwritten_bytes += _HEADER_COST_BYTES
        changed.header = header
        for number, page in pages.items():
            if number not in changed.pages:
                self.unwritten_bytes += _cost(page)
            changed.pages[number] = page
        self._shrink()

    def remove(self, ledger_id: int) -> None:
        """Drop everything of a ledger; its file is still to be removed."""
        self.removed.add(ledger_id)
        self._drop_clean(ledger_id)
        changed = self.unwritten.pop(ledger_id, None)
        if changed is not None:
            self.unwritten_bytes -= _HEADER_COST_BYTES + sum(map(_cost, changed.pages.values()))

    def on_written(self) -> None:
        """Turn the unwritten changes into clean pages and headers, after they were written."""
        unwritten, self.unwritten = self.unwritten, {}
        self.removed.clear()
        self.unwritten_bytes = 0
        for ledger_id, changed in unwritten.items():
            self.keep_header(changed.header)
            for number, page in changed.pages.items():
                self.keep_page(ledger_id, number, page)

    def _drop_clean(self, ledger_id: int) -> None:
        if self._headers.pop(ledger_id, None) is not None:
            self._clean_bytes -= _HEADER_COST_BYTES
        for number in self._numbers.pop(ledger_id, ()):
            self._clean_bytes -= _cost(self._pages.pop((ledger_id, number)))

    def _shrink(self) -> None:
        while self.size_bytes > self._bytes_max and self._pages:
            (ledger_id, number), page = self._pages.popitem(last=False)
            self._clean_bytes -= _cost(page)
            numbers = self._numbers[ledger_id]
            numbers.discard(number)
            if not numbers:
                del self._numbers[ledger_id]
        while self.size_bytes > self._bytes_max and self._headers:
            self._headers.popitem(last=False)
            self._clean_bytes -= _HEADER_COST_BYTES


def _cost(page: Page) -> int:
    return 8 * len(page.cells) + _PAGE_OVERHEAD_BYTES
