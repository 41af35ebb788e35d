"""Replication of one broker: connections to other clusters, and shared objects."""

import random
from collections.abc import Mapping
from typing import Any

from magnetar.broker.base.errors import NotThereError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.partitions import PartitionedTopics
from magnetar.broker.features.replication.remotes import RemoteClusters
from magnetar.broker.features.replication.replication import ReplicationSurroundings
from magnetar.broker.features.replication.sending import SendingSurroundings
from magnetar.broker.features.replication.subscriptions import ReplicatedSubscriptionsSurroundings
from magnetar.broker.policies.model import ClusterRecord, cluster_path
from magnetar.broker.policies.records import read_record
from magnetar.broker.schemas.model import version_of_bytes, wire_of_schema
from magnetar.broker.schemas.record import schema_id
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb


def replication_surroundings(
    settings: BrokerSettings,
    store: MetadataStore,
    schemas: SchemaRegistry,
    *,
    clock: Clock,
    random: random.Random,
) -> ReplicationSurroundings:
    """Return the objects that copy a broker's topics to other clusters."""

    async def read(name: str) -> Mapping[str, Any]:
        found = await read_record(store, ClusterRecord, cluster_path(name))
        if found is None:
            raise NotThereError(f"there is no cluster {name}: register it by `clusters create`")
        return found[0].data

    async def schema_of(topic: TopicName, version: bytes) -> pb.Schema:
        stored = await schemas.get(topic, version_of_bytes(version))
        return wire_of_schema(stored.schema, schema_id(topic))

    partitioned = PartitionedTopics(store, partitions_max=settings.partitions_max, clock=clock)

    async def partitions_of(topic: TopicName) -> int:
        record = await partitioned.find(topic)
        return record.partitions if record is not None else 0

    return ReplicationSurroundings(
        RemoteClusters(read, timeout_ms=settings.replication_timeout_ms),
        SendingSurroundings(settings.cluster_name, clock, schema_of, partitions_of, settings),
        random,
        starts_at_earliest=settings.replication_start_at == "earliest",
        subscriptions=ReplicatedSubscriptionsSurroundings(
            settings.cluster_name, clock, random, settings
        ),
    )
