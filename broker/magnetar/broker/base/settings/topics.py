"""Settings of topics, and of what they host.

A part of the broker is given the settings that concern it under the name of their section.
`BrokerSettings` has all sections, so the settings of the broker are handed on as they are.
"""

from typing import Literal

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
        default=100,
        ge=1,
        description="Delay before a failed read is retried; it doubles up to read_retry_ms_max.",
    )
    read_retry_ms_max: int = Field(
        default=5_000, ge=1, description="Longest delay before a failed read is retried."
    )

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
        "remembered; above it the oldest is forgotten.",
    )
    key_shared_consistent_hashing: bool = Field(
        default=True,
        description="Key_Shared consumers share hashes by consistent hashing; false: each gets "
        "half of the widest range (subscriptionKeySharedUseConsistentHashing of Pulsar).",
    )
    look_ahead_per_consumer_max: int = Field(
        default=2_000,
        ge=1,
        description="Key_Shared: entries per consumer that may wait for slow consumers while later "
        "entries are dispatched.",
    )
    look_ahead_per_subscription_max: int = Field(
        default=20_000, ge=1, description="Key_Shared: such waiting entries per subscription."
    )
    look_ahead_bytes_max: int = Field(
        default=4 * _MIB,
        ge=0,
        description="Key_Shared: bytes of waiting entries that a subscription keeps in memory; "
        "others are read again.",
    )
    look_ahead_patience_ms: int = Field(
        default=100,
        ge=0,
        description="Key_Shared: time for slow consumers to take their waiting entries before more "
        "wait than look_ahead_bytes_max keeps.",
    )
    failover_delay_ms: int = Field(
        default=1_000,
        ge=0,
        description="Delay before messages go to a new active Failover consumer, the first one "
        "included: acks of the former one, or other consumers, may still arrive.",
    )

    # Producers and subscriptions.

    producers_waiting_per_topic_max: int = Field(
        default=1_000,
        ge=0,
        description="Producers that wait for exclusive access to a topic; more are refused.",
    )
    seek_return_timeout_ms: int = Field(
        default=60_000,
        ge=1,
        description="A reader's position is kept this long after a seek disconnects its consumer.",
    )

    # Deduplication: producer names, and snapshots of their sequence ids.

    dedup_snapshot_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two checks whether a topic's snapshot is due; 0: never.",
    )
    dedup_names_max: int = Field(
        default=10_000,
        ge=1,
        description="Producer names of a topic whose sequence ids are remembered, the most "
        "recently used.",
    )
    dedup_snapshot_bytes_max: int = Field(
        default=448 << 10,
        ge=1_024,
        le=512 << 10,
        description="Bytes of a snapshot of producer names with their sequence ids: it must fit "
        "into a metadata node.",
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
        description="Delayed messages at which a topic's index of them is moved to a ledger.",
    )
    delayed_segment_records: int = Field(
        default=2048,
        ge=1,
        le=1 << 15,
        description="Delayed messages per entry of an index ledger, 24 bytes each; an entry is "
        "read as a whole.",
    )
    delayed_segments_loaded_max: int = Field(
        default=256,
        ge=1,
        description="Entries of index ledgers that a topic keeps in memory, those due first.",
    )
    delayed_due_entries_max: int = Field(
        default=1000,
        ge=2,
        description="Due messages in the queue of a subscription; further ones are kept as one bit "
        "each.",
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
        default=300.0, ge=0, description="Time between two checks for unused subscriptions."
    )
    inactive_topic_check_interval_s: float = Field(
        default=60.0, ge=0, description="Time between two checks for unused topics; 0 = never."
    )
    backlog_analysis_entries_max: int = Field(
        default=10_000, ge=1, description="Entries read by one analysis of a backlog."
    )

    # Topics that nobody uses: how often they are looked at, and what that may cost.

    topics_at_rest_interval_s: float = Field(
        default=600.0,
        ge=0,
        description="Time between two scans of the stored topics that are not in use; 0 = never. A "
        "scan trims, expires and deletes them by the same policies as topics in use.",
    )
    topics_at_rest_reads_per_s: float = Field(
        default=100.0,
        gt=0,
        description="Metadata store reads per second of such a scan. A topic takes two, plus one "
        "per subscription: 100,000 topics with one subscription each take 50 minutes.",
    )
    topics_at_rest_loaded_max: int = Field(
        default=4,
        ge=1,
        description="Unused topics loaded in parallel because something is due in them.",
    )
    topics_at_rest_remembered_max: int = Field(
        default=10_000,
        ge=1,
        description="Unused topics whose last use is remembered. Topics beyond it count as unused "
        "since the latest use that was forgotten.",
    )

    # Compaction.

    compaction_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks of a topic's compaction threshold; 0 = never.",
    )
    compactions_at_once: int = Field(
        default=1, ge=1, description="Topics that a broker compacts in parallel."
    )
    compaction_keys_bytes_max: int = Field(
        default=256 * _MIB,
        ge=1,
        description="Bytes of memory for the keys of one compaction; a topic with more keys is not "
        "compacted, and its status says so.",
    )
    compaction_batch_bytes_max: int = Field(
        default=64 * _MIB,
        ge=1,
        description="Batches with more uncompressed bytes are kept whole.",
    )
    compaction_bytes_per_s: int = Field(
        default=32 * _MIB,
        ge=0,
        description="Bytes per second that a pass of a compaction reads; 0 = no limit.",
    )
    compaction_retains_keyless: bool = Field(
        default=False, description="Whether messages without a key survive a compaction."
    )

    # Schemas.

    schema_bytes_max: int = Field(
        default=_MIB,
        ge=1,
        le=4 * _MIB,
        description="Bytes of the largest schema, its properties included; it is one entry of a "
        "ledger.",
    )
    schema_versions_max: int = Field(
        default=1_000,
        ge=1,
        le=4_000,
        description="Versions of one topic's schema, deletions included; its metadata node lists "
        "each.",
    )
    schema_cache_bytes_max: int = Field(
        default=8 * _MIB,
        ge=0,
        description="Bytes of schemas that are cached, as clients wrote them; 0 = no cache.",
    )

    # Replication between clusters.

    replication_start_at: Literal["latest", "earliest"] = Field(
        default="latest",
        description="Where copying begins to a cluster that is new among a topic's policies: with "
        "what is published from then on, or with all that the topic has.",
    )
    replication_entries_max: int = Field(
        default=1_000,
        ge=1,
        description="Entries of one topic that are under way to another cluster at a time.",
    )
    replication_bytes_max: int = Field(
        default=8 * _MIB,
        ge=1,
        description="Bytes of one topic that are under way to another cluster at a time; a single "
        "larger entry may be.",
    )
    replication_pulsar_entries_max: int = Field(
        default=1,
        ge=1,
        description="The same number towards Apache Pulsar. It cannot see that a message before "
        "another one is missing: with more than 1, a message that it refused may be lost.",
    )
    replication_retry_s: float = Field(
        default=0.1, gt=0, description="Pause after a failure of copying; it doubles."
    )
    replication_retry_s_max: float = Field(
        default=60.0, gt=0, description="Longest pause after failures of copying."
    )
    replication_timeout_ms: int = Field(
        default=30_000, ge=1, description="Time for one request to another cluster."
    )
    replication_check_interval_s: float = Field(
        default=1.0,
        gt=0,
        description="Time between two looks at what replication of a topic has left to do.",
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
        default=10_000, ge=1, description="Open transactions of one coordinator."
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
        description="Ended transactions of one coordinator whose outcome it remembers.",
    )
    transaction_log_records: int = Field(
        default=5_000,
        ge=1,
        description="Log records of a coordinator, or of a topic, after which a snapshot is "
        "written and older records are deleted.",
    )
    transaction_snapshot_entries: int = Field(
        default=20_000,
        ge=1,
        description="Most entries of a topic with transactions that are read at its load to find "
        "the aborted ones.",
    )
    transaction_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two checks that coordinators are served and whether topics need "
        "a transaction snapshot; 0 = never.",
    )
    transaction_ends_at_once: int = Field(
        default=64,
        ge=1,
        description="Commits and aborts that a broker's coordinators send to topics and "
        "subscriptions in parallel; a quarter of them to one topic.",
    )
    transaction_end_timeout_ms: int = Field(
        default=20_000,
        ge=100,
        description="Timeout of one attempt to send a commit or abort to a topic or subscription.",
    )
    transaction_end_wait_ms: int = Field(
        default=10_000,
        ge=0,
        description="How long a commit or abort request waits until all topics have applied it; "
        "after that the client is told that the decision is made.",
    )
    transaction_retry_ms: int = Field(
        default=200, ge=1, description="Delay before a commit or abort is sent again; it doubles."
    )
    transaction_retry_ms_max: int = Field(
        default=10_000, ge=1, description="Longest delay before a commit or abort is sent again."
    )
    transaction_pending_acks_max: int = Field(
        default=100_000,
        ge=1,
        description="Acknowledgements of a subscription in open transactions; more are refused.",
    )
    transaction_snapshot_bytes_max: int = Field(
        default=_MIB,
        ge=1024,
        le=4 * _MIB,
        description="Bytes of one part of a topic's transaction snapshot.",
    )
