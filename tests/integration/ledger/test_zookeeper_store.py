"""The ZooKeeper store while its server is killed, away, and back."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from magnetar.ledger.errors import MetadataUnavailableError, UnknownOutcomeError
from magnetar.ledger.metadata import (
    MetadataSettings,
    MetadataStore,
    SessionState,
    WatchEvent,
    open_store,
)
from magnetar.ledger.metadata.call_times import TimedStore
from tests.integration.ledger.candidates import candidate, wait_until
from tests.integration.ledger.metadata_stores import LONG_SESSION, WAIT_S, Events
from tests.zookeeper_fixture import ZooKeeper

SETTINGS = LONG_SESSION.model_copy(update={"connect_timeout_s": WAIT_S})
SHORTER_SESSION = SETTINGS.model_copy(update={"session_timeout_ms": 10_000})
"""For those that wait for a third of it, after which a silent server is left."""


_numbers = itertools.count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One for all tests of this file."""
    server = ZooKeeper(tmp_path_factory.mktemp("killed"))
    yield server
    server.stop()


@pytest.fixture
def server(servers: ZooKeeper) -> ZooKeeper:
    """A server to be killed; it runs, whatever the test before has left."""
    if not servers.is_running:
        servers.start()
    return servers


@pytest.fixture
def url(server: ZooKeeper) -> str:
    """A path of the test's own on the server."""
    return f"{server.url}/killed/{next(_numbers)}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(url, settings=SETTINGS)
    yield store
    await store.close()


class States:
    """The session's states, as they come."""

    def __init__(self, store: MetadataStore) -> None:
        self._states: asyncio.Queue[SessionState] = asyncio.Queue()
        store.on_session_change(self._states.put_nowait)

    async def wait_for(self, state: SessionState) -> None:
        async with asyncio.timeout(WAIT_S):
            while await self._states.get() is not state:
                pass

    async def wait_for_return(self) -> None:
        """Contact is lost, and there again."""
        await self.wait_for(SessionState.SUSPENDED)
        await self.wait_for(SessionState.CONNECTED)


async def test_writes_in_the_middle_of_a_kill_are_done_unknown_or_not_done(
    server: ZooKeeper, url: str
) -> None:
    settings = SETTINGS.model_copy(update={"operation_timeout_s": 5})
    store = await open_store(url, settings=settings)
    done: set[str] = set()
    unknown: set[str] = set()
    started = asyncio.Event()

    async def write(worker: int) -> None:
        for n in range(100_000):
            path = f"/writes/{worker}-{n}"
            try:
                await store.create(path)
                done.add(path)
            except UnknownOutcomeError:
                unknown.add(path)
                break
            except MetadataUnavailableError:
                break
            if n == 50:
                started.set()
        started.set()

    writers = [asyncio.ensure_future(write(worker)) for worker in range(8)]
    await started.wait()
    await asyncio.to_thread(server.kill)
    await asyncio.gather(*writers)
    assert done
    # Mostly some are unknown; now and then the kill comes when all that was sent is answered.
    await asyncio.to_thread(server.start)
    await store.close()
    store = await open_store(url, settings=SETTINGS)
    found = {f"/writes/{name}" for name in await store.children("/writes")}
    await store.close()
    assert done <= found, "an acknowledged write is gone"
    assert found <= done | unknown, "a write happened that nobody asked for"


class Relay:
    """In front of a server, of which it can keep from its clients what it says."""

    def __init__(self, server: ZooKeeper) -> None:
        self._server_port = server.port
        self._links: set[asyncio.StreamWriter] = set()
        self._hushed: set[asyncio.StreamWriter] = set()
        self.silent = 0
        """So many of the next connections are taken, and nothing else."""
        self.greetings = 0
        """So many of the next connections end when the server says a second thing, which is lost
        then: behind its greeting comes what it answers to the first request."""

    async def start(self) -> str:
        self._relays = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"zk://127.0.0.1:{self._relays.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for link in self._links:
            link.close()

    def hush(self) -> None:
        """Nothing more comes over the connections that there are."""
        self._hushed |= self._links

    def close(self) -> None:
        self.cut()
        self._relays.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.silent:
            self.silent -= 1
            await reader.read(-1)
            writer.close()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._links.add(writer)
        try:
            if self.greetings:
                self.greetings -= 1
                pumping = asyncio.ensure_future(self._pump(reader, to_server))
                writer.write(await from_server.read(1 << 16))
                await from_server.read(1 << 16)
                writer.close()
                to_server.close()
                await pumping
                return
            await asyncio.gather(self._pump(reader, to_server), self._pump(from_server, writer))
        except OSError:
            pass  # one of the two was reset
        finally:
            writer.close()
            to_server.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if writer not in self._hushed:
                    writer.write(data)
        finally:
            writer.close()  # also if the other side was reset: nobody else would


async def test_a_server_that_takes_a_connection_and_says_nothing_does_not_cost_the_session(
    server: ZooKeeper,
) -> None:
    relay = Relay(server)
    store = await open_store(f"{await relay.start()}/silent", settings=SHORTER_SESSION)
    states = States(store)
    await store.create("/owned", ephemeral=True)
    relay.silent = 1
    relay.cut()
    await states.wait_for_return()
    assert await store.exists("/owned") == 0
    await store.close()
    relay.close()


async def test_a_connection_that_is_lost_while_the_root_is_made_is_no_end_of_the_opening(
    server: ZooKeeper,
) -> None:
    """The root is made once more, whether or not it is there by now."""
    relay = Relay(server)
    relay.greetings = 2
    store = await open_store(f"{await relay.start()}/a/root", settings=SHORTER_SESSION)
    assert relay.greetings == 0
    assert await store.children("/") == []
    await store.close()
    relay.close()


async def test_a_server_that_falls_silent_is_left_though_it_is_asked_all_the_time(
    server: ZooKeeper,
) -> None:
    relay = Relay(server)
    store = await open_store(f"{await relay.start()}/hushed", settings=SHORTER_SESSION)
    states = States(store)
    await store.create("/owned", ephemeral=True)

    async def ask() -> None:
        while True:
            try:
                async with asyncio.timeout(0.2):
                    await store.exists("/owned")
            except (MetadataUnavailableError, TimeoutError):
                pass

    asking = asyncio.create_task(ask())
    relay.hush()
    await states.wait_for_return()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await store.exists("/owned") == 0
    await store.close()
    relay.close()


async def test_a_write_is_not_done_in_a_later_session_than_it_was_asked_for_in(
    server: ZooKeeper, url: str
) -> None:
    """Each incarnation of a node begins with version 0: a late write would meet another's lease."""
    relay = Relay(server)
    settings = SETTINGS.model_copy(update={"session_timeout_ms": 1_000})
    path = url.removeprefix(server.url)
    mine = await open_store(f"{await relay.start()}{path}", settings=settings)
    other = await open_store(url, settings=SETTINGS)
    states, events = States(mine), Events()
    await mine.create("/lease", b"mine", ephemeral=True)
    await other.catch_up()
    other.watch("/lease", events)
    await other.get("/lease")  # by now the watch has seen it, too
    relay.silent = 1_000_000
    relay.cut()
    await states.wait_for(SessionState.SUSPENDED)
    writing = asyncio.create_task(mine.set("/lease", b"late", version=0))
    creating = asyncio.create_task(mine.create("/created"))
    await events.wait_for(WatchEvent.DELETED)
    await other.create("/lease", b"another", ephemeral=True)
    relay.silent = 0
    relay.cut()
    for asked in (writing, creating):
        with pytest.raises(MetadataUnavailableError, match="session"):
            await asked
    assert (await other.get("/lease")).value == b"another"
    assert await other.exists("/created") is None
    # What is asked for now belongs to the session that there is now.
    assert await mine.create("/created") == "/created"
    await mine.close()
    await other.close()
    relay.close()


async def test_data_sessions_and_ephemeral_nodes_survive_the_servers_death(
    server: ZooKeeper, url: str
) -> None:
    store = await open_store(url, settings=SETTINGS)
    assert isinstance(store, TimedStore)
    states = States(store)
    await store.create("/a", b"kept")
    await store.create("/owned", ephemeral=True)
    session_id = store.session_id
    assert int(session_id, 16) > 0
    await asyncio.to_thread(server.kill)
    await states.wait_for(SessionState.SUSPENDED)
    assert store.call_times.session().times_suspended == 1
    await asyncio.to_thread(server.start)
    await states.wait_for(SessionState.CONNECTED)
    assert store.session_id == session_id
    assert (await store.get("/a")).value == b"kept"
    assert await store.exists("/owned") == 0
    assert await store.set("/owned", b"still mine", version=0) == 1
    await store.close()


async def test_without_contact_nobody_leads_and_the_leader_is_one_again_when_it_is_back(
    server: ZooKeeper, store: MetadataStore
) -> None:
    election = candidate(store, "/election", "one")
    await election.start()
    assert election.is_leader
    await asyncio.to_thread(server.kill)
    await wait_until(election, lambda: election.leader() is None)
    assert not election.is_leader
    await asyncio.to_thread(server.start)
    await wait_until(election, lambda: election.is_leader)
    await election.close()
    assert await store.children("/election") == []


async def test_watches_survive_the_servers_death(server: ZooKeeper, store: MetadataStore) -> None:
    await store.create("/a")
    node, root, absent = Events(), Events(), Events()
    store.watch("/a", node)
    store.watch("/", root)
    store.watch("/b", absent)
    await store.get("/a")
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await store.set("/a", b"1", version=0)
                break
            except (UnknownOutcomeError, MetadataUnavailableError):
                if await store.exists("/a") == 1:
                    break
    await store.create("/b")
    await node.wait_for(WatchEvent.CHANGED)
    await root.wait_for(WatchEvent.CHILDREN)
    await absent.wait_for(WatchEvent.CREATED)


async def test_a_watch_made_while_the_server_is_away_works_when_it_is_back(
    server: ZooKeeper, store: MetadataStore
) -> None:
    states = States(store)
    await store.create("/a")
    await asyncio.to_thread(server.kill)
    await states.wait_for(SessionState.SUSPENDED)
    events = Events()
    store.watch("/a", events)
    reading = asyncio.ensure_future(store.get("/a"))
    await asyncio.to_thread(server.start)
    version = (await reading).version
    await store.set("/a", b"1", version=version)
    await events.wait_for(WatchEvent.CHANGED)


async def test_without_a_connection_a_call_is_unavailable_in_time_and_changes_nothing(
    server: ZooKeeper, url: str
) -> None:
    settings = SETTINGS.model_copy(update={"operation_timeout_s": 0.3})
    store = await open_store(url, settings=settings)
    states = States(store)
    await asyncio.to_thread(server.kill)
    await states.wait_for(SessionState.SUSPENDED)
    with pytest.raises(MetadataUnavailableError):
        await store.create("/never")
    with pytest.raises(MetadataUnavailableError):
        await store.get("/")
    assert store.session_state is SessionState.SUSPENDED
    await asyncio.to_thread(server.start)
    await states.wait_for(SessionState.CONNECTED)
    await store.close()
    store = await open_store(url, settings=SETTINGS)
    assert await store.exists("/never") is None
    await store.close()


async def test_a_cancelled_write_is_seen_by_the_next_read(store: MetadataStore) -> None:
    writing = asyncio.ensure_future(store.create("/a", b"1"))
    await asyncio.sleep(0)  # It is sent; nothing is waited for.
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert await store.exists("/a") in (0, None)


async def test_no_server_at_all_is_unavailable_in_time(server: ZooKeeper) -> None:
    server.kill()
    with pytest.raises(MetadataUnavailableError):
        await open_store(server.url, settings=MetadataSettings(connect_timeout_s=1))


async def test_closing_while_the_server_is_away_ends(
    server: ZooKeeper, store: MetadataStore
) -> None:
    await asyncio.to_thread(server.kill)
    async with asyncio.timeout(WAIT_S):
        await store.close()
