"""Snapshots of transactions in several entries."""

import json

import pytest

from magnetar.broker.features.transactions.snapshot_parts import SnapshotParts, encode_parts

TEXT = json.dumps({"kind": "snapshot", "names": ['"' * 500, "\\" * 500, "é" * 500, "x" * 5000]})


def joined(parts: SnapshotParts, entries: list[bytes]) -> list[dict[str, object] | None]:
    return [parts.join(json.loads(each)) for each in entries]


@pytest.mark.parametrize("bytes_max", [1024, 1025, 100_000])
def test_parts_are_within_the_bound_and_are_the_snapshot(bytes_max: int) -> None:
    entries = encode_parts(TEXT, bytes_max=bytes_max)
    assert max(map(len, entries)) <= bytes_max
    assert (len(entries) > 1) is (bytes_max < len(TEXT))
    found = joined(SnapshotParts(), entries)
    assert found == [None] * (len(entries) - 1) + [json.loads(TEXT)]


def test_a_snapshot_behind_the_first_parts_of_another_is_found() -> None:
    entries = encode_parts(TEXT, bytes_max=1024)
    other = encode_parts(TEXT.replace("x", "y"), bytes_max=1024)
    parts = SnapshotParts()
    found = joined(parts, [*other[:2], *entries])
    assert found[-1] == json.loads(TEXT)
    assert found[:-1] == [None] * (len(entries) + 1)


def test_other_records_are_left_as_they_are() -> None:
    record = {"kind": "end", "txn": [0, 1]}
    assert SnapshotParts().join(record) is record
