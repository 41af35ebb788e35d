"""The cells of a ledger as a tree of pages: they tell which run each entry is in. Pure.

A radix tree over entry ids: a leaf has the cells of as many neighbouring entries as fit into a
page; a page above points to as many pages below. A ledger that is written from the start has one
page of pointers for every thousand leaves. Ids far apart cost some pages each, and never a sparse
file.

The tree is read through `load`, which may raise `StorageCorruptError` for a page. Cells are never
emptied one by one: below a pointer there is always an entry.
"""

from array import array
from collections.abc import Callable, Iterator

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.pages.page_format import IN_DOUBT, LedgerHeader, Page

LoadPage = Callable[[int, int, int], Page]
"""Loads a page by number, level and first entry; the page should have that level and first
entry."""


class CellTree:
    """Lookups in the tree of one ledger."""

    def __init__(self, header: LedgerHeader, load: LoadPage) -> None:
        self.header = header
        self._load = load

    def get(self, entry_id: int) -> int:
        """Return the cell of an entry; 0 if it is certainly not stored.

        Raises:
            StorageCorruptError: damage hides the cell.
        """
        leaf = self._leaf(entry_id)
        return 0 if leaf is None else leaf.cells[entry_id - leaf.base]

    def last_until(self, entry_id: int) -> int | None:
        """Return the highest entry up to `entry_id` with a cell; None if there is certainly
        none."""
        header = self.header
        if header.height == 0 or entry_id < 0:
            return None
        entry_id = min(entry_id, span_of(header) - 1)
        return self._last(self._page(header.root, header.height - 1, 0), entry_id)

    def first_from(self, entry_id: int) -> int | None:
        """Return the lowest entry from `entry_id` on with a cell; None if there is certainly
        none."""
        header = self.header
        if header.height == 0 or entry_id >= span_of(header):
            return None
        return self._first(self._page(header.root, header.height - 1, 0), entry_id)

    def stretch(self, entry_id: int, first: int, last: int) -> tuple[int, int]:
        """Return the first and last entry of the stretch around `entry_id` that shares its cell.

        It lies within `first` and `last`, and contains no other cell; entries without a cell may
        lie between. It ends before a damaged page: that is an error for the entries there, not for
        these.
        """
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
        """Extend the stretch to lower leaves, as long as it covers everything from a leaf's start
        on."""
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
        """Return the leaf in which a stretch continues, and its entry there; None if it ends."""
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
        """Return whether the entries `first` to `last` of one leaf have no cell."""
        if first > last:
            return True
        leaf = self._leaf(first)
        assert leaf is not None
        return not any(leaf.cells[first - leaf.base : last + 1 - leaf.base])

    def _leaf(self, entry_id: int) -> Page | None:
        """Return the leaf that has the cell of the entry, if there is one."""
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
    """Load a page that must be of this level and begin with the entry `base`.

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
    """Return the number of entries below one cell of a page of this level."""
    return int(header.cells**level)


def span_of(header: LedgerHeader) -> int:
    """Return the number of entries that the tree can hold at its height."""
    return span_below(header, header.height)


def _pattern(cell: int, count: int) -> bytes:
    return (array("Q", [cell]) * count).tobytes()


def _reach(leaf: Page, cell: int, start: int, stop: int) -> int:
    """Return the last entry with this cell on the way from `start` to `stop`, before another cell.

    The entry `start` has this cell.
    """
    low, high = (start, stop) if start <= stop else (stop, start)
    cells = leaf.cells[low - leaf.base : high + 1 - leaf.base]
    if cells.tobytes() == _pattern(cell, len(cells)):
        return stop  # a run without gaps that nothing overlays: no check of each
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
        """The changed and new pages, by number."""

    def fill(self, first: int, last: int, cell: int) -> bool:
        """Give the entries from `first` to `last` this cell; return whether any of them had one."""
        had_one = False
        for leaf, begin, end in self._leaves(first, last):
            old = leaf.cells[begin:end]
            had_one = had_one or any(old)
            leaf.cells[begin:end] = array("Q", [cell]) * (end - begin)
        return had_one

    def replace(self, first: int, last: int, source: int, target: int) -> bool:
        """Replace the cell `source` by `target` in the entries `first` to `last`; return whether
        any had it.

        Damaged pages are skipped: their content is not known, and reading their entries is an error
        before and after.
        """
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
        """Yield the existing, undamaged leaves below a page that have some of these entries."""
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
        """Yield the leaves of the entries, to be changed, each with start and end of its cells."""
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
                # A new page. If the pointer was damaged, the content of the page below is lost with
                # it.
                page.cells[at] = self._new(page.level - 1, base, IN_DOUBT if page.cells[at] else 0)
            page = self._writable(page.cells[at], page.level - 1, base)
        return page

    def _grow(self) -> None:
        """Add a level on top; the first one, if there is none."""
        below, level = self.header.root, self.header.height
        number = self._new(level, 0, 0)
        if below:
            self.changed[number].cells[0] = below
        self.header = self.header._replace(root=number, height=level + 1)

    def _new(self, level: int, base: int, cell: int) -> int:
        """Make a new page with the same cell everywhere; return its number."""
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
                # New entries must not wait for a repair of old ones: the page is written anew, and
                # marks all its cells as unknown.
                cells = array("Q", [IN_DOUBT]) * self.header.cells
            page = self.changed[number] = Page(level, base, cells)
        return page
