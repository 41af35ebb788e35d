"""The usage of an entry log: how much of it is still needed. Pure.

A log's footer, or a scan, gives the bytes of each ledger in it. They are kept as two arrays: a
million ledgers of one log take 16 MB. Dead ledgers are not recorded: each round determines the live
ledgers again, so that no event can be missed.

Bytes of entries that were stored again elsewhere count as used: only the index knows better, and
asking it about every run would cost more than the space is worth.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyroaring import BitMap64

_CHUNK_LEDGERS = 4096
"""Ledgers handled in one piece; other threads run between pieces."""


class LiveUse(NamedTuple):
    """The live part of a log."""

    ledgers: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogUsage:
    """The ledgers of one entry log."""

    log_id: int
    file_bytes: int
    is_certain: bool
    """Whether the arrays list every ledger that can be in the log.

    They do if they are from its footer, or from a scan that ended exactly at the end of the file.
    Otherwise a torn or damaged end may hide ledgers.
    """
    ledger_ids: "array[int]"
    """Ledger ids, ascending."""
    ledger_bytes: "array[int]"

    @property
    def memory_bytes(self) -> int:
        return 16 * len(self.ledger_ids)

    def live(self, alive: BitMap64) -> LiveUse:
        """Return number and bytes of the live ledgers in the log."""
        ids, sizes = self.ledger_ids, self.ledger_bytes
        ledgers = total = 0
        for at in range(0, len(ids), _CHUNK_LEDGERS):
            chunk = ids[at : at + _CHUNK_LEDGERS]
            dead = BitMap64(chunk.tolist()) - alive
            ledgers += len(chunk) - len(dead)
            if len(dead) < len(chunk):
                total += sum(sizes[at : at + len(chunk)])
                total -= sum(sizes[bisect_left(ids, each, at, at + len(chunk))] for each in dead)
        return LiveUse(ledgers, total)


def usage_of(
    log_id: int, ledger_bytes: Mapping[int, int], *, file_bytes: int, is_certain: bool
) -> LogUsage:
    """Return the usage of a log from the content of its footer, or from a scan."""
    ids = sorted(ledger_bytes)
    return LogUsage(
        log_id,
        file_bytes,
        is_certain,
        array("q", ids),
        array("q", [ledger_bytes[ledger_id] for ledger_id in ids]),
    )


class UsageTable:
    """Usages of surveyed logs, bounded in memory; others are read again."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._usages: dict[int, LogUsage] = {}
        self.memory_bytes = 0

    def find(self, log_id: int) -> LogUsage | None:
        return self._usages.get(log_id)

    def put(self, usage: LogUsage) -> None:
        """Keep a usage if there is room."""
        self.forget(usage.log_id)
        if self.memory_bytes + usage.memory_bytes <= self._bytes_max:
            self._usages[usage.log_id] = usage
            self.memory_bytes += usage.memory_bytes

    def forget(self, log_id: int) -> None:
        """Forget a removed log."""
        usage = self._usages.pop(log_id, None)
        if usage is not None:
            self.memory_bytes -= usage.memory_bytes

    def keep_only(self, log_ids: set[int]) -> None:
        """Forget all logs but these."""
        for log_id in [each for each in self._usages if each not in log_ids]:
            self.forget(log_id)
