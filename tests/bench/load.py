"""Runs a load in a process of its own and reads the JSON that it prints.

`magnetar perf` is the tool that users have; the modules `*_load.py` here cost next to nothing.
"""

import json
import subprocess
import sys
from typing import Any

from tests.bench.figures import Latency, Rate
from tests.processes import ROOT, magnetar_command, magnetar_environment

_TIMEOUT_S = 600
"""Time limit in seconds of a load that is quick on an idle machine."""


class LoadFailedError(Exception):
    """The load ended with an error; the message is its stderr."""


def produce(
    url: str,
    topic: str,
    *,
    messages: int,
    size: int,
    in_flight: int = 0,
    batch: int = 0,
    rate: float = 0,
    seconds_max: float = 0,
) -> Rate:
    """Publish; latencies are from the call to the receipt. 0 leaves a limit to the tool."""
    return _perf(
        "produce",
        topic,
        *("--url", url),
        *("--messages", str(messages)),
        *("--size", str(size)),
        *("--in-flight", str(in_flight)),
        *("--batch", str(batch)),
        *("--rate", str(rate)),
        *("--seconds", str(seconds_max)),
    )


def consume(
    url: str,
    topic: str,
    *,
    messages: int,
    receiver_queue: int = 20_000,
    ack: str = "individual",
    subscription: str = "perf",
) -> Rate:
    """Catch up from the first message. Latencies are dropped: they are the age of the backlog."""
    rate = _perf(
        "consume",
        topic,
        *("--url", url),
        *("--messages", str(messages)),
        *("--receiver-queue", str(receiver_queue)),
        *("--ack", ack),
        *("--subscription", subscription),
    )
    return Rate(rate.messages, rate.seconds, rate.msgs_per_s, rate.mb_per_s, None)


def ledger(metadata_url: str, *, messages: int, size: int, in_flight: int) -> Rate:
    """Measure one ledger writer, (3, 3, 2), directly on the bookies."""
    return _perf(
        "ledger",
        *("--metadata", metadata_url),
        *("--messages", str(messages)),
        *("--size", str(size)),
        *("--in-flight", str(in_flight)),
    )


def run(module: str, *arguments: object) -> Any:
    """Run a load of this folder; return the JSON that it prints."""
    command = [sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]
    return json.loads(_output(command))


def _perf(*arguments: str) -> Rate:
    result = json.loads(_output(magnetar_command("perf", *arguments, "--json")).splitlines()[-1])
    latency = result["latency_ms"]
    return Rate(
        messages=result["messages"],
        seconds=result["seconds"],
        msgs_per_s=result["msgs_per_s"],
        mb_per_s=result["mb_per_s"],
        latency_ms=Latency(latency["p50"], latency["p99"], latency["p999"], latency["max"]),
    )


def _output(command: list[str]) -> str:
    finished = subprocess.run(
        command,
        env=magnetar_environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if finished.returncode != 0:
        raise LoadFailedError(f"{' '.join(command[2:])}: {finished.stderr.strip()}")
    return finished.stdout
