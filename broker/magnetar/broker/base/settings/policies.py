"""The broker's defaults of policies: they apply where neither topic nor namespace has a policy."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.policies.model import BacklogPolicy, DeleteMode, SchemaCompatibility


class PolicySettings(BaseModel):
    """Defaults of policies, a part of `BrokerSettings`. A limit or rate of 0 means none.

    An instance of this class alone, as in tests, has the defaults and reads no environment.
    """

    model_config = ConfigDict(frozen=True)

    auto_topic_creation: bool = Field(
        default=True, description="Whether topics are created at their first use."
    )
    auto_topic_type: Literal["non-partitioned", "partitioned"] = Field(
        default="non-partitioned", description="Type of topics that are created at their first use."
    )
    auto_topic_partitions: int = Field(
        default=1,
        ge=1,
        description="Partitions of a partitioned topic that is created at its first use.",
    )
    partitions_max: int = Field(
        default=0,
        ge=0,
        description="Maximum partitions of a topic; 0 = 100000, the highest possible number.",
    )
    auto_subscription_creation: bool = Field(
        default=True, description="Whether a consumer may create its durable subscription."
    )
    force_delete_namespace: bool = Field(
        default=False, description="Whether a namespace may be deleted together with its topics."
    )
    force_delete_tenant: bool = Field(
        default=False, description="Whether a tenant may be deleted together with its namespaces."
    )
    retention_minutes: int = Field(
        default=0, ge=-1, description="Acknowledged messages are kept this long; -1 = forever."
    )
    retention_mib: int = Field(
        default=0,
        ge=-1,
        description="Acknowledged messages are kept up to this size; -1 = no limit.",
    )
    ttl_s: int = Field(
        default=0, ge=0, description="Age at which messages count as acknowledged; 0 = never."
    )
    subscription_expiration_minutes: int = Field(
        default=0, ge=0, description="Unused subscriptions are deleted after this time; 0 = never."
    )
    backlog_quota_bytes: int = Field(
        default=0, ge=0, description="Largest backlog of a topic, in bytes; 0 = no limit."
    )
    backlog_quota_s: int = Field(
        default=0,
        ge=0,
        description="Greatest age of the oldest message in a backlog; 0 = no limit.",
    )
    backlog_quota_policy: BacklogPolicy = Field(
        default=BacklogPolicy.HOLD, description="Action when a backlog exceeds its quota."
    )
    deduplication: bool = Field(
        default=False, description="Whether messages that are sent twice are stored once."
    )
    dedup_snapshot_entries: int = Field(
        default=1000, ge=1, description="Entries between two snapshots of the deduplication state."
    )
    dedup_snapshot_s: int = Field(
        default=120, ge=1, description="Time between two snapshots of the deduplication state."
    )
    publish_rate_messages: int = Field(
        default=0, ge=0, description="Messages per second published to a topic; 0 = no limit."
    )
    publish_rate_bytes: int = Field(
        default=0, ge=0, description="Bytes per second published to a topic; 0 = no limit."
    )
    dispatch_rate_messages: int = Field(
        default=0, ge=0, description="Messages per second sent from a topic; 0 = no limit."
    )
    dispatch_rate_bytes: int = Field(
        default=0, ge=0, description="Bytes per second sent from a topic; 0 = no limit."
    )
    subscription_dispatch_rate_messages: int = Field(
        default=0, ge=0, description="Messages per second sent from a subscription; 0 = no limit."
    )
    subscription_dispatch_rate_bytes: int = Field(
        default=0, ge=0, description="Bytes per second sent from a subscription; 0 = no limit."
    )
    replicator_dispatch_rate_messages: int = Field(
        default=0,
        ge=0,
        description="Messages per second sent from a topic to another cluster; 0 = no limit.",
    )
    replicator_dispatch_rate_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes per second sent from a topic to another cluster; 0 = no limit.",
    )
    subscribe_rate_per_consumer: int = Field(
        default=0, ge=0, description="SUBSCRIBE requests of one consumer per period; 0 = no limit."
    )
    subscribe_rate_period_s: int = Field(
        default=30, ge=1, description="The period of subscribe_rate_per_consumer."
    )
    max_producers_per_topic: int = Field(
        default=0, ge=0, description="Producers of one topic; 0 = no limit."
    )
    max_consumers_per_topic: int = Field(
        default=0, ge=0, description="Consumers of one topic; 0 = no limit."
    )
    max_consumers_per_subscription: int = Field(
        default=10_000,
        ge=0,
        description="Consumers of one subscription; 0 = no limit. The default is what a broker "
        "handles without delaying other clients.",
    )
    max_topics_per_namespace: int = Field(
        default=0, ge=0, description="Topics of one namespace, partitions counted; 0 = no limit."
    )
    delayed_delivery: bool = Field(
        default=True, description="Whether producers may delay the delivery of a message."
    )
    delayed_delivery_tick_ms: int = Field(
        default=1000, ge=1, description="Delayed messages may be delivered up to this much late."
    )
    delayed_delivery_max_delay_ms: int = Field(
        default=0, ge=0, description="Longest delay of a message; 0 = no limit."
    )
    inactive_topic_deletion: bool = Field(
        default=True, description="Whether unused topics are deleted."
    )
    entry_metadata: bool = Field(
        default=False,
        description="Whether each entry is stored with the index of its last message and with the "
        "broker's time, so that backlogs in messages are exact. Off as in Pulsar; adds about 20 "
        "bytes to an entry.",
    )
    unsubscribed_retention: bool = Field(
        default=False,
        description="Whether a topic without a subscription keeps its messages, and is not deleted "
        "as unused while it has some. A retention policy bounds them. True in a standalone server.",
    )
    inactive_topic_mode: DeleteMode = Field(
        default=DeleteMode.NO_SUBSCRIPTIONS, description="When a topic counts as unused."
    )
    inactive_topic_max_s: int = Field(
        default=60, ge=1, description="Time after which an unused topic is deleted."
    )
    compaction_threshold_bytes: int = Field(
        default=0, ge=0, description="Uncompacted bytes at which a topic is compacted; 0 = never."
    )
    offload_threshold_bytes: int = Field(
        default=-1,
        ge=-1,
        description="The newest bytes of a topic that stay on bookies; older ledgers move to the "
        "object store. 0 = all closed ledgers move, -1 = size is no criterion.",
    )
    offload_threshold_s: int = Field(
        default=-1,
        ge=-1,
        description="Ledgers that were closed longer ago than this move to the object store; -1 = "
        "age is no criterion.",
    )
    offload_deletion_lag_s: int = Field(
        default=4 * 60 * 60,
        ge=-1,
        description="How long bookies keep a ledger after it was copied to the object store; -1 = "
        "forever.",
    )
    encryption_required: bool = Field(
        default=False, description="Whether producers must encrypt their messages."
    )
    schema_compatibility: SchemaCompatibility = Field(
        default=SchemaCompatibility.FULL, description="Compatibility check for new schema versions."
    )
    schema_validation_enforced: bool = Field(
        default=False, description="Whether topics with a schema reject producers without one."
    )
    allows_schema_update: bool = Field(
        default=True, description="Whether producers may register new schema versions."
    )
    unacked_per_consumer_max: int = Field(
        default=50_000, ge=0, description="Unacknowledged messages of a Shared consumer; 0 = off."
    )
    unacked_per_subscription_max: int = Field(
        default=200_000,
        ge=0,
        description="Unacknowledged messages of a Shared subscription; 0 = off.",
    )
    subscriptions_per_topic_max: int = Field(
        default=2_000,
        ge=1,
        description="Subscriptions of one topic. Each has a metadata node and a cursor.",
    )
    ensemble_size: int = Field(default=1, ge=1, le=32, description="Bookies of a topic's ledger.")
    write_quorum: int = Field(default=1, ge=1, le=32, description="Copies of each entry.")
    ack_quorum: int = Field(
        default=1, ge=1, le=32, description="Copies that are durable before a publish is confirmed."
    )
