"""Looks at the clients' histories while they grow: do all of them go on, and the longest gaps."""

import time
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.cluster.records import SUFFIX

Key = tuple[str, str, str]
"""Letter of the line, topic, and who."""


class Watch:
    """Reads what was appended since the last look."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self._rests: dict[Path, bytes] = {}
        self.last_s: dict[Key, float] = {}
        """When each was last told or given something."""
        self.gaps_s: dict[Key, tuple[float, float]] = {}
        """The longest time without, since `forget_gaps`, and when it ended."""

    def look(self) -> None:
        for path in self._directory.glob(f"*{SUFFIX}"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            self._offsets[path] = self._offsets.get(path, 0) + len(data)
            *lines, self._rests[path] = (self._rests.get(path, b"") + data).split(b"\n")
            for line in lines:
                self._take(path.name.removesuffix(SUFFIX), line.decode().split(" "))

    def _take(self, process: str, fields: list[str]) -> None:
        if fields[0] not in ("a", "d", "r") or process == "drill":
            return
        who = process if fields[0] == "a" else fields[2]
        key = (fields[0], fields[1], who)
        at_s = float(fields[-1])
        before_s = self.last_s.get(key)
        if before_s is not None and at_s - before_s > self.gaps_s.get(key, (0.0, 0.0))[0]:
            self.gaps_s[key] = (at_s - before_s, at_s)
        self.last_s[key] = at_s

    def forget_gaps(self) -> None:
        self.look()
        self.gaps_s.clear()

    def quiet_since(self, since_s: float, keys: Iterable[Key]) -> list[Key]:
        """Keys of clients that were told or given nothing since then."""
        return [key for key in keys if self.last_s.get(key, 0.0) <= since_s]

    def longest_publish_gap_s(self) -> float:
        """The longest gap between publishes, in seconds. Gaps that still last count, too: to be
        asked while all producers publish."""
        now_s = time.monotonic()
        ended = [gap_s for (letter, _, _), (gap_s, _) in self.gaps_s.items() if letter == "a"]
        lasting = [now_s - at_s for (letter, _, _), at_s in self.last_s.items() if letter == "a"]
        return max(ended + lasting, default=0.0)
