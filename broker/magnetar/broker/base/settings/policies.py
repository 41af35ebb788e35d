"""The broker's own values of policies: what counts where neither topic nor namespace says."""

from typing import Literal

from pydantic import Field

from magnetar.broker.base.settings.section import Section
from magnetar.broker.policies.model import BacklogPolicy, DeleteMode, SchemaCompatibility


class PolicySettings(Section):
    """A part of `BrokerSettings`. A limit or rate of 0 is none."""

    auto_topic_creation: bool = Field(
        default=True, description="Whether topics appear when they are first used."
    )
    auto_topic_type: Literal["non-partitioned", "partitioned"] = Field(
        default="non-partitioned", description="What a topic becomes that appears by itself."
    )
    auto_topic_partitions: int = Field(
        default=1, ge=1, description="Partitions of a partitioned topic that appears by itself."
    )
    partitions_max: int = Field(
        default=0,
        ge=0,
        description="Most partitions of a topic; 0 = as many as there can be, which is 100000.",
    )
    auto_subscription_creation: bool = Field(
        default=True, description="Whether a consumer may create its durable subscription."
    )
    force_delete_namespace: bool = Field(
        default=False, description="Whether a namespace may be deleted with what is in it."
    )
    force_delete_tenant: bool = Field(
        default=False, description="Whether a tenant may be deleted with what is in it."
    )
    retention_minutes: int = Field(
        default=0, ge=-1, description="Acknowledged messages stay this long; -1 = for ever."
    )
    retention_mib: int = Field(
        default=0, ge=-1, description="Acknowledged messages stay up to this size; -1 = any."
    )
    ttl_s: int = Field(
        default=0, ge=0, description="Age at which messages count as acknowledged; 0 = never."
    )
    subscription_expiration_minutes: int = Field(
        default=0, ge=0, description="Unused subscriptions are deleted after it; 0 = never."
    )
    backlog_quota_bytes: int = Field(
        default=0, ge=0, description="Largest backlog of a topic; 0 = any."
    )
    backlog_quota_s: int = Field(
        default=0, ge=0, description="Age of the oldest message in a backlog; 0 = any."
    )
    backlog_quota_policy: BacklogPolicy = Field(
        default=BacklogPolicy.HOLD, description="What happens above a backlog quota."
    )
    deduplication: bool = Field(
        default=False, description="Whether messages that are sent twice are stored once."
    )
    dedup_snapshot_entries: int = Field(
        default=1000, ge=1, description="Entries between two snapshots of deduplication's state."
    )
    dedup_snapshot_s: int = Field(
        default=120, ge=1, description="Time between two snapshots of deduplication's state."
    )
    publish_rate_messages: int = Field(
        default=0, ge=0, description="Messages per second published to a topic; 0 = any number."
    )
    publish_rate_bytes: int = Field(
        default=0, ge=0, description="Bytes per second published to a topic; 0 = any number."
    )
    dispatch_rate_messages: int = Field(
        default=0, ge=0, description="Messages per second sent from a topic; 0 = any number."
    )
    dispatch_rate_bytes: int = Field(
        default=0, ge=0, description="Bytes per second sent from a topic; 0 = any number."
    )
    subscription_dispatch_rate_messages: int = Field(
        default=0, ge=0, description="Messages per second sent from a subscription; 0 = any."
    )
    subscription_dispatch_rate_bytes: int = Field(
        default=0, ge=0, description="Bytes per second sent from a subscription; 0 = any."
    )
    subscribe_rate_per_consumer: int = Field(
        default=0, ge=0, description="SUBSCRIBEs of one consumer per period; 0 = any number."
    )
    subscribe_rate_period_s: int = Field(
        default=30, ge=1, description="The period of subscribe_rate_per_consumer."
    )
    max_producers_per_topic: int = Field(
        default=0, ge=0, description="Producers of one topic; 0 = any number."
    )
    max_consumers_per_topic: int = Field(
        default=0, ge=0, description="Consumers of one topic; 0 = any number."
    )
    max_consumers_per_subscription: int = Field(
        default=10_000,
        ge=0,
        description="Consumers of one subscription; 0 = any number. By default as many as come and "
        "go without holding up others.",
    )
    max_topics_per_namespace: int = Field(
        default=0, ge=0, description="Topics of one namespace, partitions counted; 0 = any."
    )
    delayed_delivery: bool = Field(
        default=True, description="Whether messages may ask to be delivered at a later time."
    )
    delayed_delivery_tick_ms: int = Field(
        default=1000, ge=1, description="Messages may be this much late for their time."
    )
    delayed_delivery_max_delay_ms: int = Field(
        default=0, ge=0, description="Longest delay of a message; 0 = any."
    )
    inactive_topic_deletion: bool = Field(
        default=True, description="Whether topics that nobody uses are deleted."
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
    encryption_required: bool = Field(
        default=False, description="Whether producers must encrypt their messages."
    )
    schema_compatibility: SchemaCompatibility = Field(
        default=SchemaCompatibility.FULL, description="Which schema may follow which on a topic."
    )
    schema_validation_enforced: bool = Field(
        default=False, description="Whether producers without a schema are refused by topics with."
    )
    allows_schema_update: bool = Field(
        default=True, description="Whether producers may bring new versions of a schema."
    )
    unacked_per_consumer_max: int = Field(
        default=50_000, ge=0, description="Unacknowledged messages of a Shared consumer; 0 = off."
    )
    unacked_per_subscription_max: int = Field(
        default=200_000, ge=0, description="The same for a Shared subscription; 0 = off."
    )
    subscriptions_per_topic_max: int = Field(
        default=2_000, ge=1, description="Subscriptions of one topic; each is a node and a cursor."
    )
    ensemble_size: int = Field(default=1, ge=1, le=32, description="Bookies of a topic's ledger.")
    write_quorum: int = Field(default=1, ge=1, le=32, description="Copies of each entry.")
    ack_quorum: int = Field(
        default=1, ge=1, le=32, description="Copies that are durable before a publish is answered."
    )
