"""Logs of entries with and without an index, for the tests of the message index."""

from magnetar.broker.base.entry_metadata import PrefixEncoder
from tests.unit.broker.harness import batch, entry
from tests.unit.broker.memory_log import MemoryLog


def indexed(index: int, *, messages: int = 1, since: int = 0) -> bytes:
    """A stored entry whose last message has this index."""
    prefix = PrefixEncoder(1_000, unbroken_since=since).encode(index)
    return prefix + (entry() if messages == 1 else batch(messages))


def log_of(*ledgers: list[bytes]) -> MemoryLog:
    """A log with ledgers 7, 8 and so on."""
    log = MemoryLog()
    for at, entries in enumerate(ledgers):
        if at:
            log.roll(7 + at)
        log.store(*entries)
    return log
