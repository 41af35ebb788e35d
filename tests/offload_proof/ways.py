"""The ways of reading a topic: the official client, a WebSocket, Spark. Each reads from the first
message on, notes what it got, and says whether more would follow."""

import asyncio
import json
import subprocess
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from magnetar.sdk.wire.pulsar_pb2 import MessageIdData
from tests.integration.broker.websocket.sockets import Topic
from tests.integration.pulsar_client.support import connect, read_next
from tests.offload_proof.content import Seen, digest_of
from tests.processes import ROOT, magnetar_environment, python_command

_SPARK_TIMEOUT_S = 1_200.0
_WEBSOCKET_QUEUE = 1_000


@dataclass(slots=True)
class Read:
    """What one way has read, by topic."""

    seen: dict[str, list[Seen]] = field(default_factory=dict)
    published_ms: dict[str, list[int]] = field(default_factory=dict)
    """Publish times, from the official client only."""
    seconds: float | None = None
    """None: it does not measure by itself."""


def by_official_client(url: str, counts: Mapping[str, int]) -> Read:
    """Read so many messages of each topic, and see that there are no more."""
    read = Read()
    client = connect(url)
    try:
        for topic, count in counts.items():
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            seen, published_ms = read.seen[topic], read.published_ms[topic] = [], []
            for _ in range(count):
                message = read_next(reader)
                seen.append(_of_message(message))
                published_ms.append(message.publish_timestamp())
            assert not reader.has_message_available(), f"{topic} has more than {count} messages"
            reader.close()
    finally:
        client.close()
    return read


def _of_message(message: pulsar.Message) -> Seen:
    place = message.message_id()
    return Seen(place.ledger_id(), place.entry_id(), place.batch_index(), digest_of(message.data()))


def by_websocket(http_port: int, counts: Mapping[str, int]) -> Read:
    """Read so many messages of each topic by a reader's session of one broker."""

    async def run() -> Read:
        return Read(
            {topic: await _over_socket(http_port, topic, counts[topic]) for topic in counts}
        )

    return asyncio.run(run())


async def _over_socket(http_port: int, topic: str, count: int) -> list[Seen]:
    seen = []
    query = f"messageId=earliest&receiverQueueSize={_WEBSOCKET_QUEUE}"
    way = Topic(http_port, topic.removeprefix("persistent://"))
    async with way.reader(query, max_size=None) as socket:
        for _ in range(count):
            frame = await socket.receive()
            place = MessageIdData.FromString(b64decode(frame["messageId"]))
            digest = digest_of(b64decode(frame["payload"]))
            seen.append(Seen(place.ledgerId, place.entryId, place.batch_index, digest))
            await socket.ack(frame["messageId"])
        await socket.send({"type": "isEndOfTopic"})
        answer = await socket.receive()
        assert "endOfTopic" in answer, f"{topic} has more than {count} messages"
    return seen


def by_spark(
    options: Mapping[str, str],
    topics: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
) -> Read:
    """Read all rows of the topics by one batch query of a Spark of its own."""
    result = directory / "spark-rows.json"
    done = subprocess.run(
        python_command(
            "tests.offload_proof.spark_rows",
            json.dumps({**options, "topics": ",".join(topics)}),
            str(directory),
            str(result),
        ),
        env={**magnetar_environment(), **environment},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SPARK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"Spark: {done.stdout[-4000:]}"
    found = json.loads(result.read_text())
    seen = {topic: [Seen(*each) for each in found["rows"].get(topic, ())] for topic in topics}
    return Read(seen, seconds=found["seconds"])
