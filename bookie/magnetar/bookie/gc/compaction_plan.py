"""Choice, order and grouping of the entry logs to compact. Pure.

Emptiest first: they free the most space for the bytes that are copied. Several logs are copied into
one as long as their live bytes fit. Otherwise a log with a hundredth of its bytes alive would stay
a file for ever, and after years a bookie would have more files than it can hold open.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

SOURCES_MAX = 16
"""Maximum number of logs that are copied into one; all are removed together at the end."""
_SMALL_PART = 16
"""A log below this part (1/n) of a full one is small; this many small logs are worth merging."""


class LogUse(NamedTuple):
    """A finished log and its live bytes."""

    log_id: int
    file_bytes: int
    live_bytes: int

    @property
    def live_share(self) -> float:
        return self.live_bytes / self.file_bytes if self.file_bytes else 0.0


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """Rule that selects the logs of one kind of compaction."""

    live_share_max: float
    """Logs with a smaller live share are compacted. 0: none."""
    merges_small: bool
    """Whether many small logs are merged whatever their live share: every start of the process
    begins a new log."""


def choose_logs(
    logs: Iterable[LogUse], rule: CompactionRule, *, log_bytes_max: int
) -> list[LogUse]:
    """Return the logs that a run compacts, emptiest first."""
    if rule.live_share_max <= 0:
        return []
    ordered = sorted(logs, key=lambda log: (log.live_share, log.log_id))
    small: set[int] = set()
    if rule.merges_small:
        small = {log.log_id for log in ordered if log.file_bytes * _SMALL_PART < log_bytes_max}
        if len(small) < _SMALL_PART:
            small = set()
    return [log for log in ordered if log.live_share < rule.live_share_max or log.log_id in small]


def group_logs(logs: Iterable[LogUse], *, log_bytes_max: int) -> list[list[LogUse]]:
    """Group the logs, in the same order: a group fits into one log."""
    groups: list[list[LogUse]] = []
    size = 0
    for log in logs:
        fits = groups and len(groups[-1]) < SOURCES_MAX and size + log.live_bytes <= log_bytes_max
        if fits:
            groups[-1].append(log)
            size += log.live_bytes
        else:
            groups.append([log])
            size = log.live_bytes
    return groups
