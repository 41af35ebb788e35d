"""The Grafana dashboards of deploy/grafana/dashboards, from short descriptions of their panels.

usage: python -m tests.dashboards     # writes them

Written by hand, each would be a thousand lines of JSON in which nobody sees a wrong unit. A test
holds the files to this description, others its queries to the metrics that exist. One file for each
dashboard; `panels.py` has what they are made of.
"""

from tests.dashboards.bookies import BOOKIES
from tests.dashboards.brokers import BROKERS
from tests.dashboards.cluster import CLUSTER
from tests.dashboards.recovery import RECOVERY
from tests.dashboards.rendering import rendered
from tests.dashboards.topics import TOPICS

__all__ = ["DASHBOARDS", "rendered"]

DASHBOARDS = {
    "cluster.json": CLUSTER,
    "brokers.json": BROKERS,
    "topics.json": TOPICS,
    "bookies.json": BOOKIES,
    "recovery.json": RECOVERY,
}
"""By the name of its file."""
