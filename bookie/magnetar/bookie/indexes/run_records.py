"""Records of the run index: runs, ledger states and the format as keys and values. Pure.

Layout: docs/formats/index.md. `overlay` computes how new runs change the records that they overlap.
Every decoder returns a value or raises `StorageCorruptError`.
"""

from collections.abc import Sequence
from struct import Struct

from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.entry_logs.packet_run import ENTRY_ID_MAX
from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.location_index import IndexRecord, NewRun

# Stored on disk: never renumber.
_FORMAT_VERSION = 1
FORMAT_KEY = b"m"
_RUN_KIND = b"r"
_STATE_KIND = b"s"
_HAS_IDS = 1

_RUN_KEY = Struct(">cqq")
_STATE_KEY = Struct(">cq")
_RUN = Struct(">BIQqII")
_FORMAT = Struct(">HI")

RUNS_FIRST, RUNS_END = _RUN_KIND, bytes([_RUN_KIND[0] + 1])
"""First key of all run records, and the end of their keys (exclusive)."""
STATES_FIRST, STATES_END = _STATE_KIND, bytes([_STATE_KIND[0] + 1])
"""First key of all ledger states, and the end of their keys (exclusive)."""


def encode_run_key(ledger_id: int, first: int) -> bytes:
    assert ledger_id >= 0  # byte order is numeric order only for these
    assert first >= 0
    return _RUN_KEY.pack(_RUN_KIND, ledger_id, first)


def ledger_end(ledger_id: int) -> bytes:
    """Return the end of the keys of the ledger's run records (exclusive)."""
    return _RUN_KEY.pack(_RUN_KIND, ledger_id, ENTRY_ID_MAX) + b"\0"


def is_run_key(key: bytes) -> bool:
    return key[:1] == _RUN_KIND


def encode_state_key(ledger_id: int) -> bytes:
    assert ledger_id >= 0
    return _STATE_KEY.pack(_STATE_KIND, ledger_id)


def decode_state_key(key: bytes) -> int:
    """Decode a ledger id from a state key.

    Raises:
        StorageCorruptError: the key is not what `encode_state_key` returns.
    """
    if len(key) != _STATE_KEY.size or key[:1] != _STATE_KIND or key[1] & 0x80:
        raise StorageCorruptError(f"index: impossible key {key.hex()}")
    return int(_STATE_KEY.unpack(key)[1])


def decode_run(key: bytes, value: bytes) -> tuple[int, IndexRecord]:
    """Decode ledger id and run record.

    Raises:
        StorageCorruptError: the data is not what `encode_run_key` and `encode_run` return.
    """
    if len(key) != _RUN_KEY.size or key[:1] != _RUN_KIND or len(value) != _RUN.size:
        raise StorageCorruptError(f"index: impossible run record {key.hex()}: {value.hex()}")
    _, ledger_id, first = _RUN_KEY.unpack(key)
    flags, log_id, offset, last, count, size_bytes = _RUN.unpack(value)
    if ledger_id < 0 or not 0 <= first <= last or count == 0 or flags > _HAS_IDS:
        raise StorageCorruptError(f"index: impossible run record {key.hex()}: {value.hex()}")
    location = RunLocation(log_id, offset, size_bytes, count, bool(flags & _HAS_IDS))
    return ledger_id, IndexRecord(first, last, location)


def encode_run(record: IndexRecord) -> bytes:
    location = record.location
    return _RUN.pack(
        _HAS_IDS if location.has_ids else 0,
        location.log_id,
        location.offset,
        record.last,
        location.entries,
        location.size_bytes,
    )


def encode_format(last_log_id: int) -> bytes:
    return _FORMAT.pack(_FORMAT_VERSION, last_log_id)


def decode_format(value: bytes) -> int:
    """Decode the highest log id ever pointed to.

    Raises:
        StorageCorruptError: no format record of this version.
    """
    if len(value) != _FORMAT.size:
        raise StorageCorruptError(f"index: format record of {len(value)} bytes")
    version, last_log_id = _FORMAT.unpack(value)
    if version != _FORMAT_VERSION:
        raise StorageCorruptError(f"index: format version {version}, expected {_FORMAT_VERSION}")
    return int(last_log_id)


def disjoint_groups(runs: Sequence[NewRun]) -> list[list[NewRun]]:
    """Cut the runs, in the same order, into groups that are each ascending and disjoint."""
    groups: list[list[NewRun]] = []
    for run in runs:
        if groups and groups[-1][-1].last < run.first:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def overlay(new: Sequence[NewRun], old: Sequence[IndexRecord]) -> list[IndexRecord]:
    """Return the records that replace `old` when the runs of `new` are laid over them.

    Both are ascending and disjoint. The new runs win for the ids they hold; the old records keep
    all other ids that they covered. The result is ascending and disjoint.
    """
    parts = [IndexRecord(first, last, run.location) for run in new for first, last in run.stretches]
    new_count = len(parts)
    at = 0
    for record in old:
        first = record.first
        while at < new_count and parts[at].last < first:
            at += 1
        covering = at
        while covering < new_count and parts[covering].first <= record.last:
            if parts[covering].first > first:
                parts.append(IndexRecord(first, parts[covering].first - 1, record.location))
            first = parts[covering].last + 1
            covering += 1
        if first <= record.last:
            parts.append(IndexRecord(first, record.last, record.location))
    parts.sort()
    # Stretches of one run are joined to one record where no other lies between them.
    merged: list[IndexRecord] = []
    for part in parts:
        if merged and merged[-1].location == part.location:
            merged[-1] = merged[-1]._replace(last=part.last)
        else:
            merged.append(part)
    return merged
