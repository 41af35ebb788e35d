"""Settings of topics, and of what they host.

A part of the broker is given the settings that concern it under the name of their section.
`BrokerSettings` has all sections, so the settings of the broker are handed on as they are.
"""

from pydantic import Field

from magnetar.broker.base.settings.section import Section

_MIB = 1 << 20


class TopicSettings(Section):
    """Bounds of topics: reads, dispatch, and the features that they host."""

    # Reads of entries that the tail cache does not have.

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

    # Dispatch: batch sizes, look-ahead and delays.

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

    # Producers and subscriptions.

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

    # Deduplication: producer names, and snapshots of their sequence ids.

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

    # Delayed messages: their indexes.

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

    # What is kept and what goes: each topic is looked at once per interval.

    retention_check_interval_s: float = Field(
        default=120.0, ge=0, description="Time between two trimmings of a topic; 0 = never."
    )
    message_expiry_check_interval_s: float = Field(
        default=300.0, ge=0, description="Time between two searches for messages above their TTL."
    )
    backlog_quota_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks of backlog quotas, for producers that are connected.",
    )
    subscription_expiry_check_interval_s: float = Field(
        default=300.0, ge=0, description="Time between two looks for unused subscriptions."
    )
    inactive_topic_check_interval_s: float = Field(
        default=60.0, ge=0, description="Time between two looks for unused topics; 0 = never."
    )
    backlog_analysis_entries_max: int = Field(
        default=10_000, ge=1, description="Entries that one look at what a backlog is reads."
    )

    # Topics that nobody uses: how often they are looked at, and what that may cost.

    topics_at_rest_interval_s: float = Field(
        default=600.0,
        ge=0,
        description="Time between two walks over the stored topics that nobody uses; 0 = never. "
        "They are trimmed, expired and deleted by the same policies as topics in use.",
    )
    topics_at_rest_reads_per_s: float = Field(
        default=100.0,
        gt=0,
        description="Reads of the metadata store per second that a walk makes. A topic takes two, "
        "and one for each of its subscriptions: 100,000 topics with one each take 50 minutes.",
    )
    topics_at_rest_loaded_max: int = Field(
        default=4,
        ge=1,
        description="Topics at rest that are loaded at once, because something is due in them.",
    )
    topics_at_rest_remembered_max: int = Field(
        default=10_000,
        ge=1,
        description="Topics that came to rest here of which the time is remembered. Beyond it, the "
        "disuse of older ones counts from the latest time that was forgotten.",
    )

    # Compaction.

    compaction_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two looks at a topic's compaction threshold; 0 = never.",
    )
    compactions_at_once: int = Field(
        default=1, ge=1, description="Topics that a broker compacts side by side."
    )
    compaction_keys_bytes_max: int = Field(
        default=256 * _MIB,
        ge=1,
        description="Memory for the keys of one compaction; a topic with more keys is not "
        "compacted, and its status says so.",
    )
    compaction_batch_bytes_max: int = Field(
        default=64 * _MIB,
        ge=1,
        description="Batches that are larger, uncompressed, are kept whole.",
    )
    compaction_bytes_per_s: int = Field(
        default=32 * _MIB,
        ge=0,
        description="Speed at which a pass of a compaction reads; 0 = no bound.",
    )
    compaction_retains_keyless: bool = Field(
        default=False, description="Whether messages without a key survive a compaction."
    )

    # Schemas.

    schema_bytes_max: int = Field(
        default=_MIB,
        ge=1,
        le=4 * _MIB,
        description="Largest schema, its properties included; it is one entry of a ledger.",
    )
    schema_versions_max: int = Field(
        default=1_000,
        ge=1,
        le=4_000,
        description="Versions of one topic's schema, deletions included; its node names each.",
    )
    schema_cache_bytes_max: int = Field(
        default=8 * _MIB,
        ge=0,
        description="Schemas that are remembered, as clients wrote them; 0 = none is.",
    )

    # Transactions.

    transaction_coordinator_enabled: bool = Field(
        default=True,
        description="Whether clients can use transactions. Costs nothing until one does: "
        "coordinators and what topics keep for them appear with the first use.",
    )
    transaction_coordinators: int = Field(
        default=4,
        ge=1,
        le=256,
        description="Coordinators of the cluster, made at the first use; each is served by the "
        "owner of its partition, and its log takes thousands of transactions per second.",
    )
    transaction_open_max: int = Field(
        default=10_000, ge=1, description="Transactions of a coordinator that have not ended."
    )
    transaction_timeout_max_ms: int = Field(
        default=24 * 3600 * 1000,
        ge=1,
        description="Longest timeout that a transaction can have; a longer one is refused.",
    )
    transaction_participants_max: int = Field(
        default=10_000,
        ge=1,
        description="Topics and subscriptions of one transaction; more are refused.",
    )
    transaction_finished_max: int = Field(
        default=10_000,
        ge=1,
        description="Ended transactions of a coordinator whose outcome it still tells.",
    )
    transaction_log_records: int = Field(
        default=5_000,
        ge=1,
        description="Records after which the state is written down as a whole, and older ones go: "
        "of a coordinator, and of a topic.",
    )
    transaction_snapshot_entries: int = Field(
        default=20_000,
        ge=1,
        description="Entries of a topic with transactions that are read when it is loaded, at "
        "most, to know which of them are aborted.",
    )
    transaction_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two looks whether coordinators are served, and topics' "
        "transactions are to be written down; 0 = never.",
    )
    transaction_ends_at_once: int = Field(
        default=64,
        ge=1,
        description="Topics and subscriptions that a broker's coordinators tell of ends at a time; "
        "a quarter of them on one topic.",
    )
    transaction_end_timeout_ms: int = Field(
        default=20_000,
        ge=100,
        description="How long one attempt to tell a topic or subscription may take.",
    )
    transaction_end_wait_ms: int = Field(
        default=10_000,
        ge=0,
        description="How long a client that ends a transaction waits for all topics to know; "
        "after that it is told that the decision is made.",
    )
    transaction_retry_ms: int = Field(
        default=200, ge=1, description="Pause before a topic is told again; it doubles."
    )
    transaction_retry_ms_max: int = Field(
        default=10_000, ge=1, description="The longest such pause."
    )
    transaction_pending_acks_max: int = Field(
        default=100_000,
        ge=1,
        description="Acknowledgements of a subscription in transactions that have not ended; more "
        "are refused.",
    )
    transaction_snapshot_bytes_max: int = Field(
        default=_MIB,
        ge=1024,
        le=4 * _MIB,
        description="Size of a part of what a topic writes down.",
    )
