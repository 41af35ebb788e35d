"""When a walk over topics at rest first saw each stored log and each stored cursor.

A topic or subscription may be made without being loaded: by growth, over HTTP, by a split, by a
restore. Then no broker has seen its use, and it must not count as unused for longer than it exists.
So a record counts as unused from when a walk of this broker first saw it. No stored time is
trusted: it may be that of a record that this one was copied from, or of a clock that was wrong.

A record may seem younger than it is, by up to the time between two walks, or until a restart. One
for which there is no room counts as new at each walk, so it is never deleted as unused.
"""

from hashlib import blake2b

import structlog

from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

_KEY_BYTES = 8


class Births:
    """Remembers records by their identity, from walk to walk. `end` ends a walk."""

    def __init__(self, clock: Clock, *, remembered_max: int) -> None:
        """`remembered_max`: records that are remembered; each takes about 150 bytes of memory."""
        self._clock = clock
        self._remembered_max = remembered_max
        self._has_warned = False
        self._before: dict[bytes, float] = {}
        """Records of earlier walks that this walk has not seen yet."""
        self._seen: dict[bytes, float] = {}
        """Records that this walk has seen."""
        self._missed: set[bytes] = set()
        """Topics that this walk could not look at."""

    def __len__(self) -> int:
        return len(self._before) + len(self._seen)

    def end(self, *, is_whole: bool) -> None:
        """End a walk. `is_whole`: whether it has come past every topic; what it has not seen is
        forgotten then, but for topics that it could not look at."""
        kept = {
            key: since_s
            for key, since_s in self._before.items()
            if not is_whole or key[:_KEY_BYTES] in self._missed
        }
        self._before = kept | self._seen
        self._seen = {}
        self._missed.clear()

    def miss(self, topic: str) -> None:
        """Note that this walk could not look at a topic, so that its records are kept."""
        self._missed.add(_digest(topic))

    def since_s(self, topic: str, record: str) -> float:
        """Return since when a record of a topic can have been unused, monotonic seconds.

        `record`: tells it from all others of the topic's name, and from a later one at its path.
        """
        key = _digest(topic) + _digest(record)
        since_s = self._seen.get(key)
        if since_s is None:
            since_s = self._before.pop(key, None)
        if since_s is None:
            since_s = self._clock.monotonic_s()
            if len(self) >= self._remembered_max:
                self._warn()
                return since_s
        self._seen[key] = since_s
        return since_s

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "topics_at_rest_not_remembered",
                remembered_max=self._remembered_max,
                hint="further topics and subscriptions are not deleted as unused; raise "
                "topics_at_rest_records_max",
            )


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
