"""A bucket that is away for long: publishing goes on, nothing is lost, and the log stays readable.

`make store-away` has it away for an hour, as the nightly proof does. Pauses between attempts are
those of the defaults.
"""

import json
import os
import threading
import time
from pathlib import Path

import pulsar
import pytest

from tests.chaos.offloading.bad_store import BadStore
from tests.integration.pulsar_client.support import connect, read_next
from tests.integration.pulsar_client.test_offloading import ALL, LAG, admin, are, states
from tests.s3_server import S3Server
from tests.standalone import Standalone
from tests.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(5 * 3600)]

AWAY_S = float(os.environ.get("MAGNETAR_STORE_AWAY_S", "120"))
TOPIC = "persistent://public/default/store-away"
_BUCKET = "ledgers"
_PER_S = 20.0
_PUBLISH_S_MAX = 5.0
"""Of one message, on a machine that has other work."""
_RETRY_S_MAX = 300.0
"""The default of offload_retry_s_max: so long after its return the bucket may be asked again."""
_LINES_PER_MINUTE_MAX = 20
"""Lines about failures, on average: pauses double, up to the greatest."""


class Gate(BadStore):
    """The way to the bucket; nothing passes while it is shut."""

    is_shut = False

    def _drawn(self) -> str:
        return "refused" if self.is_shut else ""


def test_an_hour_without_the_bucket_costs_nothing_but_time(tmp_path: Path) -> None:
    s3 = S3Server(tmp_path)
    s3.create_bucket(_BUCKET)
    gate = Gate(s3.port, seed=0)
    gate.start()
    bucket = {
        "name": "bucket",
        "url": f"s3://{_BUCKET}",
        "endpoint": f"http://127.0.0.1:{gate.port}",
        "allow_http": True,
    }
    settings = {
        "LEDGER_ENTRIES_MAX": "100",
        "LEDGER_AGE_MIN_S": "0",
        "RETENTION_MINUTES": "-1",
        "RETENTION_MIB": "-1",
        "OBJECT_STORES": json.dumps([bucket]),
        "OFFLOAD_STORE": "bucket",
        "OBJECT_BYTES_MIN": "0",
        "TAIL_CACHE_BYTES_MAX": "0",
    }
    credentials = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "hidden-from-logs"}
    try:
        with Standalone(tmp_path / "data", settings=settings, environment=credentials) as server:
            client = connect(server.url)
            sent = _publish_while_away(client, server, gate)
            _wait_moved(server)
            assert _read(client, len(sent)) == sent
            client.close()
            lines = server.log_text().count('"offload_failed"')
            assert 0 < lines <= _LINES_PER_MINUTE_MAX * max(1.0, AWAY_S / 60)
            assert server.terminate() == 0
            server.assert_log_clean()
    finally:
        gate.stop()
        s3.stop()


def _publish_while_away(client: pulsar.Client, server: Standalone, gate: Gate) -> list[bytes]:
    """Publish at a steady rate with the bucket there, away, and back; what was confirmed."""
    producer = client.create_producer(TOPIC, batching_enabled=False)
    sent = [b"before-%d" % n for n in range(300)]
    for each in sent:
        producer.send(each)
    admin(server, "POST", TOPIC, "offloadPolicies", {**ALL, **LAG})
    wait_until(lambda: are(server, TOPIC, "only"))
    gate.is_shut = True
    begun_s = now_s = time.monotonic()
    slowest_s = 0.0
    while now_s < begun_s + AWAY_S:
        sent.append(b"away-%d" % len(sent))
        producer.send(sent[-1])
        slowest_s = max(slowest_s, time.monotonic() - now_s)
        # A rate is what this is about, not a condition that is waited for.
        threading.Event().wait(1 / _PER_S)
        now_s = time.monotonic()
    assert slowest_s < _PUBLISH_S_MAX
    assert admin(server, "GET", TOPIC, "stats")["lastOffloadFailureTimeStamp"] > 0
    gate.is_shut = False
    producer.close()
    return sent


def _wait_moved(server: Standalone) -> None:
    """Wait until all is in the bucket. There are hundreds of ledgers: each that has moved gives the
    next one as long as the first had."""
    moved = 0

    def is_further() -> bool:
        nonlocal moved
        before, moved = moved, states(server, TOPIC).count("only")
        return moved > before or are(server, TOPIC, "only")

    while not are(server, TOPIC, "only"):
        wait_until(is_further, "more is in the bucket", within_s=2 * _RETRY_S_MAX)


def _read(client: pulsar.Client, count: int) -> list[bytes]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = [read_next(reader).data() for _ in range(count)]
    reader.close()
    return found
