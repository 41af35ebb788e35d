"""Bounds of transactions."""

from pydantic import Field

from magnetar.broker.base.settings.topics import TopicSettings

_MIB = 1 << 20


class TransactionSettings(TopicSettings):
    """A part of `BrokerSettings`."""

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
