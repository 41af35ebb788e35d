"""Bounds of topics: of reads and dispatch, of deduplication, and of delayed messages.

A part of the broker is given the settings that concern it under the name of their section.
`BrokerSettings` has all sections, so the settings of the broker are handed on as they are.
"""

from pydantic import Field

from magnetar.broker.base.settings.section import Section

_MIB = 1 << 20


class ReadSettings(Section):
    """Reads of entries that the tail cache does not have."""

    read_ahead_bytes: int = Field(
        default=_MIB, ge=1, description="Size of one read behind the tail; two are held at most."
    )
    read_ahead_entries: int = Field(
        default=5_000, ge=1, description="Entries of one read behind the tail."
    )
    read_retry_ms: int = Field(
        default=100, ge=1, description="Pause after a failed read; doubles up to the maximum."
    )
    read_retry_ms_max: int = Field(default=5_000, ge=1, description="Longest pause between reads.")


class DispatchSettings(ReadSettings):
    """Batch sizes, look-ahead and delays of dispatchers."""

    dispatch_bytes_max: int = Field(
        default=512 * 1024,
        ge=1,
        description="Bytes that one dispatcher writes before others get their turn.",
    )
    round_robin_messages_max: int = Field(
        default=20, ge=1, description="Messages a Shared consumer gets before the next one's turn."
    )
    chunked_messages_max: int = Field(
        default=1_000,
        ge=1,
        description="Unfinished chunked messages of one Shared subscription whose consumer is "
        "remembered; more, and the oldest is forgotten.",
    )
    key_shared_consistent_hashing: bool = Field(
        default=True,
        description="Consumers of a Key_Shared subscription share hashes by a ring; false: each "
        "gets half of the widest range (subscriptionKeySharedUseConsistentHashing of Pulsar).",
    )
    look_ahead_per_consumer_max: int = Field(
        default=2_000,
        ge=1,
        description="Entries for each consumer of a Key_Shared subscription that may wait for "
        "slower ones while later ones go on.",
    )
    look_ahead_per_subscription_max: int = Field(
        default=20_000, ge=1, description="The same for all its consumers together."
    )
    look_ahead_bytes_max: int = Field(
        default=4 * _MIB,
        ge=0,
        description="Bytes of such entries that a subscription keeps; the others are read again.",
    )
    look_ahead_patience_ms: int = Field(
        default=100,
        ge=0,
        description="Time that slower consumers have to take what waits for them, before more is "
        "left behind than can be kept.",
    )
    failover_delay_ms: int = Field(
        default=1_000,
        ge=0,
        description="Wait before a newly chosen Failover consumer is sent to, the first one "
        "included: for acks of the former one, and for the others of its group.",
    )


class TopicSettings(DispatchSettings):
    """A topic, and its producers and subscriptions."""

    producers_waiting_per_topic_max: int = Field(
        default=1_000,
        ge=0,
        description="Producers that wait to have one topic for themselves; more are refused.",
    )
    seek_return_timeout_ms: int = Field(
        default=60_000,
        ge=1,
        description="A reader's place is kept this long after a seek closed its consumer.",
    )


class DeduplicationSettings(ReadSettings):
    """Bounds of deduplication: producer names, and snapshots of their sequence ids."""

    dedup_snapshot_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two looks at whether a topic's snapshot is due; 0: never.",
    )
    dedup_names_max: int = Field(
        default=10_000,
        ge=1,
        description="Producer names of a topic whose sequence ids are remembered; those used last.",
    )
    dedup_snapshot_bytes_max: int = Field(
        default=448 << 10,
        ge=1_024,
        le=512 << 10,
        description="The same names with their ids in bytes: a metadata node must hold them.",
    )
    dedup_names_unused_s: float = Field(
        default=21_600.0,
        gt=0,
        description="A producer name that is not connected and was not used for this long is "
        "forgotten: what it sends again is stored again.",
    )


class DelayedSettings(Section):
    """Indexes of delayed messages."""

    delayed_bucket_records: int = Field(
        default=16_384,
        ge=1,
        le=1 << 20,
        description="A topic's index of delayed messages goes to a ledger with so many messages.",
    )
    delayed_segment_records: int = Field(
        default=2048,
        ge=1,
        le=1 << 15,
        description="Messages in an entry of that ledger, which is read as a whole: 24 bytes each.",
    )
    delayed_segments_loaded_max: int = Field(
        default=256,
        ge=1,
        description="Entries of that ledger that a topic keeps in memory, those due first.",
    )
    delayed_due_entries_max: int = Field(
        default=1000,
        ge=2,
        description="Due messages that a subscription has in its queue; others wait as a bit each.",
    )
    delayed_retry_ms: int = Field(
        default=5000,
        ge=10,
        description="Pause after the index of delayed messages could not be stored or read.",
    )
