"""Values that earlier commits stored say to this one what they said then (`samples/`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.arrow.change_token import Reached, parse_token
from magnetar.arrow.iceberg.watermark import Mark, parse_watermark
from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.gc.compaction_record import decode_record
from magnetar.bookie.indexes.location_index import RunMove
from magnetar.bookie.integrity.horizon_file import read_horizon
from magnetar.bookie.integrity.loss_mark import is_check_needed, is_pass_needed
from magnetar.bookie.integrity.scrub_position import ScrubPosition, decode_position
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.broker.base.entry_metadata import EntryMetadata, metadata_in
from magnetar.broker.cluster.partitions.record import PartitionedTopicRecord
from magnetar.broker.features.backup.documents import ClusterBackup, LogBackup
from magnetar.broker.features.compaction.compacted_ledger import (
    CompactionRecord,
    record_in,
    unpack,
)
from magnetar.broker.features.delayed.bucket_ledgers import StoredBucket, buckets_in
from magnetar.broker.features.delayed.index import Bucket
from magnetar.broker.features.message_index.index_record import PROPERTY, IndexRecord
from magnetar.broker.features.message_index.index_record import record_in as index_record_in
from magnetar.broker.features.replication.acks import Acks, OriginAcks
from magnetar.broker.features.replication.markers import (
    Request,
    Response,
    Snapshot,
    Update,
    decode_marker,
)
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.features.scalable.record import ChangeKind, ScalableTopicRecord
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.coordinator_state import CoordinatorState, Status
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.pending_acks import Ack, load_all
from magnetar.broker.policies.dynamic import DynamicSettingsRecord
from magnetar.broker.policies.model import (
    AutoTopicCreation,
    BacklogPolicy,
    BacklogQuota,
    ClusterRecord,
    DeleteMode,
    InactiveTopic,
    NamespaceRecord,
    PublishRate,
    QuotaType,
    Retention,
    TenantRecord,
    TopicPolicyRecord,
    decode,
)
from magnetar.broker.policies.resources import (
    BookieRacksRecord,
    ResourceGroupRecord,
    ResourceQuotaRecord,
)
from magnetar.broker.schemas.model import SchemaData, SchemaType, StoredSchema
from magnetar.broker.schemas.record import SchemaEntry, SchemaRecord
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.log_message import Message, decode_messages
from magnetar.ledger.offloading.log_manifest import LogManifest, ManifestSchema
from magnetar.ledger.offloading.object_format import (
    HEADER_BYTES,
    ObjectFooter,
    ObjectName,
    check_header,
    decode_footer,
    run_payloads,
)
from magnetar.ledger.position import Position
from magnetar.ledger.system import SystemDisk
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.checkpoint import Checkpoint, CheckpointKind
from magnetar.sdk.wire import open_payload

FIRST = Path(__file__).parent / "samples" / "03daffae"
TIERED = Path(__file__).parent / "samples" / "5d891d5e"
REPLICATED = Path(__file__).parent / "samples" / "f0c3b827"
SCALABLE = Path(__file__).parent / "samples" / "1db3ce98"
ACKS = Path(__file__).parent / "samples" / "cdeda097"
INDEXED = Path(__file__).parent / "samples" / "d189ec69"
MIGRATED = Path(__file__).parent / "samples" / "6dc1c4fd"
CHECKPOINTS = Path(__file__).parent / "samples" / "fc4f06b1"
ICEBERG = Path(__file__).parent / "samples" / "577cd69d"
HELD = Path(__file__).parent / "samples" / "50b6f4da"
BUCKETED = Path(__file__).parent / "samples" / "d8ba3c0e"
TOKENS = Path(__file__).parent / "samples" / "f11544d8"
FORMATS = Path(__file__).parents[2] / "docs" / "formats"
BEGUN_MS = 1_767_225_600_000
LOG = "/managed-ledgers/public/default/persistent/flights"

IN_SET = "sets/"
ON_THE_WIRE = "nothing is stored in this format"
SAMPLED = {
    "backup.md": "backup-log.json backup-cluster.json",
    "bookie-frame.md": ON_THE_WIRE,
    "brokers.md": IN_SET,
    "change-token.md": "change-token.json",
    "checkpoint.md": "checkpoint.bin",
    "compacted-ledger.md": "compacted-entry.bin compacted-record.json",
    "compaction.md": "compaction-record.bin",
    "cookie.md": IN_SET,
    "cursor-record.md": IN_SET,
    "delayed-index.md": "delayed-buckets.json delayed-segment.bin",
    "entry-log.md": IN_SET,
    "entry-metadata.md": "indexed-entry.bin message-index.json",
    "entry.md": IN_SET,
    "iceberg-archive.md": "iceberg-watermark.json",
    "index.md": IN_SET,
    "integrity.md": "integrity-check integrity-horizon scrub-position",
    "journal.md": IN_SET,
    "ledger-metadata.md": IN_SET,
    "log-message.md": "log-messages.bin",
    "managed-log.md": IN_SET,
    "manifest.md": "manifest.json",
    "object.md": "ledger.object",
    "page-index.md": IN_SET,
    "policies.md": "cluster.json tenant.json namespace.json topic-policies.json "
    "partitioned-topic.json dynamic-configuration.json resource-group.json resource-quota.json "
    "bookie-racks.json",
    "pulsar-frame.md": ON_THE_WIRE,
    "scalable-topics.md": "scalable-topic.json scalable-topic-migrating.json "
    "scalable-topic-pruned.json scalable-topic-held.json scalable-topic-bucketed.json "
    "partitioned-topic-final.json",
    "schemas.md": "schema-record.json schema-entry.json",
    "subscription-acks.md": "subscription-acks.json",
    "subscription-markers.md": "subscription-markers.json",
    "transactions.md": "coordinator-log.json coordinator-snapshot.json topic-transactions.json",
    "under-replication.md": IN_SET,
}
"""Where values of each page of docs/formats are kept that an earlier commit wrote."""


def first(name: str) -> bytes:
    return (FIRST / name).read_bytes()


def properties(name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(first(name))
    return found


def test_every_stored_format_has_a_sample_that_an_earlier_commit_wrote() -> None:
    pages = {page.name for page in FORMATS.glob("*.md")} - {"README.md"}
    assert pages == SAMPLED.keys(), "a new page: add a sample, see README.md beside this file"
    named = {
        name
        for where in SAMPLED.values()
        if where not in (IN_SET, ON_THE_WIRE)
        for name in where.split()
    }
    assert named == {
        path.name
        for folder in (
            *(FIRST, TIERED, REPLICATED, SCALABLE, ACKS, MIGRATED, CHECKPOINTS, INDEXED),
            ICEBERG,
            HELD,
            BUCKETED,
            TOKENS,
        )
        for path in folder.iterdir()
    }


def test_the_record_of_a_scalable_topic_says_its_layout_and_the_change_under_way() -> None:
    value = (SCALABLE / "scalable-topic.json").read_bytes()
    record = decode(ScalableTopicRecord, "/topics/public/default/flights", value)
    assert (record.epoch, record.next_segment_id, record.properties) == (2, 5, {"k": "v"})
    assert (record.created_ms, record.is_deleted) == (BEGUN_MS, False)
    assert [(each.id, each.hash_start, each.hash_end) for each in record.active] == [
        (2, 0, 0x3FFF),
        (3, 0x4000, 0x7FFF),
        (1, 0x8000, 0xFFFF),
    ]
    parent = record.find(0)
    assert parent is not None
    assert (parent.is_sealed, parent.children, parent.sealed_epoch) == (True, (2, 3), 2)
    change = record.change
    assert change is not None
    assert (change.kind, change.parents) == (ChangeKind.MERGE, (3, 1))
    assert [(each.id, each.parents) for each in change.children] == [(4, (3, 1))]


def test_a_checkpoint_says_how_far_each_segment_is_read() -> None:
    read = Checkpoint.from_bytes((CHECKPOINTS / "checkpoint.bin").read_bytes())
    assert read.kind is CheckpointKind.POSITIONS
    assert dict(read.positions) == {
        0: MessageId.LATEST,
        1: MessageId(7, 41, 3),
        2: MessageId.EARLIEST,
    }


def test_the_watermark_of_an_iceberg_table_says_how_far_its_topics_are_archived() -> None:
    assert parse_watermark((ICEBERG / "iceberg-watermark.json").read_text()) == {
        "persistent://public/default/flights": Mark(17, 4711),
        "persistent://public/default/orders-partition-0": Mark(21, 3, entries_left=120),
    }


def test_the_token_of_a_change_feed_says_where_it_goes_on() -> None:
    assert parse_token((TOKENS / "change-token.json").read_text()) == {
        "persistent://public/default/prices-partition-0": Reached(17, 4711),
        "persistent://public/default/prices-partition-1": Reached(21, 99, is_end=True),
    }


def scalable(name: str) -> ScalableTopicRecord:
    value = (MIGRATED / name).read_bytes()
    return decode(ScalableTopicRecord, "/topics/public/default/flights", value)


def test_the_record_of_a_migration_under_way_says_which_logs_become_segments() -> None:
    record = scalable("scalable-topic-migrating.json")
    assert record.is_migrating
    assert [each.legacy for each in record.legacy] == [0, 1]
    assert record.change is not None
    assert [(each.id, each.parents) for each in record.change.children] == [
        (2, (0, 1)),
        (3, (0, 1)),
    ]
    value = (MIGRATED / "partitioned-topic-final.json").read_bytes()
    assert decode(PartitionedTopicRecord, "/path", value).is_final


def test_the_record_of_a_migrated_topic_says_what_was_pruned_and_how_it_is_scaled() -> None:
    record = scalable("scalable-topic-pruned.json")
    assert [each.id for each in record.pruned] == [0]
    assert [each.id for each in record.sealed] == [1, 2]
    assert (record.epoch, record.splits, record.merges) == (6, 1, 0)
    last = record.last_change
    assert last is not None
    assert (last.kind, last.parents, last.stalled_ms) == (ChangeKind.SPLIT, (2,), 20)
    policy = record.auto_scale
    assert policy is not None
    assert (policy.is_on, policy.segments_max, policy.split_msg_rate_in) == (True, 8, 20_000.0)


def test_the_record_of_a_topic_says_which_subscriptions_go_back_in_it() -> None:
    value = (HELD / "scalable-topic-held.json").read_bytes()
    record = decode(ScalableTopicRecord, "/topics/public/default/flights", value)
    assert record.seeks == 3
    assert [(each.id, each.subscription, each.segment) for each in record.holds] == [
        (2, "whole", None),
        (3, "part", 1),
    ]
    assert record.holds[0].begun_ms == BEGUN_MS + 100_000


def test_the_record_of_a_topic_says_how_many_entry_buckets_its_segments_have() -> None:
    value = (BUCKETED / "scalable-topic-bucketed.json").read_bytes()
    record = decode(ScalableTopicRecord, "/topics/public/default/flights", value)
    assert [(each.id, each.entry_buckets) for each in record.segments] == [
        (0, 1),
        (1, 8),
        (2, 4),
        (3, 4),
    ]
    change = record.change
    assert change is not None
    assert (change.kind, change.parents) == (ChangeKind.REBUCKET, (2,))
    assert [(each.id, each.entry_buckets) for each in change.children] == [(4, 1)]


# What bookies store


def test_the_messages_of_a_log_are_read() -> None:
    assert decode_messages(first("log-messages.bin")) == [
        Message(b"plain"),
        Message(b"", b"key"),
        Message(b"x", b"", (("h", b"\0v"),)),
    ]


def test_the_record_of_a_compaction_names_its_logs_and_moves() -> None:
    record = decode_record(first("compaction-record.bin"), log_id=3)
    assert record.replaced == (1, 2)
    assert list(record.batches(10)) == [
        [
            RunMove(7, 0, 9, RunLocation(1, 64, 500, 10, True), RunLocation(3, 80, 500, 10, False)),
            RunMove(8, 5, 5, RunLocation(2, 64, 50, 1, False), None),
        ]
    ]


def test_a_bookie_remembers_that_it_lost_data() -> None:
    disk, directories = SystemDisk(), [str(FIRST)]
    assert is_check_needed(disk, directories)
    assert is_pass_needed(disk, directories)
    assert read_horizon(disk, directories) == LossHorizon(41, frozenset({3, 17}))


def test_a_scrubber_goes_on_where_it_was() -> None:
    assert decode_position(first("scrub-position")) == ScrubPosition(
        pass_started_ms=BEGUN_MS, ledger_id=9, entry_id=4, bytes_done=12_345
    )


# What topics store


def test_a_compacted_ledger_is_named_and_its_entries_are_read() -> None:
    record = record_in(properties("compacted-record.json"), of="a topic")
    assert record == CompactionRecord(ledger_id=12, horizon=(5, 99))
    assert unpack(first("compacted-entry.bin")) == (Position(5, 6), b"\x0e\x01entry")


def test_delayed_messages_are_due_when_they_were() -> None:
    (stored,) = buckets_in(properties("delayed-buckets.json"), of="a topic")
    assert stored == StoredBucket(ledger_id=20, records=2, starts_ms=[BEGUN_MS], last=(5, 8))
    bucket = Bucket(
        [first("delayed-segment.bin")], stored.starts_ms, records=2, last=Position(*stored.last)
    )
    due: list[Position] = []
    bucket.take_due(BEGUN_MS, 10, due)
    assert due == [Position(5, 7)]
    bucket.take_due(BEGUN_MS + 500, 10, due)
    assert due == [Position(5, 7), Position(5, 8)]


def test_schemas_are_read_in_their_versions() -> None:
    record = decode(SchemaRecord, "/schemas/x", first("schema-record.json"))
    assert [each.version for each in record.versions] == [0, 1, 2]
    assert [each.fingerprint for each in record.current] == ["cd"]
    entry = decode(SchemaEntry, "entry 0", first("schema-entry.json"))
    assert entry.stored(2) == StoredSchema(
        2, 3, SchemaData(SchemaType.AVRO, b'{"type": "string"}', {"p": "1"})
    )


def test_a_coordinator_knows_its_transactions_from_its_log() -> None:
    state = CoordinatorState(3, finished_max=10)
    for record in json.loads(first("coordinator-log.json")):
        state.apply(record)
    check_coordinator(state)
    restored = CoordinatorState(3, finished_max=10)
    restored.apply(json.loads(first("coordinator-snapshot.json")))
    check_coordinator(restored)


def check_coordinator(state: CoordinatorState) -> None:
    assert state.next_least == 3
    assert dict(state.finished) == {0: True}
    found = [(each.id, each.owner, each.status) for each in state.transactions.values()]
    assert found == [
        (TransactionId(3, 1), "", Status.ABORTING),
        (TransactionId(3, 2), "bob", Status.OPEN),
    ]
    assert {each.deadline_ms for each in state.transactions.values()} == {BEGUN_MS + 60_000}


def test_a_topic_knows_its_transactions_from_its_snapshot() -> None:
    record = json.loads(first("topic-transactions.json"))
    assert (record["kind"], record["through"]) == ("snapshot", [5, 0])
    buffer = BufferState.load(record["buffer"])
    assert list(buffer.open) == [TransactionId(3, 5)]
    assert Position(5, 3) in buffer.open[TransactionId(3, 5)].positions
    assert Position(5, 1) in buffer.aborted
    assert buffer.ended.was_committed(TransactionId(3, 2)) is True
    assert buffer.ended.was_committed(TransactionId(3, 4)) is False
    pending = load_all(record["pending"])["s"]
    assert pending.cumulative == (TransactionId(3, 6), Ack(Position(4, 9)))
    individual = pending.transactions[TransactionId(3, 5)].individual
    assert list(individual.values()) == [Ack(Position(4, 0)), Ack(Position(4, 1), (-4,), 6)]


# What brokers store about tenants, namespaces and topics


def test_a_namespace_keeps_its_policies() -> None:
    record = decode(NamespaceRecord, "/n", first("namespace.json"))
    policies = record.policies
    assert policies.retention == Retention(minutes=60, mib=-1)
    assert policies.message_ttl_s == 30
    assert policies.deduplication is True
    assert policies.publish_rate == PublishRate(messages=10, bytes=0)
    assert policies.backlog_quotas == {
        QuotaType.SIZE: BacklogQuota(
            bytes=1000, seconds=-1, policy=BacklogPolicy("producer_exception")
        )
    }
    assert policies.own("max_topics") == 7
    assert policies.own("encryption_required") is True
    assert policies.own("auto_topic_creation") == AutoTopicCreation(
        allowed=True, is_partitioned=True, partitions=3
    )
    assert record.replication_clusters == ("here",)
    assert record.permissions == {"reader": ("consume",)}
    assert record.subscription_permissions == {"s": ("reader",)}
    assert record.properties == {"k": "v"}


def test_a_topic_keeps_its_policies() -> None:
    policies = decode(TopicPolicyRecord, "/t", first("topic-policies.json")).policies
    assert policies.max_producers == 3
    assert policies.inactive_topic == InactiveTopic(
        is_on=True, mode=DeleteMode.NO_SUBSCRIPTIONS, max_s=60
    )


RECORDS: list[tuple[str, type[Any], dict[str, Any]]] = [
    ("cluster.json", ClusterRecord, {"data": {"serviceUrl": "http://b:8080"}}),
    ("tenant.json", TenantRecord, {"admin_roles": ("boss",), "allowed_clusters": ("here",)}),
    ("partitioned-topic.json", PartitionedTopicRecord, {"partitions": 4, "properties": {"k": "v"}}),
    ("dynamic-configuration.json", DynamicSettingsRecord, {"values": {"message_ttl_s": "90"}}),
    ("resource-group.json", ResourceGroupRecord, {"data": {"publishRateInMsgs": 5}}),
    ("resource-quota.json", ResourceQuotaRecord, {"data": {"msgRateIn": 40.0}}),
    (
        "bookie-racks.json",
        BookieRacksRecord,
        {"groups": {"default": {"b1:3181": {"rack": "/r1", "hostname": "h"}}}},
    ),
]


@pytest.mark.parametrize(("name", "kind", "fields"), RECORDS, ids=lambda each: str(each)[:30])
def test_a_record_says_what_it_said(name: str, kind: type[Any], fields: dict[str, Any]) -> None:
    assert decode(kind, "/where", first(name)) == kind(**fields)


# What lies in object stores


def test_the_object_of_a_ledger_has_its_entries() -> None:
    data = (TIERED / "ledger.object").read_bytes()
    name = ObjectName(7, bytes(range(16)))
    check_header(data[:HEADER_BYTES], name)
    footer = decode_footer(data, name, len(data))
    assert isinstance(footer, ObjectFooter)
    codec = packet_codec(7, DigestType.CRC32C, b"a password")
    entries = [
        payload
        for number, run in enumerate(footer.runs)
        for payload in run_payloads(
            data[run.offset : run.offset + run.size_bytes], footer, number, codec
        )
    ]
    assert entries == [b"entry %d" % number for number in range(9)]
    described = footer.description
    assert (described.instance_id, described.log, described.made_by) == ("5f0c", LOG, "5d891d5e")
    assert (described.first_publish_ms, described.last_publish_ms) == (BEGUN_MS, BEGUN_MS + 8)
    assert described.schema_versions == (0,)


def check_manifest(manifest: LogManifest) -> None:
    assert (manifest.instance_id, manifest.log, manifest.version) == ("5f0c", LOG, 17)
    assert manifest.written_ms == 1_767_225_700_000
    offloaded, other = manifest.node.ledgers
    assert (offloaded.ledger_id, offloaded.entries, other.ledger_id) == (7, 9, 8)
    assert offloaded.object is not None
    assert offloaded.object.attempt == bytes(range(16)).hex()
    assert other.object is None
    assert manifest.schemas == (ManifestSchema(2, 1, "AVRO", b'{"type": "string"}', {"p": "1"}),)


def test_a_manifest_says_what_its_log_had() -> None:
    check_manifest(LogManifest.from_json((TIERED / "manifest.json").read_bytes(), key="k"))


def test_a_backup_has_what_a_restore_needs() -> None:
    log = LogBackup.from_bytes((TIERED / "backup-log.json").read_bytes(), key="k")
    check_manifest(log.manifest)
    cursor = log.cursors["s 1"]
    assert (cursor.epoch, cursor.mark_delete) == (3, (7, 1))
    assert cursor.batches == ((7, 3, (-1, 5)),)
    assert log.topic_policies is not None
    assert log.topic_policies.policies.max_producers == 3
    assert log.schemas_next == 3
    cluster = ClusterBackup.from_bytes((TIERED / "backup-cluster.json").read_bytes(), key="k")
    assert (cluster.name, cluster.scope, cluster.instance_id) == ("daily", "public", "5f0c")
    assert cluster.tenants["public"].admin_roles == ("boss",)
    assert cluster.namespaces["public/default"].permissions == {"reader": ("consume",)}
    assert cluster.partitioned["public/default/persistent/y"].partitions == 4
    assert [each.key for each in cluster.logs] == ["k"]
    assert cluster.uncovered == log.uncovered
    assert (log.uncovered.entries, log.uncovered.is_compacted) == (2, True)


# What brokers store in front of messages


def test_an_entry_says_its_index_and_the_log_where_it_goes_on() -> None:
    entry = (INDEXED / "indexed-entry.bin").read_bytes()
    assert metadata_in(entry) == EntryMetadata(BEGUN_MS, 1202, 1000)
    metadata, body_at = open_payload(entry)
    assert (metadata.num_messages_in_batch, entry[body_at:]) == (3, b"body")
    node = {PROPERTY: (INDEXED / "message-index.json").read_text()}
    assert index_record_in(node) == IndexRecord(1203, is_written=True)


# What clusters tell each other


def test_markers_of_single_acknowledgements_say_what_they_said() -> None:
    ((name, stored),) = json.loads((ACKS / "subscription-acks.json").read_text()).items()
    entry = bytes.fromhex(stored)
    metadata, body_at = open_payload(entry)
    assert (metadata.producer_name, metadata.publish_time) == ("pulsar.marker", BEGUN_MS)
    assert (str(metadata.marker_type), list(metadata.replicate_to)) == (name, [])
    east, west = Source("east", 1 << 62), Source("west", 7)
    assert decode_marker(metadata.marker_type, entry[body_at:]) == Acks(
        "s",
        {
            east: OriginAcks((AckRange(5, 0, 6), AckRange(9, 300, 300))),
            west: OriginAcks((), (BatchAck(8, 2, (1 << 99) | 5),)),
        },
        is_whole=True,
    )


def test_markers_say_what_they_said() -> None:
    there = {"north": Position(9, 4), "west": Position(8, -1)}
    found: dict[str, tuple[Any, list[str]]] = {}
    for name, stored in json.loads((REPLICATED / "subscription-markers.json").read_text()).items():
        entry = bytes.fromhex(stored)
        metadata, body_at = open_payload(entry)
        assert (metadata.producer_name, metadata.publish_time) == ("pulsar.marker", BEGUN_MS)
        assert str(metadata.marker_type) == name
        marker = decode_marker(metadata.marker_type, entry[body_at:])
        found[name] = (marker, list(metadata.replicate_to))
    assert found == {
        "10": (Request("id", "east"), []),
        "11": (Response("id", "west", Position(8, -1)), ["east"]),
        "12": (Snapshot("id", Position(5, 6), there), ["east"]),
        "13": (Update("s", there), []),
    }
