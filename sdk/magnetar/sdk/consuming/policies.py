"""Policies in a consumer's settings: keys, dead letters, batches. Frozen values."""

from dataclasses import dataclass

HASHES = 65_536
"""Key hashes are 0 to 65535 (Murmur3, modulo this)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySharedPolicy:
    """Which keys a consumer of a Key_Shared subscription gets."""

    hash_ranges: tuple[tuple[int, int], ...] = ()
    """Hashes of this consumer, ends included (STICKY); empty: the broker divides them."""
    allow_out_of_order: bool = False
    """Give a key to a new consumer before the old one has acknowledged what it has of it."""

    def __post_init__(self) -> None:
        last = -1
        for start, end in sorted(self.hash_ranges):
            if not 0 <= start <= end < HASHES:
                raise ValueError(f"hash range {start}-{end}: wanted 0 <= start <= end <= 65535")
            if start <= last:
                raise ValueError(f"hash range {start}-{end} overlaps another one")
            last = end


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """What becomes of a message that was delivered again and again."""

    redeliveries_max: int
    """It is delivered so many times after the first; then it goes to the dead letter topic."""
    topic: str = ""
    """Empty: `{topic}-{subscription}-DLQ`, as with the official clients."""
    retry_topic: str = ""
    """Empty: `{topic}-{subscription}-RETRY`; see `ConsumerSettings.retry_topic`."""
    initial_subscription: str = ""
    """A subscription of the dead letter topic, made before its first message if it is not there:
    without one, nothing holds the letters. Empty: none is made."""

    def __post_init__(self) -> None:
        if self.redeliveries_max < 0:
            raise ValueError(f"redeliveries_max is {self.redeliveries_max}; allowed are 0 and more")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceivePolicy:
    """`receive_batch` returns as soon as one of these is reached."""

    messages_max: int = 1_000
    bytes_max: int = 10 * 1024 * 1024
    """Of payloads; a single message may be larger."""
    timeout_ms: int = 100
    """0: wait until one of the others is reached."""

    def __post_init__(self) -> None:
        if not (self.messages_max >= 1 and self.bytes_max >= 1 and self.timeout_ms >= 0):
            raise ValueError("a batch has at least one message and byte, and no negative timeout")
