"""Spoiled requests against a real bookie.

Each case is a connection of its own that sends a stream of requests, good and spoiled, cut into
random pieces. The frame decoder is the reference for what the bookie can make of the stream: each
request in it must be answered exactly once, unless the bookie ends that connection. A second
connection adds and reads all the while and must not notice.
"""

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import unpack

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server import BookieConnection
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork
from magnetar.ledger.wire import (
    MASTER_KEY_BYTES,
    Flag,
    Frame,
    FrameDecoder,
    Op,
    Status,
    encode_block,
)
from magnetar.ledger.wire_adds import (
    ADD_HEAD,
    COUNT_BYTES,
    NO_ID,
    count_of,
    decode_outcome,
    encode_count,
)
from magnetar.ledger.wire_bodies import LongPoll, encode_long_poll
from tests.bookie_parts import (
    KEY,
    OTHER_KEY,
    BookieClient,
    add_request,
    encode_request,
    packets_in,
    read_lac_request,
    read_request,
)
from tests.fuzz import mutations
from tests.fuzz.findings import Findings

_GOOD_LEDGER = 77_777_777_777
_LEDGERS = range(1, 6)
_REQUESTS_MAX = 12
_ANSWER_TIMEOUT_S = 10.0
_LONG_POLL_MS_MAX = 20
_STATUSES = frozenset(Status)
_CONNECTIONS_KEPT_MAX = 70
"""In memory: the open one, and those whose long polls left early (`long_polls.py` keeps some)."""

_KEYS = (KEY, KEY, KEY, b"", OTHER_KEY)
"""Of reads: as a rule the ledgers'."""
Make = Callable[[random.Random, int], Frame]


def _add(source: random.Random, number: int) -> Frame:
    return add_request(
        number,
        source.choice(_LEDGERS),
        source.randrange(20),
        source.randint(1, 5),
        flags=source.choice((0, 0, Flag.RECOVERY)),
        payload=source.randbytes(source.randrange(60)),
    )


def _adds(source: random.Random, number: int) -> Frame:
    adds = {}
    for _ in range(source.randint(1, 6)):
        one = _add(source, number)
        key, block = one.body[:MASTER_KEY_BYTES], one.body[MASTER_KEY_BYTES:]
        head = ADD_HEAD.pack(one.ledger_id, one.entry_id, len(block), key)
        adds[one.ledger_id, one.entry_id] = head + block
    body = encode_count(len(adds)) + b"".join(adds.values())
    return Frame(Op.ADDS, False, 0, 0, number, NO_ID, NO_ID, body)


def _read(source: random.Random, number: int) -> Frame:
    first = source.randrange(20)
    return read_request(
        number,
        source.choice(_LEDGERS),
        first,
        first + source.randrange(20),
        key=source.choice(_KEYS),
        fence_key=source.choice((None, None, KEY)),
        bytes_max=source.choice((0, 1, 100, 1 << 20, (1 << 32) - 1)),
    )


def _read_lac(source: random.Random, number: int) -> Frame:
    return read_lac_request(
        number,
        source.choice(_LEDGERS),
        key=source.choice(_KEYS),
        fence_key=source.choice((None, None, KEY)),
    )


def _long_poll(source: random.Random, number: int) -> Frame:
    body = encode_long_poll(
        LongPoll(
            source.randrange(-1, 30),
            source.randrange(_LONG_POLL_MS_MAX),
            1000,
            source.choice(_KEYS),
        )
    )
    ledger_id = source.choice(_LEDGERS)
    return Frame(Op.READ_LAC, False, Flag.LONG_POLL, 0, number, ledger_id, -1, body)


def _write_lac(source: random.Random, number: int) -> Frame:
    ledger_id, lac = source.choice(_LEDGERS), source.randrange(-1, 20)
    body = KEY + packet_codec(ledger_id).seal_lac(lac)
    return Frame(Op.WRITE_LAC, False, 0, 0, number, ledger_id, lac, body)


def _list_entries(source: random.Random, number: int) -> Frame:
    body = source.choice((0, 1, 8, 1 << 16, (1 << 32) - 1)).to_bytes(4, "big")
    body += source.choice(_KEYS)
    ledger_id = source.choice(_LEDGERS)
    return Frame(Op.LIST_ENTRIES, False, 0, 0, number, ledger_id, source.randrange(20), body)


def _info(source: random.Random, number: int) -> Frame:
    return Frame(Op.INFO, False, 0, 0, number, 0, -1, b"")


_MAKERS: tuple[Make, ...] = (
    _add,
    _adds,
    _read,
    _read_lac,
    _long_poll,
    _write_lac,
    _list_entries,
)


def stream_of(source: random.Random) -> bytes:
    """What one spoiled connection sends."""
    parts: list[bytes] = []
    for number in range(source.randint(1, _REQUESTS_MAX)):
        make = source.choice((*_MAKERS, _info))
        data = encode_request(make(source, number))
        if source.random() < 0.6:
            data = source.choice(mutations.FRAMED)(data, source)
        parts.append(data)
    if source.random() < 0.4:
        at = source.randrange(len(parts))
        parts[at] = source.choice(mutations.BREAKING)(parts[at], source)
    return b"".join(parts)


class SpoiledClient(asyncio.Protocol):
    """One connection that sends anything and keeps all answers."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()
        self.replies: list[Frame] = []
        self.is_closed = False

    @classmethod
    async def connect(cls, port: int) -> "SpoiledClient":
        client = cls()
        client._transport = await SystemNetwork().connect(
            "127.0.0.1", port, lambda: client, timeout_s=5
        )
        return client

    def data_received(self, data: bytes) -> None:
        self.replies += self._decoder.feed(data)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    async def wait_replies(self, count: int) -> None:
        """Wait for so many answers, or for the end of the connection."""
        while questions_of(self.replies, _answered_in).total() < count and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    async def wait_closed(self) -> None:
        while not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


class Target:
    """The bookie under fire, and the connection that must not notice."""

    def __init__(self, bookie: Bookie, good: BookieClient, findings: Findings) -> None:
        self._bookie = bookie
        self._good = good
        self._findings = findings
        self._next_entry = 0

    async def run(self, seed: int) -> None:
        """One case."""
        source = random.Random(seed)
        stream = stream_of(source)
        client = await SpoiledClient.connect(self._bookie.port)
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._send(client, stream, source)
                await self._check_answers(seed, client, stream)
        except TimeoutError:
            self._findings.add(f"seed {seed}: not all requests were answered")
        finally:
            client.close()
        await self._check_good(seed)

    async def _send(self, client: SpoiledClient, stream: bytes, source: random.Random) -> None:
        cuts = sorted(source.randrange(len(stream) + 1) for _ in range(source.randrange(4)))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            client.write(stream[start:end])
            await asyncio.sleep(0)

    async def _check_answers(self, seed: int, client: SpoiledClient, stream: bytes) -> None:
        asked, is_sound = requests_in(stream)
        if is_sound:
            await client.wait_replies(asked.total())
        else:
            await client.wait_closed()
        replies = client.replies
        if not is_sound and replies and replies[-1].status == Status.BAD_VERSION:
            replies = replies[:-1]  # to the frame that ended the connection: of another version
        answered = questions_of(replies, _answered_in)
        if unasked := answered - asked:
            self._findings.add(f"seed {seed}: answers that nobody asked for: {unasked}")
        if not client.is_closed and answered != asked:
            self._findings.add(f"seed {seed}: not answered: {asked - answered}")
        for reply in client.replies:
            if not reply.is_response or reply.status not in _STATUSES:
                self._findings.add(f"seed {seed}: no answer: {reply}")

    async def _check_good(self, seed: int) -> None:
        """The connection beside it: an add, and all of it read back."""
        entry_id = self._next_entry
        self._next_entry += 1
        packet = packet_codec(_GOOD_LEDGER).seal(entry_id, entry_id - 1, entry_id, [b"x"])
        body = KEY + encode_block(packet).data
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                added = await self._good.ask(
                    lambda number: Frame(Op.ADD, False, 0, 0, number, _GOOD_LEDGER, entry_id, body)
                )
                read = await self._good.ask(
                    lambda number: read_request(number, _GOOD_LEDGER, entry_id)
                )
        except (TimeoutError, ConnectionError) as error:
            self._findings.add(f"seed {seed}: the connection beside it got {error!r}")
            self._good = await BookieClient.connect(self._bookie.port)
            return
        self._good.replies.clear()
        if added.status != Status.OK or packets_in(read) != packet:
            self._findings.add(f"seed {seed}: the connection beside it got {added}, {read}")

    async def check_nothing_is_left(self) -> None:
        """No request, connection or task outlives its client."""
        metrics = self._bookie.metrics
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                while metrics.connections > 1 or metrics.reads_pending:
                    # Asking is the way to let the bookie's loop go on.
                    await self._good.ask(lambda number: _info(random.Random(0), number))
        except TimeoutError:
            self._findings.add(
                f"{metrics.connections} connections and {metrics.reads_pending} reads are left"
            )
        gc.collect()
        left = sum(isinstance(each, BookieConnection) for each in gc.get_objects())
        if left > _CONNECTIONS_KEPT_MAX:
            self._findings.add(f"{left} connections are kept in memory, 1 is open")


def requests_in(stream: bytes) -> tuple[Counter[tuple[int, int, int, int]], bool]:
    """The requests that the bookie may find in a stream, and whether it may keep the connection."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    try:
        for at in range(len(stream)):  # byte by byte: what comes before an error counts
            frames += decoder.feed(stream[at : at + 1])
    except BookieProtocolError:
        return questions_of(frames, _asked_in), False
    return questions_of(frames, _asked_in), True


def questions_of(
    frames: Sequence[Frame], read: Callable[[Frame], list[tuple[int, int]]]
) -> Counter[tuple[int, int, int, int]]:
    """Operation, request id, ledger id and entry id of all that is asked, or answered. `read`: the
    adds of an ADDS."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    for frame in frames:
        ids = [(frame.ledger_id, frame.entry_id)]
        if frame.op == Op.ADDS:
            ids = read(frame)
        found.update([(frame.op, frame.request_id, *each) for each in ids])
    return found


def _asked_in(request: Frame) -> list[tuple[int, int]]:
    """The adds of a request, as far as it holds any; a spoiled one may call itself a response."""
    body = request.body
    ids: list[tuple[int, int]] = []
    at = COUNT_BYTES
    while len(ids) < count_of(body) and at + ADD_HEAD.size <= len(body):
        ledger_id, entry_id, size, _ = ADD_HEAD.unpack_from(body, at)
        ids.append((ledger_id, entry_id))
        at += ADD_HEAD.size + size
    return ids


def _answered_in(reply: Frame) -> list[tuple[int, int]]:
    return [unpack(">qq", pair) for pair in decode_outcome(reply.body).pairs]


async def fuzz(seeds: range, directory: Path, findings: Findings) -> None:
    """Run the cases of these seeds, one after the other, against one bookie."""
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    bookie = Bookie(
        BookieSettings(
            bookie_id="b1",
            data_directory=directory / "b1",
            host="127.0.0.1",
            port=0,
            long_poll_ms_max=_LONG_POLL_MS_MAX,
        ),
        store,
        clock=SystemClock(),
        network=SystemNetwork(),
        disk=SystemDisk(),
        random=random.Random(1),
        on_fatal=lambda error: findings.add(f"the bookie gave up: {error!r}"),
    )
    try:
        await bookie.start()
        good = await BookieClient.connect(bookie.port)
        target = Target(bookie, good, findings)
        with findings.of_loop():
            for seed in seeds:
                await target.run(seed)
                findings.inputs += 1
            await target.check_nothing_is_left()
        good.close()
        await bookie.stop()
    finally:
        await store.close()
