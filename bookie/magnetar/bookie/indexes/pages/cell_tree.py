"""The cells of a ledger as a tree of pages: which run each entry is in. Pure.

A radix tree over entry ids: a leaf has the cells of as many neighbouring entries as fit in a page,
a page above points to as many pages below. A ledger that is written from the start has one page of
pointers for every thousand leaves; ids far apart cost some pages each, and never a sparse file.

The tree is read through `load`, which may raise `StorageCorruptError` for a page. Cells are never
emptied one by one: below a pointer there is always an entry.
"""

from array import array
from collections.abc import Callable, Iterator

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.pages.page_format import IN_DOUBT, LedgerHeader, Page

LoadPage = Callable[[int, int, int], Page]
"""Loads a page by number; level and first entry are those that it should have."""


class CellTree:
    """Looks into the tree of one ledger."""

    def __init__(self, header: LedgerHeader, load: LoadPage) -> None:
        self.header = header
        self._load = load

    def get(self, entry_id: int) -> int:
        """The cell of an entry; 0 if it is certainly not stored.

        Raises:
            StorageCorruptError: it cannot be known.
        """
        leaf = self._leaf(entry_id)
        return 0 if leaf is None else leaf.cells[entry_id - leaf.base]

    def last_until(self, entry_id: int) -> int | None:
        """The highest entry up to `entry_id` that has a cell; None if there is certainly none."""
        header = self.header
        if header.height == 0 or entry_id < 0:
            return None
        entry_id = min(entry_id, span_of(header) - 1)
        return self._last(self._page(header.root, header.height - 1, 0), entry_id)

    def first_from(self, entry_id: int) -> int | None:
        """The lowest entry from `entry_id` on that has a cell; None if there is certainly none."""
        header = self.header
        if header.height == 0 or entry_id >= span_of(header):
            return None
        return self._first(self._page(header.root, header.height - 1, 0), entry_id)

    def stretch(self, entry_id: int, first: int, last: int) -> tuple[int, int]:
        """First and last of the entries around `entry_id`, within `first` and `last`, that have its
        cell, with no other cell between them; without cell they may be. It is cut short where the
        next page is damaged: that is an error for the entries there, not for these."""
        leaf = self._leaf(entry_id)
        assert leaf is not None
        cell = leaf.cells[entry_id - leaf.base]
        begin, end = max(first, leaf.base), min(last + 1, leaf.base + len(leaf.cells))
        low, high = _reach(leaf, cell, entry_id, begin), _reach(leaf, cell, entry_id, end - 1)
        for lower in self._stretch_down(cell, low, begin, first):
            low = lower
        for higher in self._stretch_up(cell, high, end, last):
            high = higher
        return low, high

    def _stretch_down(self, cell: int, low: int, begin: int, first: int) -> Iterator[int]:
        """Go on below a leaf as long as everything from its begin on belonged to the stretch."""
        while begin > first:
            leaf = self._next_leaf(cell, begin, low - 1, self.last_until, begin - 1)
            if leaf is None or leaf[1] < first:
                return
            begin = max(first, leaf[0].base)
            low = _reach(leaf[0], cell, leaf[1], begin)
            yield low

    def _stretch_up(self, cell: int, high: int, end: int, last: int) -> Iterator[int]:
        while end <= last:
            leaf = self._next_leaf(cell, high + 1, end - 1, self.first_from, end)
            if leaf is None or leaf[1] > last:
                return
            end = min(last + 1, leaf[0].base + len(leaf[0].cells))
            high = _reach(leaf[0], cell, leaf[1], end - 1)
            yield high

    def _next_leaf(
        self,
        cell: int,
        free_first: int,
        free_last: int,
        search: Callable[[int], int | None],
        start: int,
    ) -> tuple[Page, int] | None:
        """The leaf in which a stretch goes on, and its entry there; None if it does not."""
        try:
            if not self._is_free(free_first, free_last):
                return None
            entry_id = search(start)
            leaf = None if entry_id is None else self._leaf(entry_id)
        except StorageCorruptError:
            return None
        if entry_id is None or leaf is None or leaf.cells[entry_id - leaf.base] != cell:
            return None
        return leaf, entry_id

    def _is_free(self, first: int, last: int) -> bool:
        """Whether the entries of one leaf from `first` to `last` have no cell."""
        if first > last:
            return True
        leaf = self._leaf(first)
        assert leaf is not None
        return not any(leaf.cells[first - leaf.base : last + 1 - leaf.base])

    def _leaf(self, entry_id: int) -> Page | None:
        """The leaf that has the cell of the entry, if there is one."""
        header = self.header
        if header.height == 0 or not 0 <= entry_id < span_of(header):
            return None
        page = self._page(header.root, header.height - 1, 0)
        while page.level > 0:
            span = span_below(header, page.level)
            at = (entry_id - page.base) // span
            number = page.cells[at]
            if number == 0:
                return None
            page = self._page(number, page.level - 1, page.base + at * span)
        return page

    def _last(self, page: Page, entry_id: int) -> int | None:
        span = span_below(self.header, page.level)
        for at in range(min((entry_id - page.base) // span, len(page.cells) - 1), -1, -1):
            if page.cells[at] == 0:
                continue
            base = page.base + at * span
            if page.level == 0:
                return base
            found = self._last(self._page(page.cells[at], page.level - 1, base), entry_id)
            if found is not None:
                return found
        return None

    def _first(self, page: Page, entry_id: int) -> int | None:
        span = span_below(self.header, page.level)
        for at in range(max(0, (entry_id - page.base) // span), len(page.cells)):
            if page.cells[at] == 0:
                continue
            base = page.base + at * span
            if page.level == 0:
                return base
            found = self._first(self._page(page.cells[at], page.level - 1, base), entry_id)
            if found is not None:
                return found
        return None

    def _page(self, number: int, level: int, base: int) -> Page:
        return checked_page(self._load, self.header, number, level, base)


def checked_page(load: LoadPage, header: LedgerHeader, number: int, level: int, base: int) -> Page:
    """A page that must be of this level and stand for the entries from `base` on.

    Raises:
        StorageCorruptError: the pointer or the page is damaged.
    """
    if number == IN_DOUBT:
        raise StorageCorruptError(
            f"page index of ledger {header.ledger_id}: a page of pointers was damaged, and what it "
            f"said of the entries from {base} on is not known"
        )
    if not 0 < number <= header.pages:
        raise StorageCorruptError(
            f"page index of ledger {header.ledger_id}: page {number} of {header.pages}"
        )
    page = load(number, level, base)
    if page.level != level or page.base != base:
        raise StorageCorruptError(
            f"page index of ledger {header.ledger_id}: page {number} is of level {page.level} from "
            f"{page.base}, expected level {level} from {base}"
        )
    return page


def span_below(header: LedgerHeader, level: int) -> int:
    """Entries that one cell of a page of this level stands for."""
    return int(header.cells**level)


def span_of(header: LedgerHeader) -> int:
    """Entries that the tree can hold as high as it is."""
    return span_below(header, header.height)


def _pattern(cell: int, count: int) -> bytes:
    return (array("Q", [cell]) * count).tobytes()


def _reach(leaf: Page, cell: int, start: int, stop: int) -> int:
    """The last entry with this cell on the way from `start`, which has it, to `stop`, before one
    with another cell."""
    low, high = (start, stop) if start <= stop else (stop, start)
    cells = leaf.cells[low - leaf.base : high + 1 - leaf.base]
    if cells.tobytes() == _pattern(cell, len(cells)):
        return stop  # a run without gaps, nothing lies over it: no look at each
    reached = start
    for entry_id in range(start, stop + 1) if start <= stop else range(start, stop - 1, -1):
        found = leaf.cells[entry_id - leaf.base]
        if found == cell:
            reached = entry_id
        elif found != 0:
            break
    return reached


class TreeEdit:
    """Changes to the tree of one ledger, on copies of its pages."""

    def __init__(self, header: LedgerHeader, load: LoadPage) -> None:
        self.header = header
        self._load = load
        self.changed: dict[int, Page] = {}
        """The pages that were changed or made, by number."""

    def fill(self, first: int, last: int, cell: int) -> bool:
        """Give the entries from `first` to `last` this cell; whether any of them had one."""
        had_one = False
        for leaf, begin, end in self._leaves(first, last):
            old = leaf.cells[begin:end]
            had_one = had_one or any(old)
            leaf.cells[begin:end] = array("Q", [cell]) * (end - begin)
        return had_one

    def replace(self, first: int, last: int, source: int, target: int) -> bool:
        """Of the entries from `first` to `last`, give those with the cell `source` the cell
        `target`; whether there were any. Pages that are damaged are passed over: what they said is
        not known, and to ask for their entries is an error before and after."""
        header, replaced = self.header, False
        if header.height == 0:
            return False
        for leaf in self._leaves_within(header.root, header.height - 1, 0, first, last):
            begin, end = max(first, leaf.base), min(last + 1, leaf.base + len(leaf.cells))
            held = leaf.cells[begin - leaf.base : end - leaf.base]
            if source in held:
                replaced = True
                for copy, low, high in self._leaves(begin, end - 1):
                    cells = [target if cell == source else cell for cell in held]
                    copy.cells[low:high] = array("Q", cells)
        return replaced

    def _leaves_within(
        self, number: int, level: int, base: int, first: int, last: int
    ) -> Iterator[Page]:
        """The leaves below a page that are there, sound, and for some of these entries."""
        try:
            page = checked_page(self._load_any, self.header, number, level, base)
        except StorageCorruptError:
            return
        if level == 0:
            yield page
            return
        span = span_below(self.header, level)
        stop = min((last - base) // span + 1, len(page.cells))
        for at in range(max(0, (first - base) // span), stop):
            if page.cells[at]:
                below = base + at * span
                yield from self._leaves_within(page.cells[at], level - 1, below, first, last)

    def _load_any(self, number: int, level: int, base: int) -> Page:
        page = self.changed.get(number)
        return self._load(number, level, base) if page is None else page

    def _leaves(self, first: int, last: int) -> Iterator[tuple[Page, int, int]]:
        """The leaves of the entries, to be changed, each with begin and end of its cells."""
        count = self.header.cells
        entry_id = first
        while entry_id <= last:
            leaf = self._leaf(entry_id)
            end = min(last + 1, leaf.base + count)
            yield leaf, entry_id - leaf.base, end - leaf.base
            entry_id = end

    def _leaf(self, entry_id: int) -> Page:
        while self.header.height == 0 or entry_id >= span_of(self.header):
            self._grow()
        header = self.header
        page = self._writable(header.root, header.height - 1, 0)
        while page.level > 0:
            span = span_below(header, page.level)
            at = (entry_id - page.base) // span
            base = page.base + at * span
            if not 0 < page.cells[at] <= self.header.pages:
                # A new page; where the pointer was lost, with it what the page said.
                page.cells[at] = self._new(page.level - 1, base, IN_DOUBT if page.cells[at] else 0)
            page = self._writable(page.cells[at], page.level - 1, base)
        return page

    def _grow(self) -> None:
        """One level more; the first one, if there is none."""
        below, level = self.header.root, self.header.height
        number = self._new(level, 0, 0)
        if below:
            self.changed[number].cells[0] = below
        self.header = self.header._replace(root=number, height=level + 1)

    def _new(self, level: int, base: int, cell: int) -> int:
        """A new page with the same cell everywhere."""
        number = self.header.pages + 1
        self.header = self.header._replace(pages=number)
        self.changed[number] = Page(level, base, array("Q", [cell]) * self.header.cells)
        return number

    def _writable(self, number: int, level: int, base: int) -> Page:
        page = self.changed.get(number)
        if page is None:
            try:
                page = checked_page(self._load, self.header, number, level, base)
                cells = array("Q", page.cells)
            except StorageCorruptError:
                # New entries must not wait until somebody repairs old ones: the page is written
                # anew, and says of all that it had that this is not known any more.
                cells = array("Q", [IN_DOUBT]) * self.header.cells
            page = self.changed[number] = Page(level, base, cells)
        return page
