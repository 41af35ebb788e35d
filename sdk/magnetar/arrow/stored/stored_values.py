"""Values as they were stored, and the protocol for making columns of them. Pure.

`StoredColumn` gives the stored bytes or text. Columns that depend on a schema are in
`structured_values.py` and `values.py`, which also chooses.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.arrow.stored.column_names import VALUE

Part = bytes | memoryview

Lengths: TypeAlias = "array[int]"
"""Sizes in bytes, in an array of type "q", which numpy reads without a copy."""


def cut(parts: Sequence[Part], lengths: Sequence[int]) -> list[Part]:
    """Return each value by itself; the values are adjacent in `parts`."""
    if len(parts) == len(lengths):
        return list(parts)
    whole = memoryview(b"".join(parts))
    values: list[Part] = []
    at = 0
    for length in lengths:
        values.append(whole[at : at + length])
        at += length
    return values


def offsets_of(lengths: Sequence[int]) -> pa.Buffer:
    """Return the offsets of an Arrow array, int32, for adjacent values of these sizes.

    The sum of the sizes must be smaller than 2 GiB.
    """
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.asarray(lengths, np.int64), dtype=np.int32, out=offsets[1:])
    return pa.py_buffer(offsets)


@dataclass(slots=True)
class StoredValues:
    """The values of some rows as they were stored, concatenated."""

    parts: Sequence[Part]
    """The bytes of the values, cut in any way."""
    lengths: Sequence[int]
    """Size of each value, in bytes."""
    nulls: Sequence[int] = ()
    """Rows without a value."""
    versions: Sequence[tuple[int, int]] = ()
    """Runs of rows: schema version, number of rows."""
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """Row -> key of the message; only filled if `needs_keys` is set."""
    unfit: dict[int, str] = field(default_factory=dict)
    """Row -> reason why its value does not fit its schema. Filled while columns are made; the row
    gets null."""

    def cut(self) -> list[Part]:
        """Return each value by itself."""
        return cut(self.parts, self.lengths)


class ValueColumns(Protocol):
    """Makes the columns of the values of some rows."""

    needs_keys: bool

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        """Return the columns by name; add to `stored.unfit`."""
        ...


class StoredColumn:
    """Values as they are, as bytes or text."""

    needs_keys = False

    def __init__(self, kind: pa.DataType) -> None:
        """`kind` is binary or string."""
        self._kind = kind

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        rows = len(stored.lengths)
        validity = None
        if stored.nulls:
            bits = bytearray(b"\xff" * ((rows + 7) // 8))
            for row in stored.nulls:
                bits[row // 8] &= ~(1 << row % 8)
            validity = pa.py_buffer(bytes(bits))
        buffers = [validity, offsets_of(stored.lengths), pa.py_buffer(b"".join(stored.parts))]
        made = pa.Array.from_buffers(self._kind, rows, buffers)
        if self._kind == pa.string():
            try:
                made.validate(full=True)
            except pa.ArrowInvalid:
                return {VALUE: self._valid_only(stored)}
        return {VALUE: made}

    def _valid_only(self, stored: StoredValues) -> pa.Array:
        nulls = set(stored.nulls)
        found: list[str | None] = []
        for row, value in enumerate(stored.cut()):
            try:
                found.append(None if row in nulls else bytes(value).decode())
            except UnicodeDecodeError as error:
                stored.unfit[row] = f"a value is no valid UTF-8: {error}"
                found.append(None)
        return pa.array(found, self._kind)
