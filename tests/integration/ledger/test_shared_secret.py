"""Bookies and who uses them prove to each other that they know the cluster's secret."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.deploy.links import link_network
from magnetar.ledger.channel import BookieChannel
from magnetar.ledger.errors import BookieSecretError, BookieUnavailableError, LedgerError
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.ports import Network
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from magnetar.ledger.secret_handshake import parse_secrets
from magnetar.ledger.secret_network import SecretNetwork
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork
from magnetar.ledger.wire import Frame, FrameDecoder, Op, Status, encode_frame
from tests.certificates import Authority
from tests.integration.ledger.cluster import Cluster, no_fatal_errors
from tests.waiting import until

SECRET = b"a secret that all servers of a cluster know"
OTHER = b"the secret of quite another cluster, it is"
SETTINGS = LedgerSettings(request_timeout_s=5, connect_timeout_s=10, reconnect_delay_s=0.05)


def guarded(
    *secrets: bytes,
    handshakes_max: int = 100,
    timeout_s: float = 10,
    is_optional: bool = False,
) -> SecretNetwork:
    return SecretNetwork(
        SystemNetwork(),
        secrets,
        source=random.Random(7),
        handshake_timeout_s=timeout_s,
        handshakes_max=handshakes_max,
        is_optional=is_optional,
    )


@asynccontextmanager
async def bookie_on(network: Network, directory: Path) -> AsyncIterator[Cluster]:
    """One bookie, which asks everybody for what `network` says."""
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    cluster = Cluster(store, directory)
    bookie = Bookie(
        cluster.settings_of("b1"),
        store,
        clock=SystemClock(),
        network=network,
        disk=SystemDisk(),
        random=random.Random(1),
        on_fatal=no_fatal_errors,
    )
    await bookie.start()
    cluster.bookies["b1"] = bookie
    try:
        yield cluster
    finally:
        await bookie.stop()
        await store.close()


class _OneBookie(BookieRegistry):
    def __init__(self, port: int) -> None:
        self._info = BookieInfo(bookie_id="b1", host="127.0.0.1", port=port, readonly=False)

    def resolve(self, bookie_id: str) -> BookieInfo | None:
        return self._info


async def ask(cluster: Cluster, network: Network) -> Frame | BookieUnavailableError:
    """What an INFO request over such a network comes to."""
    return await ask_bookie("b1", _OneBookie(cluster.bookies["b1"].port), network)


async def ask_bookie(
    bookie_id: str, registry: BookieRegistry, network: Network
) -> Frame | BookieUnavailableError:
    """Ask a bookie INFO over a new channel; return its answer, or the channel's error."""
    channel = BookieChannel(bookie_id, registry, network, SystemClock(), SETTINGS)
    answers: list[Frame | BookieUnavailableError] = []
    channel.send(Op.INFO, (), answers.append, ledger_id=0)
    await until(lambda: bool(answers))
    await channel.close()
    return answers[0]


async def test_who_knows_the_secret_writes_and_reads_ledgers(tmp_path: Path) -> None:
    async with (
        bookie_on(guarded(SECRET), tmp_path) as cluster,
        cluster.client(guarded(SECRET)) as client,
    ):
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for number in range(50):
            await writer.add(b"%d" % number)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        assert await reader.read(0, 49) == [b"%d" % number for number in range(50)]
        await reader.close()


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        ((SECRET,), (OTHER,), "is not the one of this bookie"),
        ((SECRET,), (), "requires proof of the shared secret"),
        ((), (SECRET,), "has no shared secret"),
    ],
)
async def test_a_wrong_or_missing_secret_gets_an_error_that_says_so_before_any_request(
    tmp_path: Path, theirs: tuple[bytes, ...], ours: tuple[bytes, ...], reason: str
) -> None:
    def network(secrets: tuple[bytes, ...]) -> Network:
        return guarded(*secrets) if secrets else SystemNetwork()

    async with bookie_on(network(theirs), tmp_path) as cluster:
        answer = await ask(cluster, network(ours))
        assert isinstance(answer, BookieSecretError), answer
        assert reason in str(answer)
        assert "b1" in str(answer)
        async with cluster.client(network(ours), SETTINGS) as client:
            writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
            with pytest.raises(LedgerError):
                await writer.add(b"nothing of it is stored")
        good = await ask(cluster, network(theirs))
        assert isinstance(good, Frame)
        assert good.status == Status.OK


async def test_a_secret_is_replaced_while_both_are_known(tmp_path: Path) -> None:
    """First everybody learns the new one, then it comes first, then the old one is forgotten."""
    async with bookie_on(guarded(SECRET, OTHER), tmp_path) as cluster:
        for network in (guarded(SECRET), guarded(OTHER), guarded(OTHER, SECRET)):
            assert isinstance(await ask(cluster, network), Frame)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (guarded(SECRET, is_optional=True), SystemNetwork()),
        (guarded(SECRET, is_optional=True), guarded(SECRET)),
        (guarded(SECRET, is_optional=True), guarded(SECRET, is_optional=True)),
        (SystemNetwork(), guarded(SECRET, is_optional=True)),
        (guarded(SECRET), guarded(SECRET, is_optional=True)),
    ],
    ids=["client without", "client with", "both optional", "bookie without", "bookie strict"],
)
async def test_a_secret_comes_into_a_cluster_that_runs_without_one(
    tmp_path: Path, theirs: Network, ours: Network
) -> None:
    async with bookie_on(theirs, tmp_path) as cluster, cluster.client(ours) as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.add(b"stored" * 10_000)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        assert await reader.read(0, 0) == [b"stored" * 10_000]


async def test_a_secret_that_is_optional_must_yet_be_the_right_one(tmp_path: Path) -> None:
    async with bookie_on(guarded(SECRET, is_optional=True), tmp_path) as cluster:
        answer = await ask(cluster, guarded(OTHER, is_optional=True))
        assert isinstance(answer, BookieSecretError), answer
        assert isinstance(await ask(cluster, guarded(SECRET)), Frame)


async def test_a_stranger_who_is_served_may_send_as_slowly_as_he_likes(tmp_path: Path) -> None:
    async with bookie_on(guarded(SECRET, is_optional=True), tmp_path) as cluster:
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.bookies["b1"].port)
        for byte in encode_frame(Op.INFO, request_id=5, ledger_id=0):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        decoder = FrameDecoder()
        frames: list[Frame] = []
        async with asyncio.timeout(20):
            while not frames:
                frames = decoder.feed(await reader.read(1 << 16))
        assert (frames[0].op, frames[0].request_id, frames[0].status) == (Op.INFO, 5, Status.OK)
        writer.close()


async def test_a_bookie_that_only_pretends_to_know_the_secret_is_sent_nothing() -> None:
    seen: list[Frame] = []

    class Pretender(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self._transport = transport
            self._decoder = FrameDecoder()

        def data_received(self, data: bytes) -> None:
            for frame in self._decoder.feed(data):
                seen.append(frame)
                body = bytes(32)
                self._transport.write(
                    encode_frame(
                        frame.op | 0x80, request_id=frame.request_id, ledger_id=0, body=body
                    )
                )

    server = await asyncio.get_running_loop().create_server(Pretender, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionError, match="does not know the shared secret"):
        await guarded(SECRET).connect("127.0.0.1", port, asyncio.Protocol, timeout_s=10)
    assert {frame.op for frame in seen} == {Op.AUTH}
    assert not any(SECRET in frame.body for frame in seen)
    server.close()


async def test_who_says_nothing_or_nonsense_is_cut_off_and_disturbs_nobody(tmp_path: Path) -> None:
    network = guarded(SECRET, timeout_s=0.5)
    async with bookie_on(network, tmp_path) as cluster:
        port = cluster.bookies["b1"].port
        for words in (b"", b"\x00" * 100, b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(words)
            async with asyncio.timeout(20):
                try:
                    assert await reader.read() == b""
                except ConnectionResetError:
                    pass
            writer.close()
        assert isinstance(await ask(cluster, guarded(SECRET)), Frame)


async def test_too_many_handshakes_at_once_are_cut_off(tmp_path: Path) -> None:
    async with bookie_on(guarded(SECRET, handshakes_max=2), tmp_path) as cluster:
        port = cluster.bookies["b1"].port
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(20):
            try:
                assert await held[2][0].read() == b""
            except ConnectionResetError:
                pass
        for _, writer in held:
            writer.close()


async def test_the_secret_comes_from_a_file_and_goes_over_tls_as_well(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "cluster")
    certificate, key = authority.issue("server")
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_bytes(SECRET + b"\n")
    wrong.write_bytes(OTHER)

    def settings(path: Path) -> LedgerSettings:
        return LedgerSettings(
            tls_certificate_file=str(certificate),
            tls_key_file=str(key),
            tls_ca_file=str(authority.path),
            shared_secret_file=str(path),
        )

    async with bookie_on(link_network(settings(secret), serves=True), tmp_path) as cluster:
        assert isinstance(await ask(cluster, link_network(settings(secret))), Frame)
        assert isinstance(await ask(cluster, link_network(settings(wrong))), BookieSecretError)


def test_a_file_without_a_good_secret_is_refused() -> None:
    assert parse_secrets(SECRET + b"\n\n" + OTHER + b"\n", where="f") == (SECRET, OTHER)
    for data, reason in ((b"", "holds no shared secret"), (b"short\n", "shorter than 32 bytes")):
        with pytest.raises(LedgerError, match=reason):
            parse_secrets(data, where="f")
