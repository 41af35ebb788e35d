"""The files of backups: what was written comes back, and whatever else is there is refused."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.features.backup.documents import ClusterBackup, LogBackup, Uncovered
from magnetar.cursors.node import CursorNode
from magnetar.ledger.errors import FutureObjectVersionError, ObjectDamagedError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.offloading.backup_pins import objects_named
from magnetar.ledger.offloading.log_manifest import LogManifest, decode_checked, encode_checked

REFUSED = (ObjectDamagedError, FutureObjectVersionError)
LOG = LogBackup(
    LogManifest("5f0c", "/managed-ledgers/t/n/persistent/x", 17, 3, LogMetadata()),
    {"s": CursorNode(epoch=3, mark_delete=(4, 1), properties={"a": "b"})},
    None,
    3,
    Uncovered(ledgers=1, entries=2, bytes=10, since_ms=5),
)
CLUSTER = ClusterBackup(
    name="daily",
    instance_id="5f0c",
    begun_ms=1,
    finished_ms=2,
    scope="",
    tenants={},
    namespaces={},
    partitioned={},
    logs=(),
    uncovered=Uncovered(),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(value: bytes) -> list[object]:
    """Whatever the readers make of a file; nothing of one that all of them refuse."""
    found: list[object] = []
    for reader in (LogBackup.from_bytes, ClusterBackup.from_bytes):
        try:
            found.append(reader(value, key="k"))
        except REFUSED:
            continue
    try:
        objects_named(value, "k")
    except REFUSED:
        assert not any(isinstance(each, LogBackup) for each in found)
    return found


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused(value: bytes) -> None:
    assert read(value) == []


@given(st.sampled_from([LOG, CLUSTER]), st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(
    whole: LogBackup | ClusterBackup, data: st.DataObject
) -> None:
    value = bytearray(whole.to_bytes())
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] = data.draw(st.integers(0, 255))
    assert read(bytes(value)) in ([], [whole])


@given(st.sampled_from([LOG, CLUSTER]), st.data())
def test_a_field_with_any_value_is_read_or_refused(
    whole: LogBackup | ClusterBackup, data: st.DataObject
) -> None:
    """The checksum is right: another program wrote the file, or a release with a bug."""
    content: Any = decode_checked(whole.to_bytes(), key="k")
    place = content
    while True:
        name = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[name], dict) or not place[name] or data.draw(st.booleans()):
            break
        place = place[name]
    place[name] = data.draw(values)
    if "manifest" in content and isinstance(content["manifest"], dict):
        inner = content["manifest"].get("content")
        if isinstance(inner, dict):
            content["manifest"] = json.loads(encode_checked(inner))
    read(encode_checked(content))
