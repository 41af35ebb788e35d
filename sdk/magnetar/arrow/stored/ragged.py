"""Values of different sizes in one block of bytes, as Arrow columns, without a Python step per
value. Pure.

Values are cut out in the order of the block. So values and the gaps between them form one Arrow
array, in which every second element is a value.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]
"""Positions in a block, or sizes: one for each row."""


def pieces(block: pa.Buffer, starts: Places, ends: Places) -> pa.Array:
    """Return the bytes from each start to its end, as a binary array.

    `starts` and `ends` must be in the order of the block: each end at or after its start, each
    start at or after the previous end. A block is smaller than 2 GiB.
    """
    rows = len(starts)
    offsets = np.empty(2 * rows + 1, dtype=np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if rows else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(offsets), block])
    return both.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int64)))


def spread(values: pa.Array, is_there: npt.NDArray[np.bool_]) -> pa.Array:
    """Return one row per element of `is_there`: the next value, or null where it is False."""
    if len(values) == len(is_there):
        return values
    if not len(values):
        return pa.nulls(len(is_there), values.type)
    places = np.cumsum(is_there) - 1
    return values.take(pa.array(places, mask=~is_there))
