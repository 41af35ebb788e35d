"""The files of a backup (`documents.py`)."""

import json

import pytest

from magnetar.broker.cluster.partitions.record import PartitionedTopicRecord
from magnetar.broker.features.backup.documents import (
    ClusterBackup,
    LogBackup,
    LogFile,
    Uncovered,
    sum_of,
)
from magnetar.broker.policies.model import (
    NamespaceRecord,
    Policies,
    TenantRecord,
    TopicPolicyRecord,
)
from magnetar.cursors.node import CursorNode
from magnetar.ledger.errors import FutureObjectVersionError, ObjectDamagedError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.backup_pins import objects_named
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    ManifestSchema,
    decode_checked,
    encode_checked,
)

BASE = ObjectBase("main", "5f0c/ledgers/00/x/")
NODE = LogMetadata(
    (
        LogLedger(4, 2, 10, 1, LedgerObject(ObjectState.COPIED, "ab" * 16, 0, 5, 6, 7)),
        LogLedger(5, 2, 10, 1, LedgerObject(ObjectState.COPYING, "cd" * 16, 0)),
    ),
    object_bases=(BASE,),
)
LOG = LogBackup(
    LogManifest(
        "5f0c",
        "/managed-ledgers/t/n/persistent/x",
        17,
        3,
        NODE,
        (ManifestSchema(2, 1, "AVRO", b"{}"),),
    ),
    {"s 1": CursorNode(epoch=3, mark_delete=(4, 1), batches=((4, 0, (-1, 5)),))},
    TopicPolicyRecord(policies=Policies(max_producers=3)),
    3,
    Uncovered(ledgers=1, entries=2, bytes=10, since_ms=5, is_compacted=True, cursors_rolled_back=1),
)
CLUSTER = ClusterBackup(
    name="daily",
    instance_id="5f0c",
    begun_ms=1,
    finished_ms=2,
    scope="t",
    tenants={"t": TenantRecord(admin_roles=("boss",))},
    namespaces={
        "t/n": NamespaceRecord(
            policies=Policies(max_producers=3), permissions={"reader": ("consume",)}
        )
    },
    partitioned={"t/n/persistent/y": PartitionedTopicRecord(partitions=4)},
    logs=(LogFile(log="/l", key="k", bytes=9, crc32c=8),),
    uncovered=LOG.uncovered,
)


def test_the_file_of_a_log_is_read_as_it_was_written() -> None:
    assert LogBackup.from_bytes(LOG.to_bytes(), key="k") == LOG


def test_the_cluster_file_is_read_as_it_was_written() -> None:
    assert ClusterBackup.from_bytes(CLUSTER.to_bytes(), key="k") == CLUSTER


def test_policies_that_a_newer_release_set_are_kept() -> None:
    record = NamespaceRecord.model_validate({"later": {"a": 1}})
    cluster = CLUSTER.model_copy(update={"namespaces": {"t/n": record}})
    found = ClusterBackup.from_bytes(cluster.to_bytes(), key="k")
    assert json.loads(found.namespaces["t/n"].encode())["later"] == {"a": 1}


@pytest.mark.parametrize("name", ["manifest", "cursors", "uncovered", "schemas_next"])
def test_a_file_without_a_field_is_refused(name: str) -> None:
    content = decode_checked(LOG.to_bytes(), key="k")
    del content[name]
    with pytest.raises(ObjectDamagedError, match=rf"^k: .*{name}"):
        LogBackup.from_bytes(encode_checked(content), key="k")


def test_a_changed_file_is_refused() -> None:
    for whole in (LOG.to_bytes(), CLUSTER.to_bytes()):
        changed = whole.replace(b'"max_producers":3', b'"max_producers":4')
        assert changed != whole
        with pytest.raises(ObjectDamagedError, match="checksum"):
            decode_checked(changed, key="k")


def test_a_file_of_a_newer_release_is_named_as_such() -> None:
    newer = json.dumps(json.loads(CLUSTER.to_bytes()) | {"format": 2}).encode()
    with pytest.raises(FutureObjectVersionError, match="format 2"):
        ClusterBackup.from_bytes(newer, key="k")


def test_the_file_of_a_log_pins_its_complete_objects() -> None:
    assert objects_named(LOG.to_bytes(), "k") == {BASE.key(4, "ab" * 16)}


def test_what_is_uncovered_adds_up_and_counts_from_the_oldest() -> None:
    other = Uncovered(ledgers=2, entries=3, bytes=4, since_ms=2, cursors_rolled_back=2)
    assert sum_of([LOG.uncovered, Uncovered(), other]) == Uncovered(
        ledgers=3, entries=5, bytes=14, since_ms=2, is_compacted=True, cursors_rolled_back=3
    )
    assert sum_of([]).since_ms == 0
