"""Byte layout of a page file: the header of a ledger and its pages of cells. Pure.

Layout: docs/formats/page-index.md. A cell is a u64: log id and offset of a run in a leaf, the
number of a page elsewhere; 0 for nothing. Every checksum is bound to the place of its data, so that
a page at the wrong place is damage like any other.
"""

import sys
from array import array
from struct import Struct
from typing import NamedTuple

import google_crc32c

from magnetar.bookie.errors import StorageCorruptError

# Stored on disk: never renumber.
_FORMAT_VERSION = 1
_MAGIC = b"MGNTPIDX"

_HEADER = Struct(">8sHHqBBHQQ")
_PAGE_HEAD = Struct(">IB3xQ")
_PLACE = Struct(">qQ")
_U32 = Struct(">I")

HEADER_BYTES = 1024
PAGES_BEGIN = 4096
"""Offset of the first page: the header has a disk block for itself."""
PAGE_HEAD_BYTES = _PAGE_HEAD.size
PAGE_BYTES_MIN = 64
PAGE_BYTES_MAX = 32 << 10
STATE_BYTES_MAX = HEADER_BYTES - _HEADER.size - 4
HEIGHT_MAX = 32

IN_DOUBT = (1 << 64) - 1
"""The cell of an entry whose page was damaged when it was rewritten: its run is not known.

No run has this place, since no log is that long.
"""

_LITTLE = sys.byteorder == "little"


class LedgerHeader(NamedTuple):
    """The header of a ledger's file."""

    ledger_id: int
    page_bytes: int
    height: int = 0
    """Levels of the tree of pages; 0 if there is no page."""
    root: int = 0
    """Number of the top page."""
    pages: int = 0
    """Pages in use: they have the numbers 1 to `pages`."""
    state: bytes = b""
    """The encoded ledger state; empty if there is none."""

    @property
    def cells(self) -> int:
        """Cells of a page."""
        return cells_of(self.page_bytes)


class Page(NamedTuple):
    """A page of cells. Readers share it: copy it before a change."""

    level: int
    """0 for a leaf, else one more than the level of the pages below."""
    base: int
    """The first entry id that the page covers."""
    cells: "array[int]"


def cells_of(page_bytes: int) -> int:
    return (page_bytes - PAGE_HEAD_BYTES) // 8


def page_offset(number: int, page_bytes: int) -> int:
    """Return the offset of the page in the file."""
    return PAGES_BEGIN + (number - 1) * page_bytes


def page_number(offset: int, page_bytes: int) -> int:
    """Return the number of the page at this offset."""
    return (offset - PAGES_BEGIN) // page_bytes + 1


def pack_cell(log_id: int, offset: int) -> int:
    """Return the cell of entries in the run at this place.

    Raises:
        StorageCorruptError: this index cannot point to a run at this place.
    """
    if not (0 < log_id < 1 << 32 and 0 < offset < (1 << 32) - 1):
        raise StorageCorruptError(f"page index: no cell for offset {offset} of log {log_id}")
    return log_id << 32 | offset


def unpack_cell(cell: int) -> tuple[int, int]:
    """Return log id and offset."""
    return cell >> 32, cell & 0xFFFFFFFF


def encode_header(header: LedgerHeader) -> bytes:
    assert len(header.state) <= STATE_BYTES_MAX
    head = _HEADER.pack(
        _MAGIC,
        _FORMAT_VERSION,
        header.page_bytes,
        header.ledger_id,
        bool(header.state),
        header.height,
        len(header.state),
        header.root,
        header.pages,
    )
    text = (head + header.state).ljust(HEADER_BYTES - 4, b"\0")
    return text + _U32.pack(google_crc32c.value(text))


def decode_header(data: bytes, ledger_id: int) -> LedgerHeader:
    """Decode the header of the file of `ledger_id`.

    Raises:
        StorageCorruptError: truncated, of another version or ledger, or a wrong checksum.
    """
    if len(data) != HEADER_BYTES:
        raise StorageCorruptError(f"page index: header of {len(data)} bytes")
    if google_crc32c.value(data[:-4]) != _U32.unpack_from(data, HEADER_BYTES - 4)[0]:
        raise StorageCorruptError("page index: header has a wrong checksum")
    magic, version, page_bytes, found_id, flags, height, state_bytes, root, pages = (
        _HEADER.unpack_from(data)
    )
    if magic != _MAGIC or version != _FORMAT_VERSION:
        raise StorageCorruptError(f"page index: header of version {version}, magic {magic!r}")
    if found_id != ledger_id:
        raise StorageCorruptError(f"page index: header of ledger {found_id}, not of {ledger_id}")
    # The checksum held, so these are errors of a writer; they must not become wrong answers.
    if not (
        PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX
        and page_bytes % 8 == 0
        and height <= HEIGHT_MAX
        and root <= pages
        and (root == 0) == (height == 0)
        and state_bytes <= STATE_BYTES_MAX
        and flags == (state_bytes > 0)
    ):
        raise StorageCorruptError("page index: header with impossible values")
    state = data[_HEADER.size : _HEADER.size + state_bytes]
    return LedgerHeader(ledger_id, page_bytes, height, root, pages, state)


def encode_page(ledger_id: int, number: int, page: Page) -> bytes:
    cells = array("Q", page.cells)
    if _LITTLE:
        cells.byteswap()
    body = _PAGE_HEAD.pack(0, page.level, page.base)[4:] + cells.tobytes()
    return _U32.pack(_page_crc(ledger_id, number, body)) + body


def decode_page(data: bytes, ledger_id: int, number: int, *, page_bytes: int) -> Page:
    """Decode the page with this number in the file of `ledger_id`.

    Raises:
        StorageCorruptError: truncated or a wrong checksum.
    """
    if len(data) != page_bytes or page_bytes < PAGE_BYTES_MIN:
        raise StorageCorruptError(f"page index: page {number} of {len(data)} bytes")
    crc, level, base = _PAGE_HEAD.unpack_from(data)
    if _page_crc(ledger_id, number, data[4:]) != crc:
        raise StorageCorruptError(f"page index: page {number} has a wrong checksum")
    cells = array("Q", data[PAGE_HEAD_BYTES:])
    if _LITTLE:
        cells.byteswap()
    return Page(level, base, cells)


def _page_crc(ledger_id: int, number: int, body: bytes) -> int:
    place = google_crc32c.value(_PLACE.pack(ledger_id, number))
    crc: int = google_crc32c.extend(place, body)
    return crc
