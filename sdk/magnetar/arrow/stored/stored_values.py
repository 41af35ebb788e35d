"""Values as they were stored, and what makes columns of them; the columns that are just that.

How a schema makes others: `structured_values.py`, and the `values.py` of each reader, which also
chooses. Pure.
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
"""Sizes in bytes, in an array of type "q": numpy reads them where they lie."""


def cut(parts: Sequence[Part], lengths: Sequence[int]) -> list[Part]:
    """Each of some values by itself, which lie one behind the other in `parts`."""
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
    """Where values of these sizes begin if they lie one behind the other, and where the last one
    ends: the offsets of an Arrow array, int32. They are smaller than 2 GiB in sum."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.asarray(lengths, np.int64), dtype=np.int32, out=offsets[1:])
    return pa.py_buffer(offsets)


@dataclass(slots=True)
class StoredValues:
    """The values of some rows as they were stored, one behind the other."""

    parts: Sequence[Part]
    """Cut in any way."""
    lengths: Sequence[int]
    """Of the values."""
    nulls: Sequence[int] = ()
    """Rows without a value."""
    versions: Sequence[tuple[int, int]] = ()
    """Runs of rows: version of the schema, number of rows."""
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """Row -> key of the message; only for what has `needs_keys`."""
    unfit: dict[int, str] = field(default_factory=dict)
    """Row -> why its value is none of its schema: filled while columns are made. It has null."""

    def cut(self) -> list[Part]:
        """Each value by itself."""
        return cut(self.parts, self.lengths)


class ValueColumns(Protocol):
    """Makes the columns of the values of some rows."""

    needs_keys: bool

    def columns(self, stored: StoredValues) -> dict[str, pa.Array]:
        """By name; adds to `stored.unfit`."""
        ...


class StoredColumn:
    """Values as they are, as bytes or text."""

    needs_keys = False

    def __init__(self, kind: pa.DataType) -> None:
        """`kind`: binary, or text."""
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
