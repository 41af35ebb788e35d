"""Spoiled WebSocket frames, paths and queries against the cores of sessions.

Whatever a client says: a producer's frame is a publish or exactly one answer, a consumer's is an
effect or ends the session, a path is an endpoint or has a status; and every answer is JSON.
"""

import json
import os
import random
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote, urlencode

from magnetar.broker.websocket.consumer_core import ConsumerCore, ReaderCore
from magnetar.broker.websocket.endpoint import (
    ConsumerParameters,
    Endpoint,
    Kind,
    ProducerParameters,
    ReaderParameters,
    parse_target,
)
from magnetar.broker.websocket.errors import BadFrameError, UpgradeRefusedError
from magnetar.broker.websocket.producer_core import ProducerCore, deliver_at_ms
from magnetar.sdk.errors import AlreadyClosedError
from magnetar.sdk.message_id import MessageId
from tests.fuzz.findings import Findings
from tests.processes import resident_bytes_of

_ID = b64encode(MessageId(3, 4, 1, 0, 5).to_bytes()).decode()
_FIELDS: dict[str, object] = {
    "payload": "aGVsbG8=",
    "properties": {"a": "b"},
    "context": "1",
    "key": "k",
    "replicationClusters": ["c"],
    "eventTime": "2026-01-31T10:15:30.123+01:00",
    "deliverAt": 1,
    "deliverAfterMs": 1,
    "messageId": _ID,
    "type": "permit",
    "permitMessages": 1,
    "encryptionParam": "AA==",
    "compressionType": "LZ4",
    "uncompressedMessageSize": 1,
}
_TYPES = ("permit", "unsubscribe", "isEndOfTopic", "negativeAcknowledge", "acknowledge", "")
_ODD: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1 << 62, 1 << 64, 10**400, 1.5, float("nan"), float("inf")),
    *("", "=", "A", "AA==", "\ud800", "\x00", "ü", "9999-12-31T23:59:59+00:00", "0001-01-01T00Z"),
    *([], {}, [[]], {"": None}, {"a": {"b": []}}, [None], ["\udfff"], _ID, _ID[:-4], "x" * 5000),
)
_NAMES = (
    *("receiverQueueSize", "subscriptionType", "ackTimeoutMillis", "pullMode", "messageId"),
    *("initialSequenceId", "sendTimeoutMillis", "compressionType", "batchingEnabled", "token"),
    *("batchingMaxMessages", "maxPendingMessages", "maxRedeliverCount", "deadLetterTopic"),
    *(
        "topics",
        "topicsPattern",
        "encryptionKeys",
        "negativeAckRedeliveryDelay",
        "priorityLevel",
        "hashingScheme",
    ),
)
_VALUES = (
    *("", "0", "1", "-1", "true", "Shared", "LZ4", "earliest", "99999999999999999999", "1e3"),
    *(
        "persistent://a/b/c",
        "persistent://a/b/(x*)*",
        "a,b,,c",
        "\x00",
        "ü",
        "%",
        "+",
        "(",
        _ID,
        "eyJhIjp7fX0=",
    ),
)
_PARTS = ("ws", "v2", "v3", "producer", "consumer", "reader", "persistent", "t", "n", "", "..", "ü")


def frame(chance: random.Random) -> bytes:
    """A frame: mostly JSON with wrong values, sometimes less than that."""
    names = chance.sample(sorted(_FIELDS), chance.randrange(len(_FIELDS)))
    body: dict[str, object] = {name: _FIELDS[name] for name in names}
    if chance.random() < 0.5:
        body["type"] = chance.choice(_TYPES)
    for _ in range(chance.randrange(3)):
        body[chance.choice((*_FIELDS, "other"))] = chance.choice(_ODD)
    if chance.random() < 0.02:
        return b"[" * chance.randrange(1, 5_000)
    try:
        data = bytearray(json.dumps(body).encode())
    except ValueError:  # more digits than Python writes
        data = bytearray(b'{"deliverAt":' + b"9" * 5000 + b"}")
    for _ in range(chance.choice((0, 0, 0, 1, 5))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at : at + chance.randrange(10)]
            case _:
                data[at:at] = chance.choice((b'"', b"{", b"}", b",", b"\\u", b"\xff", b"0"))
    return bytes(data)


def target(chance: random.Random) -> str:
    """A path with a query."""
    parts = chance.choice(
        (
            ["ws", "v2", "producer", "persistent", "t", "n", "x"],
            ["ws", "v2", "consumer", "non-persistent", "t", "n", "x", "s"],
            ["ws", "v2", "reader", "persistent", "t", "n", "x"],
            ["ws", "v3", "consumer", "s"],
        )
    )
    for _ in range(chance.choice((0, 0, 1, 2))):
        at = chance.randrange(len(parts) + 1)
        parts[at : at + chance.randrange(2)] = [chance.choice(_PARTS)]
    path = "/" + "/".join(quote(part) for part in parts)
    pairs = [(chance.choice(_NAMES), chance.choice(_VALUES)) for _ in range(chance.randrange(4))]
    text = f"{path}?{urlencode(pairs)}"
    if chance.random() < 0.2:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(("%", "%ff", "?", "&", "=", "/", "\x7f")) + text[at:]
    return text


def parameters_of(endpoint: Endpoint) -> ProducerParameters | ConsumerParameters | ReaderParameters:
    """As the service reads them."""
    match endpoint.kind:
        case Kind.PRODUCER:
            return ProducerParameters.of(endpoint.query)
        case Kind.CONSUMER:
            return ConsumerParameters.of(endpoint.query, queue_max=1000)
        case Kind.READER:
            return ReaderParameters.of(endpoint.query, queue_max=1000)


def try_producer(data: bytes) -> None:
    """One frame to a producer, and an outcome. Raises: AssertionError."""
    core = ProducerCore(messages_max=1, bytes_max=1000)
    publish = core.on_text(data)
    if publish is not None:
        assert core.is_full
        deliver_at_ms(publish, 0)
        for each in (publish.key or "", *(publish.properties or {}).items()):
            str(each).encode()  # what a protobuf string takes
        core.on_outcome(publish, None, AlreadyClosedError("closed"))
    answers = core.take_answers()
    assert len(answers) == 1
    body = json.loads(answers[0])
    assert body["result"].startswith("send-error:")
    assert body["errorMsg"]
    assert core.under_way == 0


def try_consumer(data: bytes) -> None:
    """One frame to consumers of both modes and to a reader. Raises: AssertionError."""
    for query in ({"pullMode": "true"}, {}):
        parameters = ConsumerParameters.of(query, queue_max=10)
        core = ConsumerCore(parameters, unacknowledged_max=10)
        _understood(core, data)
        assert core.room >= 0
    reader = ReaderCore(queue_messages=1)
    _understood(reader, data)
    assert reader.room == 1


def try_target(text: str) -> None:
    """One path. Raises: AssertionError."""
    refusal: UpgradeRefusedError | None = None
    try:
        parameters_of(parse_target(text))
    except UpgradeRefusedError as error:
        refusal = error
    assert refusal is None or (refusal.status in (400, 404) and str(refusal))


def _understood(core: ConsumerCore | ReaderCore, data: bytes) -> None:
    refusal: BadFrameError | None = None
    try:
        core.on_text(data)
    except BadFrameError as error:
        refusal = error
    assert refusal is None or refusal.text


async def fuzz(seeds: range, directory: Path, findings: Findings) -> None:
    """The cases of some seeds."""
    for seed in seeds:
        chance = random.Random(seed)
        data, text = frame(chance), target(chance)
        try:
            try_producer(data)
            try_consumer(data)
            try_target(text)
        except Exception as error:  # noqa: BLE001 - anything at all is a finding
            findings.add(f"seed {seed}: {error!r} of {data[:200]!r}, {text!r}")
    findings.inputs += len(seeds)
    findings.see_memory(resident_bytes_of(os.getpid()), f"seed {seeds.stop - 1}")
