"""`pulsar-admin` as Apache Pulsar ships it, from Maven Central, manages tiered storage.

`make clients` runs this; it is skipped where Java or Maven is missing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.bench.pulsar_peer import distribution, why_missing
from tests.clients.pulsar_server import pulsar_admin as run_pulsar_admin
from tests.integration.pulsar_client.support import connect, publish_to
from tests.integration.pulsar_client.test_offloading import are
from tests.standalone import Standalone
from tests.waiting import wait_until

_NAMESPACE = "public/default"
_TOPIC = f"persistent://{_NAMESPACE}/moved-by-pulsar-admin"
_MESSAGES = [b"%03d" % number for number in range(40)]
_TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def server(tmp_path: Path, store: Path) -> Iterator[Standalone]:
    if why := why_missing():
        pytest.skip(why)
    settings = {
        "LEDGER_ENTRIES_MAX": "10",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([{"name": "main", "url": store.as_uri()}]),
        "OFFLOAD_STORE": "main",
        "OFFLOAD_CHECK_INTERVAL_S": "0.2",
        "TAIL_CACHE_BYTES_MAX": "0",
    }
    with Standalone(tmp_path / "data", settings=settings) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


def pulsar_admin(server: Standalone, *arguments: str) -> str:
    return run_pulsar_admin(distribution(), server.http_url, *arguments)


def ledgers(server: Standalone) -> list[dict[str, Any]]:
    """The closed ledgers of the topic, by `topics stats-internal`."""
    stats = json.loads(pulsar_admin(server, "topics", "stats-internal", _TOPIC))
    found: list[dict[str, Any]] = stats["ledgers"]
    return found[:-1]


def fill(server: Standalone) -> None:
    client = connect(server.url)
    for message in _MESSAGES:
        publish_to(client, _TOPIC, [message], batching_enabled=False)
    client.close()


def test_namespaces_get_thresholds_a_deletion_lag_and_policies(server: Standalone) -> None:
    bounds = ("--size", "10M", "--time", "5m")
    pulsar_admin(server, "namespaces", "set-offload-threshold", _NAMESPACE, *bounds)
    shown = pulsar_admin(server, "namespaces", "get-offload-threshold", _NAMESPACE)
    assert str(10 << 20) in shown
    assert "300" in shown
    pulsar_admin(server, "namespaces", "set-offload-deletion-lag", _NAMESPACE, "--lag", "4h")
    assert "240" in pulsar_admin(server, "namespaces", "get-offload-deletion-lag", _NAMESPACE)
    pulsar_admin(
        server,
        *("namespaces", "set-offload-policies", _NAMESPACE, "--driver", "filesystem"),
        *("--offloadAfterThreshold", "20M", "--offloadAfterElapsed", "1h"),
    )
    shown = pulsar_admin(server, "namespaces", "get-offload-policies", _NAMESPACE)
    policies = json.loads(shown)
    assert policies["managedLedgerOffloadThresholdInBytes"] == 20 << 20
    assert policies["managedLedgerOffloadDeletionLagInMillis"] == 3_600_000


def test_a_topic_is_offloaded_on_demand_and_its_internal_stats_show_it(
    server: Standalone, store: Path
) -> None:
    fill(server)
    assert not any(each["offloaded"] for each in ledgers(server))
    assert "not been run" in pulsar_admin(server, "topics", "offload-status", _TOPIC)
    pulsar_admin(server, "topics", "offload", "--size-threshold", "0", _TOPIC)
    shown = pulsar_admin(server, "topics", "offload-status", "--wait-complete", _TOPIC)
    assert "success" in shown
    closed = ledgers(server)
    assert len(closed) >= 2
    assert all(each["offloaded"] for each in closed)
    assert len(list(store.rglob("*.mgo"))) == len(closed)
    policies = ("--offloadThresholdInBytes", "0", "--offloadDeletionLagInMillis", "0")
    pulsar_admin(
        server, "topicPolicies", "set-offload-policies", "--driver", "filesystem", *policies, _TOPIC
    )
    wait_until(lambda: are(server, _TOPIC, "only"))  # the Java class leaves our field out
    client = connect(server.url)
    reader = client.create_reader(_TOPIC, pulsar.MessageId.earliest)
    assert [reader.read_next(30_000).data() for _ in _MESSAGES] == _MESSAGES
    client.close()
