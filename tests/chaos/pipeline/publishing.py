"""Flights and weather, published by the official client, in the order of their hours."""

from collections.abc import Sequence
from datetime import datetime

import pulsar

from tests.chaos.pipeline.archives import Row
from tests.flights import read_flights, weather_lines

CARRIER, HOUR, WEATHER_HOUR = 9, 18, 14
_DAY_AFTER = b"2014-01-02T00:00:00Z"


def flight_rows(limit: int) -> list[Row]:
    """What is published: keys are carriers, event times the scheduled hours."""
    lines = sorted(read_flights(limit), key=lambda line: line.rsplit(b",", 1)[1])
    rows: list[Row] = []
    for number, line in enumerate(lines):
        fields = line.split(b",")
        hour_ms = round(datetime.fromisoformat(fields[HOUR].decode()).timestamp() * 1000)
        rows.append((line, fields[CARRIER], hour_ms, (("number", str(number)),)))
    return rows


def publish_rows(url: str, topic: str, rows: Sequence[Row], log_path: str) -> None:
    """Publish them and wait until all are stored. Where topics deduplicate each is there once."""
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, log_path))
    producer = client.create_producer(
        topic,
        send_timeout_millis=0,
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_messages=100,
    )
    failures: list[object] = []

    def on_sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    for value, key, time_ms, properties in rows:
        producer.send_async(
            value,
            on_sent,
            partition_key=None if key is None else key.decode(),
            event_timestamp=time_ms,
            properties=dict(properties),
        )
    producer.flush()
    client.close()
    assert not failures, f"{len(failures)} flights were not stored: {failures[0]}"


def publish_end(url: str, topic: str, like: Row, log_path: str) -> None:
    """A row as the last one, but of another year: it closes the windows before it."""
    value, key, time_ms, properties = like
    assert value is not None
    line = value.rpartition(b",")[0] + b"," + _DAY_AFTER
    publish_rows(url, topic, [(line, key, time_ms, properties)], log_path)


def weather_rows() -> list[Row]:
    lines = sorted(weather_lines(), key=lambda line: line.rsplit(b",", 1)[1])
    return [(line, None, 1, ()) for line in lines]
