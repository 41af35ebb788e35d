"""When topics changed hands, as the brokers' logs say.

On a machine with too much to do, a broker may lose its session although no fault struck it, and
gives its topics up, as it must; and brokers hand bundles over to balance their load. Both may make
acknowledgements come again that are younger than the persist interval, as a fault may.
"""

import json
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

_EVENTS = frozenset({"topic_fenced", "topics_dropped", "topic_closed", "bundle_unloaded"})


def moves_in(paths: Iterable[Path]) -> Iterator[float]:
    """Moments on the monotonic clock."""
    offset_s = time.time() - time.monotonic()
    for path in paths:
        with path.open(errors="replace") as lines:
            for line in lines:
                if not any(event in line for event in _EVENTS):
                    continue
                try:
                    record = json.loads(line)
                    at = datetime.fromisoformat(record["timestamp"])
                except (ValueError, KeyError, TypeError):
                    continue  # Not one of the log's own lines.
                if record.get("event") in _EVENTS:
                    yield at.timestamp() - offset_s
