"""Reading topics by `magnetar.arrow`: rows per second and memory, beside the SDK's consumer.

Reads raw values and decoded AVRO, with one worker and with two processes. The server shares the
processors; each request asks it for a block of one megabyte. The report compares the gain of two
processes with the gain that all processors would give if each row took as much of them as with one
worker, the server's part included.

To show how reading scales without a server, two programs read one partition each from a directory
of objects.
"""

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.schemas import AvroObjectSchema
from tests.bench import load
from tests.bench.report import FULL, Effort, Figure, Report
from tests.http_calls import admin, topic_path
from tests.processes import ROOT, cpu_s_of, magnetar_environment
from tests.standalone import Standalone
from tests.waiting import wait_until

_RAW: Final = "persistent://public/default/arrow-bench-raw"
_AVRO: Final = "persistent://public/default/arrow-bench-avro"
_IN_OBJECTS: Final = "persistent://public/default/arrow-bench-objects"
_PARTITIONS: Final = [f"{_IN_OBJECTS}-partition-{number}" for number in (0, 1)]
_OFFLOADING: Final = """
[broker]
offload_store = "main"
object_stores = [{{ name = "main", url = "{url}" }}]
offload_check_interval_s = 0.1
offload_bytes_per_s_max = 0
object_bytes_min = 0
ledger_age_min_s = 0
"""
_MOVE: Final = {
    "managedLedgerOffloadThresholdInBytes": 0,
    "managedLedgerOffloadDeletionLagInMillis": 0,
}
_ROWS, _ROWS_QUICK = 10_000_000, 300_000
_RAW_MIN, _AVRO_MIN, _RATIO_MIN = 1_000_000, 400_000, 1.7
_MEMORY_BYTES = 128 << 20
_RESIDENT_BYTES_MAX = _MEMORY_BYTES + (200 << 20)
"""The limit, and the memory of Python, pyarrow and numpy."""

_BATCH = 1_000
_AT_ONCE = 100_000
_TIMEOUT_S = 1_800

_ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "quantity", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}


class ArrowBench:
    """Measures reads by `magnetar.arrow`; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        is_full = effort is FULL
        self._rows = _ROWS if is_full else _ROWS_QUICK
        self._repeats = 3 if is_full else 1

    def arrow(self) -> None:
        """Measure raw values, then AVRO, then raw values from objects without a server."""
        store = self._report.directory / "arrow-objects"
        store.mkdir(parents=True)
        config = self._report.directory / "arrow.toml"
        config.write_text(_OFFLOADING.format(url=store.as_uri()))
        arguments = ["--config", str(config)]
        with Standalone(self._report.directory / "arrow", arguments=arguments) as server:
            admin(
                server,
                "POST",
                "namespaces/public/default/inactiveTopicPolicies",
                {
                    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                    "maxInactiveDurationSeconds": 3_600,
                    "deleteWhileInactive": False,
                },
            )
            load.produce(server.url, _RAW, messages=self._rows, size=100, batch=_BATCH)
            asyncio.run(_publish_orders(server.url, self._rows))
            for topic, name, least in (
                (_RAW, "raw values, 100 B", _RAW_MIN),
                (_AVRO, "AVRO, decoded", _AVRO_MIN),
            ):
                self._reads(server, topic, name, least)
            self._move_partitions(server)
        self._of_objects(store.as_uri())

    def _reads(self, server: Standalone, topic: str, name: str, least: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        one = self._read(server, topic, cores, workers=1)
        beside = load.consume(server.url, topic, messages=self._rows).msgs_per_s
        rate = one["rows_per_s"]
        self._report.add(
            Figure(
                name=f"Arrow reads {name}, one worker",
                unit="rows/s",
                value=round(rate),
                target=f">= {least:,}",
                met=rate >= least,
                ratio=round(rate / beside, 2),
                beside="the SDK's consumer",
                beside_value=round(beside),
                runs=one["runs"],
                details={"rows_per_cpu_s": round(one["rows_per_cpu_s"])},
            )
        )
        one_core = self._read(server, topic, cores[:1], workers=1)
        self._report.add(
            Figure(
                name=f"Arrow reads {name}, one worker on one core",
                unit="rows/s",
                value=round(one_core["rows_per_s"]),
                target=f">= {least:,}",
                met=one_core["rows_per_s"] >= least,
                runs=one_core["runs"],
                details={"rows_per_cpu_s": round(one_core["rows_per_cpu_s"])},
            )
        )
        two = self._read(server, topic, cores, workers=2, processes=True)
        ratio = two["rows_per_s"] / rate
        row_cpu_s = 1 / one["rows_per_cpu_s"] + one["server_cpu_s_per_row"]
        self._report.add(
            Figure(
                name=f"Arrow reads {name}, two processes to one worker",
                unit="x",
                value=round(ratio, 2),
                target=f">= {_RATIO_MIN}",
                met=ratio >= _RATIO_MIN,
                runs=two["runs"],
                details={
                    "rows_per_cpu_s": round(two["rows_per_cpu_s"]),
                    "at_the_same_cost_per_row": round(len(cores) / row_cpu_s / rate, 2),
                },
            )
        )
        self._report.add_limit(
            f"Arrow reads {name}, memory with a limit of {_MEMORY_BYTES >> 20} MiB",
            "MB",
            [one["resident_peak_bytes"] / 1e6],
            limit=_RESIDENT_BYTES_MAX / 1e6,
        )

    def _move_partitions(self, server: Standalone) -> None:
        admin(server, "PUT", f"{topic_path(_IN_OBJECTS)}/partitions", len(_PARTITIONS))
        for partition in _PARTITIONS:
            rows = self._rows // len(_PARTITIONS)
            load.produce(server.url, partition, messages=rows, size=100, batch=_BATCH)
            admin(server, "PUT", f"{topic_path(partition)}/unload")  # closes its last ledger
        admin(server, "POST", f"{topic_path(_IN_OBJECTS)}/offloadPolicies", _MOVE)
        for partition in _PARTITIONS:
            wait_until(
                partial(_is_moved, server, partition),
                f"the ledgers of {partition} to be moved",
                within_s=_TIMEOUT_S,
            )

    def _of_objects(self, url: str) -> None:
        arguments = {"objects": url, "memory_bytes": _MEMORY_BYTES}
        one = self._load(_IN_OBJECTS, arguments)
        with ThreadPoolExecutor(len(_PARTITIONS)) as pool:
            two = list(pool.map(lambda partition: self._load(partition, arguments), _PARTITIONS))
        assert sum(each["rows"] for each in two) == one["rows"] == self._rows
        together = sum(each["rows_per_s"] for each in two)
        ratio = together / one["rows_per_s"]
        self._report.add(
            Figure(
                name="Arrow reads raw values from objects, two programs to one",
                unit="x",
                value=round(ratio, 2),
                target=f">= {_RATIO_MIN}",
                met=ratio >= _RATIO_MIN,
                details={
                    "one_program_rows_per_s": round(one["rows_per_s"]),
                    "two_programs_rows_per_s": round(together),
                },
            )
        )

    def _load(self, topic: str, arguments: dict[str, Any]) -> dict[str, Any]:
        work = {"topic": topic, "repeats": self._repeats, "arguments": arguments}
        return self._run(work)

    def _read(self, server: Standalone, topic: str, cores: list[int], **how: Any) -> dict[str, Any]:
        arguments = {
            "service_url": server.url,
            "admin_url": server.http_url,
            "metadata_url": server.metadata_url,
            "memory_bytes": _MEMORY_BYTES,
            **how,
        }
        before_s = cpu_s_of(server.process.pid)
        found = self._run(
            {
                "topic": topic,
                "repeats": self._repeats,
                "processors": cores,
                "arguments": arguments,
            }
        )
        assert found["rows"] == self._rows, (found["rows"], self._rows)
        used_s = cpu_s_of(server.process.pid) - before_s
        # One more read than those measured: the first one warms up.
        found["server_cpu_s_per_row"] = used_s / (self._rows * (self._repeats + 1))
        return found

    def _run(self, work: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.arrow_load", json.dumps(work)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=magnetar_environment(),
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise load.LoadFailedError(done.stderr[-2_000:])
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _is_moved(server: Standalone, topic: str) -> bool:
    """Whether all ledgers of the topic that have entries are in objects, and only there."""
    ledgers = admin(server, "GET", f"{topic_path(topic)}/internalStats")["ledgers"]
    states = [each.get("object", {}).get("state") for each in ledgers if each["entries"]]
    return set(states) == {"only"}


async def _publish_orders(url: str, rows: int) -> None:
    settings = ProducerSettings(batching=True, batch_messages_max=_BATCH)
    async with Client(url) as client:
        producer = await client.producer(_AVRO, settings, schema=AvroObjectSchema(_ORDER))
        for first in range(0, rows, _AT_ONCE):
            await producer.send_many(
                [_order(number) for number in range(first, min(first + _AT_ONCE, rows))]
            )
        await producer.flush()


def _order(number: int) -> dict[str, object]:
    return {
        "id": number,
        "customer": f"customer {number % 10_007}",
        "amount": number / 7,
        "quantity": number % 100,
        "at": 1_700_000_000_000 + number,
        "note": None if number % 3 else "a note of some length",
    }
