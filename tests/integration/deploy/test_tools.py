"""The daily tools and the tour, as a person runs them."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from magnetar.sdk import Client
from magnetar.sdk.schemas import AvroSchema
from tests.integration.deploy.commands import Ended, magnetar, module
from tests.processes import HOST, free_ports, magnetar_command, magnetar_environment
from tests.standalone import Standalone
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("tools") / "data") as started:
        yield started


def run(server: Standalone, *arguments: str, stdin: str = "") -> Ended:
    ended = magnetar(*arguments, "--url", server.url, stdin=stdin)
    assert ended.status == 0, ended.stderr
    return ended


def test_what_is_produced_from_stdin_is_read_line_by_line(server: Standalone) -> None:
    lines = [f"line {number}" for number in range(12_345)]
    ended = run(server, "produce", "lines", stdin="\n".join(lines))
    assert "12345 messages stored" in ended.stderr
    assert run(server, "read", "lines").stdout.splitlines() == lines


@contextmanager
def producing(server: Standalone, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """`magnetar produce`, connected, which reads a pipe."""
    with subprocess.Popen(
        magnetar_command("produce", topic, "--url", server.url),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=magnetar_environment(),
    ) as process:
        listing = ("admin", "topics", "list", "public/default", "--admin-url", server.http_url)
        try:
            wait_until(lambda: topic in magnetar(*listing).stdout, "it is connected")
            yield process
        finally:
            process.kill()


def test_a_line_is_published_as_soon_as_it_is_there(server: Standalone) -> None:
    read = ("read", "trickle", "--follow", "--count")
    with producing(server, "trickle") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        assert run(server, *read, "1").stdout == "one\n"
        process.stdin.write(b"o\r\n\nthree")
        process.stdin.close()
        assert process.wait(30) == 0
    assert run(server, *read, "4").stdout == "one\ntwo\n\nthree\n"


def test_ctrl_c_ends_publishing_though_no_line_comes(server: Standalone) -> None:
    with producing(server, "silence") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_json_tells_nulls_and_keys_of_bytes_from_text(server: Standalone) -> None:
    async def send() -> None:
        async with Client(server.url) as client, await client.producer("marks") as producer:
            await producer.send(None, key="gone")
            await producer.send(b"", key=b"\xff")
            await producer.send(b"\xff")

    asyncio.run(send())
    lines = run(server, "read", "marks", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each.get("payload", ...) for each in found] == [None, "", ...]
    assert [each.get("key", ...) for each in found] == ["gone", ..., None]
    assert found[1]["key_base64"] == found[2]["payload_base64"] == "/w=="


@dataclass
class Flight:
    number: int
    to: str | None = None


def test_text_is_encoded_by_the_topics_schema_or_refused(server: Standalone) -> None:
    schema = AvroSchema(Flight)

    async def make() -> None:
        async with Client(server.url) as client:
            await client.producer("avro-flights", schema=schema)

    async def read() -> list[object]:
        async with Client(server.url) as client:
            reader = await client.reader("avro-flights", schema=schema)
            return [(await reader.read_next(timeout_s=30)).value() for _ in range(2)]

    asyncio.run(make())
    run(server, "produce", "avro-flights", "-m", '{"number": 1545, "to": "IAH"}')
    ended = magnetar("produce", "avro-flights", "-m", "UA 1545 to IAH", "--url", server.url)
    assert ended.status != 0
    assert "the topic's schema is AVRO: the payload is not JSON" in ended.stderr
    run(server, "produce", "avro-flights", "--as-is", stdin="\x02\x00")
    assert asyncio.run(read()) == [Flight(1545, "IAH"), Flight(1)]


def test_key_and_properties_arrive(server: Standalone) -> None:
    run(server, "produce", "keyed", "-m", "one", "-k", "UA", "-p", "a=1", "-p", "b=2=3")
    message = json.loads(run(server, "read", "keyed", "--json").stdout)
    assert message["payload"] == "one"
    assert message["key"] == "UA"
    assert message["properties"] == {"a": "1", "b": "2=3"}


def test_a_subscription_goes_on_where_it_stopped(server: Standalone) -> None:
    run(server, "produce", "kept", "-m", "one", "-m", "two", "-m", "three")
    consume = ("consume", "kept", "-s", "mine", "--initial", "earliest")
    assert run(server, *consume, "-n", "1").stdout.split() == ["one"]
    assert run(server, *consume, "-n", "2").stdout.split() == ["two", "three"]


@pytest.mark.parametrize("kind", ["failover", "shared", "key_shared"])
def test_every_type_of_subscription_can_be_consumed(server: Standalone, kind: str) -> None:
    for key in ("a", "b"):
        run(server, "produce", kind, "-m", f"of {key}", "-k", key)
    consume = ("consume", kind, "-s", "mine", "--initial", "earliest", "--type", kind)
    assert run(server, *consume, "-n", "2").stdout.splitlines() == ["of a", "of b"]


def test_reading_can_begin_at_a_message(server: Standalone) -> None:
    for payload in ("one", "two", "three"):
        run(server, "produce", "ids", "-m", payload)
    listed = [json.loads(line) for line in run(server, "read", "ids", "--json").stdout.splitlines()]
    start = ":".join(listed[1]["id"].split(":")[:2])
    assert run(server, "read", "ids", "--start", start).stdout.split() == ["two", "three"]


def test_payloads_that_are_no_text_are_base64_in_json(server: Standalone) -> None:
    run(server, "produce", "empty", "-m", "")
    assert json.loads(run(server, "read", "empty", "--json").stdout)["payload"] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "t", "-m", "x", "-p", "no-equals-sign"),
        ("consume", "t", "-s", "s", "--type", "nonsense"),
        ("consume", "t", "-s", "s", "--initial", "nonsense"),
        ("read", "t", "--start", "nonsense"),
    ],
)
def test_a_bad_option_is_one_line(server: Standalone, arguments: tuple[str, ...]) -> None:
    ended = magnetar(*arguments, "--url", server.url)
    assert ended.status == 2
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("topic", ["persistent://no-such-tenant/ns/t", "a/b"])
def test_what_the_broker_refuses_is_one_line(server: Standalone, topic: str) -> None:
    ended = magnetar("produce", topic, "-m", "x", "--url", server.url)
    assert ended.status == 8
    assert len(ended.stderr.splitlines()) == 1


def test_no_broker_is_one_line() -> None:
    (port,) = free_ports(1)
    ended = magnetar("read", "t", "--url", f"pulsar://{HOST}:{port}")
    assert ended.status == 8
    assert str(port) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_tour_ends_with_0_and_shows_what_it_measured(tmp_path: Path) -> None:
    free = ("--port", "0", "--http-port", "0")
    tour = ("magnetar.deploy.tour", "--data", str(tmp_path / "data"), *free, "--exit-after-tour")
    for _ in range(2):  # The second one finds the first one's data.
        ended = module(*tour)
        assert ended.status == 0, ended.stderr
        assert "5000/5000" in ended.stdout
        assert "once, in order" in ended.stdout
        assert "Traceback" not in ended.stderr


def test_a_tour_after_one_that_was_broken_off_sees_its_own_flights_only(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        lines = "\n".join(f"a,b,c,d,e,f,g,h,i,UA,{number}" for number in range(3))
        consume = ("consume", "flights", "-s", "tour", "--initial", "earliest", "-n", "1")
        run(server, "produce", "flights", "-k", "UA", stdin=lines)
        run(server, *consume)
        server.kill()
    ended = module(
        *("magnetar.deploy.tour", "--data", str(tmp_path / "data"), "--exit-after-tour"),
        *("--port", "0", "--http-port", "0"),
    )
    assert ended.status == 0, ended.stderr
    assert "once, in order" in ended.stdout


def test_the_tour_says_so_when_its_port_is_taken(server: Standalone, tmp_path: Path) -> None:
    ended = module(
        *("magnetar.deploy.tour", "--data", str(tmp_path / "data"), "--exit-after-tour"),
        *("--port", str(server.port)),
    )
    assert ended.status == 3
    assert ended.messages() == [line for line in ended.messages() if str(server.port) in line]
    assert len(ended.messages()) == 1
