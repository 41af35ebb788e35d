"""Manifests of logs (`log_manifest.py`)."""

import base64
import json
import zlib
from dataclasses import replace

import pytest

from magnetar.ledger.errors import FutureObjectVersionError, ObjectDamagedError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    ManifestSchema,
    ManifestTransactions,
    encode_checked,
    manifest_directory,
    manifest_key,
    manifests_folder,
    newest_manifests,
    parse_manifest_key,
)
from magnetar.ledger.offloading.object_store import is_key
from magnetar.ledger.position import Position

LOG = "/managed-ledgers/public/default/persistent/caf%C3%A9"
MANIFEST = LogManifest(
    "5f0c",
    LOG,
    17,
    1_767_225_700_000,
    LogMetadata(
        (
            LogLedger(4, 2, 10, 1_767_225_600_000, LedgerObject(ObjectState.ONLY, "ab" * 16, 0)),
            LogLedger(9, 0, 0, 0),
        ),
        object_bases=(ObjectBase("main", "5f0c/ledgers/00/x/"),),
    ),
    (ManifestSchema(0, 1_767_225_600_000, "AVRO", b'{"type":"int"}', {"a": "b"}),),
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert LogManifest.from_json(MANIFEST.to_json(), key="k") == MANIFEST


def test_the_bytes_of_a_manifest_stay_as_documented() -> None:
    fields = json.loads(MANIFEST.to_json())
    assert fields["format"] == 1
    assert fields["crc32c"] == 4033914356
    assert fields["content"]["node"] == json.loads(MANIFEST.node.to_json())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"id":4', b'"id":5'),
        (b'"version":17', b'"version":18'),
        (b'"crc32c"', b'"crc32"'),
        (b'"format":1,"c', b'"format":0,"c'),
        (b"{", b"["),
    ],
)
def test_a_manifest_that_was_changed_is_refused(before: bytes, after: bytes) -> None:
    assert before in MANIFEST.to_json()
    with pytest.raises(ObjectDamagedError, match=r"^k: "):
        LogManifest.from_json(MANIFEST.to_json().replace(before, after, 1), key="k")


def test_what_readers_must_leave_out_is_read_as_it_was_written() -> None:
    transactions = ManifestTransactions(Position(4, 1), {4: b"\x01\x80", 3: bytes(9)})
    manifest = replace(MANIFEST, transactions=transactions)
    assert LogManifest.from_json(manifest.to_json(), key="k") == manifest
    no_end = replace(MANIFEST, transactions=ManifestTransactions(None, {4: b"\1"}))
    assert LogManifest.from_json(no_end.to_json(), key="k") == no_end


@pytest.mark.parametrize(
    "transactions",
    [
        [],
        {},
        {"aborted": []},
        {"aborted": {"4": 1}},
        {"aborted": {"4": "no base64!"}},
        {"aborted": {"4": "AAAA"}},
        {"aborted": {"x": ""}},
        {"aborted": {"4": base64.b64encode(zlib.compress(bytes((16 << 20) + 1))).decode()}},
        {"aborted": {}, "read_through": [1]},
        {"aborted": {}, "read_through": ["1", 2]},
    ],
)
def test_transactions_that_cannot_be_are_refused(transactions: object) -> None:
    content = json.loads(MANIFEST.to_json())["content"] | {"transactions": transactions}
    with pytest.raises(ObjectDamagedError, match=r"^k: "):
        LogManifest.from_json(encode_checked(content), key="k")


def test_a_manifest_without_a_field_is_refused() -> None:
    content = json.loads(MANIFEST.to_json())["content"]
    for name in content:
        left = {each: value for each, value in content.items() if each != name}
        with pytest.raises(ObjectDamagedError, match=name):
            LogManifest.from_json(encode_checked(left), key="k")


def test_a_manifest_of_a_newer_release_is_named_as_such() -> None:
    fields = json.loads(MANIFEST.to_json())
    newer = json.dumps(fields | {"format": 2}).encode()
    with pytest.raises(FutureObjectVersionError, match="format 2"):
        LogManifest.from_json(newer, key="k")
    content = fields["content"]
    content["node"]["format"] = 99
    with pytest.raises(FutureObjectVersionError, match="format 99"):
        LogManifest.from_json(encode_checked(content), key="k")


def key_of(directory: str, through: int, version: int) -> str:
    return manifest_key(directory, through=through, version=version, written_ms=1_767_225_700_000)


def test_keys_are_told_apart_and_the_newest_is_found() -> None:
    directory = manifest_directory("p/", "5f0c", LOG)
    assert directory.startswith(manifests_folder("p/", "5f0c", LOG.rpartition("/")[0]))
    keys = [key_of(directory, 4, 3), key_of(directory, 9, 0), key_of(directory, 4, 17)]
    assert all(is_key(key) for key in keys)
    assert parse_manifest_key(keys[2]) == (directory, LOG, 4, 17, 1_767_225_700_000)
    assert parse_manifest_key("p/5f0c/ledgers/00/x/00000000000000000004-ab.mgo") is None
    assert newest_manifests([*keys, "p/5f0c/owner.json"]) == {directory: keys[1]}


def test_a_log_with_a_long_name_has_a_key_that_stores_take() -> None:
    directory = manifest_directory("p/", "5f0c", f"/{'n' * 300}/{'ö' * 300}")
    assert is_key(key_of(directory, 1, 1))
    parsed = parse_manifest_key(key_of(directory, 1, 1))
    assert parsed is not None
    assert parsed.log is None
    assert directory != manifest_directory("p/", "5f0c", f"/{'n' * 300}/{'ö' * 301}")
