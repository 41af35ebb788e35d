"""The daily tools and the tour, as a person runs them."""

import asyncio
import json
import os
import signal
import subprocess
import zlib
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


def test_messages_are_printed_in_a_format_of_ones_own(server: Standalone) -> None:
    run(server, "produce", "formed", "-K", ":", "-p", "a=1", stdin="one:1\ntwo:2\n")
    listed = run(server, "read", "formed", "--json").stdout.splitlines()
    ids = [json.loads(line)["id"] for line in listed]
    shown = run(server, "read", "formed", "--format", r"%k %v %p{a}\t%i").stdout
    assert shown.splitlines() == [f"one 1 1\t{ids[0]}", f"two 2 1\t{ids[1]}"]
    consume = ("consume", "formed", "-s", "s", "--initial", "earliest", "-n", "2")
    assert run(server, *consume, "-F", r"%v\0").stdout == "1\0" + "2\0"


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


def test_what_is_printed_as_json_is_published_again_as_it_was(server: Standalone) -> None:
    async def send() -> None:
        async with Client(server.url) as client, client.producer("from") as producer:
            await producer.send(b"text", key="k", properties={"a": "1"}, event_time_ms=7)
            await producer.send(None, key="gone")
            await producer.send(b"\xff\x00", key=b"\xfe", ordering_key=b"o")
            await producer.send(b"")

    asyncio.run(send())
    lines = run(server, "read", "from", "--json").stdout
    assert "4 messages stored" in run(server, "produce", "to", "--json", stdin=lines).stderr
    again = run(server, "read", "to", "--json").stdout

    def without_places(text: str) -> list[dict[str, object]]:
        found = [json.loads(line) for line in text.splitlines()]
        return [
            {name: value for name, value in each.items() if name not in ("id", "publish_time_ms")}
            for each in found
        ]

    assert without_places(again) == without_places(lines)


def test_a_file_is_one_message_and_comes_out_as_it_went_in(
    server: Standalone, tmp_path: Path
) -> None:
    # More than a broker takes in one piece, and with ends of lines in it.
    content = bytes(range(256)) * (24 << 10)
    (tmp_path / "in").write_bytes(content)
    ended = run(server, "produce", "files", "--file", str(tmp_path / "in"))
    assert "1 message stored" in ended.stderr
    with (tmp_path / "out").open("wb") as out:
        command = magnetar_command("read", "files", "--count", "1", "--raw", "--url", server.url)
        subprocess.run(command, stdout=out, check=True, timeout=60, env=magnetar_environment())
    assert (tmp_path / "out").read_bytes() == content


def test_each_line_has_its_own_key(server: Standalone) -> None:
    run(server, "produce", "pairs", "-K", ":", "-p", "a=1", stdin="one:1\ntwo:2:2\n:3\n")
    found = [
        json.loads(line) for line in run(server, "read", "pairs", "--json").stdout.splitlines()
    ]
    assert [(each["key"], each["payload"]) for each in found] == [
        ("one", "1"),
        ("two", "2:2"),
        ("", "3"),
    ]
    assert all(each["properties"] == {"a": "1"} for each in found)


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("--json",), '{"payload": "a"}\nno json\n', "bad line 'no json'"),
        (("--json",), '{"payload": "a"}\n{"payloat": "b"}\n', "unknown name 'payloat'"),
        (("-K", ":"), "k:a\nno separator\n", "'no separator'"),
    ],
)
def test_a_bad_line_is_told_and_what_came_before_it_is_stored(
    server: Standalone, arguments: tuple[str, ...], stdin: str, said: str
) -> None:
    topic = f"bad-lines-{zlib.crc32(stdin.encode())}"
    ended = magnetar("produce", topic, *arguments, "--url", server.url, stdin=stdin)
    assert ended.status == 2
    assert said in ended.stderr
    assert "1 message stored" in ended.stderr
    assert run(server, "read", topic).stdout == "a\n"


def test_bytes_of_the_command_line_that_are_no_text_are_sent_or_refused(
    server: Standalone,
) -> None:
    odd = os.fsdecode(b"\xff")
    run(server, "produce", "odd", "-m", odd)
    assert json.loads(run(server, "read", "odd", "--json").stdout)["payload_base64"] == "/w=="
    for option, value in (("--key", odd), ("--property", f"a={odd}")):
        ended = magnetar("produce", "odd", "-m", "x", option, value, "--url", server.url)
        assert ended.status == 2
        assert f"bad {option}" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_an_id_is_taken_as_it_is_printed_also_inside_a_batch(server: Standalone) -> None:
    run(server, "produce", "batch", stdin="\n".join(map(str, range(100))))
    lines = run(server, "read", "batch", "--json").stdout.splitlines()
    listed = [json.loads(line)["id"] for line in lines]
    for at in (0, 42, 99):
        ended = run(server, "read", "batch", "--start", listed[at], "--count", "2")
        assert ended.stdout.split() == [str(each) for each in range(at, min(at + 2, 100))]


def test_reading_begins_at_a_time_or_with_the_newest(server: Standalone) -> None:
    for payload in ("one", "two", "three"):
        run(server, "produce", "times", "-m", payload)
    listed = [
        json.loads(line) for line in run(server, "read", "times", "--json").stdout.split("\n")[:3]
    ]
    second_ms = str(listed[1]["publish_time_ms"])
    assert run(server, "read", "times", "--start", second_ms).stdout.split() == ["two", "three"]
    assert run(server, "read", "times", "--start", "-1h").stdout.split() == ["one", "two", "three"]
    assert run(server, "read", "times", "--start", "now").stdout == ""
    assert run(server, "read", "times", "--last", "2").stdout.split() == ["two", "three"]
    assert run(server, "read", "times", "--last", "9").stdout.split() == ["one", "two", "three"]
    assert run(server, "read", "times", "--last", "3", "-n", "2").stdout.split() == ["one", "two"]


def test_the_newest_are_of_all_partitions(server: Standalone) -> None:
    make = ("admin", "topics", "create", "parted", "--partitions", "3")
    assert magnetar(*make, "--admin-url", server.http_url).status == 0
    for number in range(6):
        run(server, "produce", "parted", "-m", str(number))
    assert run(server, "read", "parted", "--last", "4").stdout.split() == ["2", "3", "4", "5"]


def test_reading_a_topic_that_is_not_there_makes_none(server: Standalone) -> None:
    ended = magnetar("read", "no-such-topic", "--url", server.url)
    assert ended.status == 14, ended.stderr
    assert "no-such-topic" in ended.stderr
    listing = ("admin", "topics", "list", "public/default", "--admin-url", server.http_url)
    assert "no-such-topic" not in magnetar(*listing).stdout


def test_waiting_ends_when_nothing_comes(server: Standalone) -> None:
    run(server, "produce", "quiet", "-m", "one")
    consume = ("consume", "quiet", "-s", "s", "--initial", "earliest", "--timeout", "500ms")
    assert run(server, *consume).stdout == "one\n"
    ended = magnetar(*consume, "--count", "2", "--url", server.url)
    assert ended.status == 16
    assert "0 of 2 messages came" in ended.stderr
    assert run(server, "read", "quiet", "--follow", "--timeout", "500ms").stdout == "one\n"


def test_a_host_and_a_port_are_enough_of_a_url(server: Standalone) -> None:
    ended = magnetar("produce", "short", "-m", "x", "--url", f"{HOST}:{server.port}")
    assert ended.status == 0, ended.stderr


def test_values_are_shown_by_the_topics_schema_and_can_be_published_again(
    server: Standalone,
) -> None:
    async def make(topic: str) -> None:
        async with Client(server.url) as client:
            await client.producer(topic, schema=AvroSchema(Flight))

    asyncio.run(make("avro-out"))
    asyncio.run(make("avro-in"))
    run(server, "produce", "avro-out", "-m", '{"number": 1545, "to": "IAH"}')
    assert json.loads(run(server, "read", "avro-out").stdout) == {"number": 1545, "to": "IAH"}
    line = run(server, "read", "avro-out", "--json").stdout
    assert json.loads(line)["value"] == {"number": 1545, "to": "IAH"}
    run(server, "produce", "avro-in", "--json", stdin=line)
    assert json.loads(run(server, "read", "avro-in").stdout)["to"] == "IAH"
    undecoded = json.loads(run(server, "read", "avro-in", "--json", "--as-is").stdout)
    assert "value" not in undecoded


def test_perf_says_how_it_goes_and_shows_a_histogram(server: Standalone) -> None:
    load = ("perf", "produce", "load", "-n", "2000", "--rate", "1000", "--progress")
    ended = run(server, *load)
    assert "msg/s" in ended.stderr
    assert "latency ms, messages:" in ended.stdout
    consume = ("perf", "consume", "load", "-n", "2000")
    assert "age of the backlog ms" in run(server, *consume).stdout
    nothing = magnetar("perf", "consume", "load", "--idle-seconds", "0.2", "--url", server.url)
    assert nothing.status == 16
    assert "nothing came from load" in nothing.stderr


def test_doctor_is_content_with_a_server_that_is_well(server: Standalone, tmp_path: Path) -> None:
    ended = magnetar(
        *("doctor", "--url", server.url, "--admin-url", server.http_url, "--json"),
        *("--data", str(tmp_path)),
    )
    assert ended.status == 0, ended.stdout
    found = {each["check"]: each["state"] for each in map(json.loads, ended.stdout.splitlines())}
    disk = found.pop("disk")
    assert disk in ("ok", "warning")
    assert found == {"service": "ok", "clock": "ok", "http": "ok", "bookies": "ok"}


def test_doctor_says_what_is_wrong_and_how_bad_it_is(server: Standalone) -> None:
    (port,) = free_ports(1)
    ended = magnetar("doctor", "--url", f"{HOST}:{port}", "--admin-url", server.http_url)
    assert ended.status == 8
    (failed,) = [line for line in ended.stdout.splitlines() if line.startswith("failed")]
    assert str(port) in failed
    expired = {"MAGNETAR_TOKEN": "e30.eyJzdWIiOiJtZSIsImV4cCI6MX0.x"}
    addresses = ("--url", server.url, "--admin-url", server.http_url)
    ended = magnetar("doctor", *addresses, environment=expired)
    assert ended.status == 15
    assert "expired" in ended.stdout
    missing = ("--metadata", "embedded:/nowhere/metadata.db")
    assert magnetar("doctor", *addresses, *missing).status == 2


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
        ("read", "t", "--start", "-1h", "--last", "3"),
        ("read", "t", "--last", "100001"),
        ("read", "t", "--timeout", "5"),
        ("read", "t", "--format", "%z"),
        ("read", "t", "--format", "%v", "--json"),
        ("consume", "t", "-s", "s", "--raw", "--json"),
        ("produce", "t", "-m", "x", "--file", "/dev/null"),
        ("produce", "t", "--json", "--key-separator", ":"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--file", "/no/such/file"),
    ],
)
def test_a_bad_option_is_one_line(server: Standalone, arguments: tuple[str, ...]) -> None:
    ended = magnetar(*arguments, "--url", server.url)
    assert ended.status == 2
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("topic", "status"), [("persistent://no-such-tenant/ns/t", 14), ("a/b", 2)]
)
def test_what_is_refused_is_one_line_with_a_status_of_its_own(
    server: Standalone, topic: str, status: int
) -> None:
    ended = magnetar("produce", topic, "-m", "x", "--url", server.url)
    assert ended.status == status, ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_an_answer_in_http_is_told_in_one_line(server: Standalone) -> None:
    port = server.http_url.rpartition(":")[2]
    ended = magnetar("read", "t", "--url", f"pulsar://{HOST}:{port}")
    assert ended.status == 8
    assert "answers in HTTP" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_context_says_where_the_cluster_is(server: Standalone, tmp_path: Path) -> None:
    kept = {"MAGNETAR_CONTEXTS": str(tmp_path / "contexts.json")}

    def of_context(*arguments: str) -> Ended:
        return magnetar(*arguments, environment=kept)

    addresses = ("--url", server.url, "--admin-url", server.http_url)
    assert of_context("context", "set", "here", *addresses).status == 0
    assert of_context("context", "set", "away", "--url", f"{HOST}:1").status == 0
    assert "* here" in of_context("context", "list").stdout
    assert of_context("produce", "by-context", "-m", "x").status == 0
    assert "by-context" in of_context("admin", "topics", "list", "public/default").stdout
    assert of_context("--context", "away", "read", "by-context").status == 8
    assert of_context("context", "use", "away").status == 0
    assert of_context("read", "by-context").status == 8
    # An option goes before the context.
    assert of_context("read", "by-context", "--url", server.url).stdout == "x\n"
    assert json.loads(of_context("context", "show", "--json").stdout)["name"] == "away"
    unknown = of_context("--context", "nowhere", "read", "by-context")
    assert unknown.status == 2
    assert "known are away, here" in unknown.stderr
    assert of_context("context", "delete", "away").status == 0
    assert of_context("context", "list").stdout.split()[0] == "here"


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
