"""A cluster of brokers on a cluster of bookies, in one process and on virtual time.

`Cluster` is `Simulation` with brokers, a network between them and their clients, and sessions that
expire by themselves; `story` makes a test of an interleaving. How to use it: README.md in this
folder.
"""

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.broker.base import naming
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.errors import LedgerError, NoSuchLogError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.settings import LedgerSettings, LogConfig
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.bookie import SimBookie
from tests.simulation.clients import FAST, SimClient
from tests.simulation.cluster.broker import PORT, SimBroker
from tests.simulation.cluster.checks import judge_cluster
from tests.simulation.cluster.clients import SimUser, full_name
from tests.simulation.cluster.events import Backlog, Kept, Unreadable
from tests.simulation.cluster.front import Front
from tests.simulation.cluster.plan import NAMESPACES
from tests.simulation.cluster.recovery import AUDITOR, WORKER, SimRecovery
from tests.simulation.cluster.sessions import SessionServer
from tests.simulation.record import Record
from tests.simulation.simulation import Simulation

BROKER_SETTINGS = {
    # There are none in the plans; a topic that appears is not looked for among them.
    "scalable_topics": False,
    "http_port": 0,
    "ledger_age_min_s": 0.0,
    "keep_alive_interval_ms": 1_000,
    "liveness_probe_timeout_ms": 300,
    "failover_delay_ms": 50,
    "topic_load_timeout_ms": 6_000,
    "topic_load_retry_ms": 50,
    "ack_persist_interval_ms": 200,
    "shutdown_timeout_ms": 3_000,
    "register_timeout_ms": 20_000,
    "lookup_wait_ms": 3_000,
    "lookup_retry_ms": 50,
    "unload_timeout_ms": 1_000,
    "load_sample_interval_ms": 5_000,
    # Nothing is trimmed unless a story or a plan says so: at the end everything is looked at.
    "retention_check_interval_s": 0.0,
    "topics_at_rest_interval_s": 0.0,
}
"""Times so short that a story stays short."""

_TAKEOVER_S_MAX = 40.0
"""When everything is healed, a log can be taken over within this time."""


class Cluster(Simulation):
    """Bookies b1, b2, ..., brokers br1, br2, ..., and users of any name."""

    def __init__(
        self,
        *,
        bookies: int = 3,
        brokers: int = 2,
        quorum: tuple[int, int, int] = (3, 3, 2),
        seed: str = "0",
        seconds_max: float = 3600.0,
        steps_max: int = 1_000_000,
        flush_interval_s: float = 5.0,
        broker_settings: dict[str, object] | None = None,
        has_leases: bool = True,
        ledger_settings: LedgerSettings = FAST,
        prefix: str = "",
        beside: Simulation | None = None,
    ) -> None:
        super().__init__(
            bookies=bookies,
            quorum=quorum,
            seed=seed,
            seconds_max=seconds_max,
            steps_max=steps_max,
            flush_interval_s=flush_interval_s,
            prefix=prefix,
            beside=beside,
        )
        self.store: SessionServer = SessionServer(self.loop, self.history, seed=f"{seed}/store")
        self.front = Front(self.loop, self.history, seed=f"{seed}/front")
        self.brokers: dict[str, SimBroker] = {}
        self.users: dict[str, SimUser] = {}
        self.recoveries: dict[str, SimRecovery] = {}
        self._brokers_wanted = brokers
        self._broker_settings = broker_settings or {}
        self._has_leases = has_leases
        self._ledger_settings = ledger_settings

    async def start(self) -> None:
        """Start bookies, then brokers."""
        self.store.start()
        await super().start()
        for number in range(1, self._brokers_wanted + 1):
            await self.make_broker(f"{self.prefix}br{number}").start()

    def make_bookie(self) -> SimBookie:
        bookie = super().make_bookie()
        bookie.keeps_healed = True
        return bookie

    def make_broker(self, name: str) -> SimBroker:
        """A new machine; no broker runs on it yet."""
        ensemble_size, write_quorum, ack_quorum = self.quorum
        values = {
            **BROKER_SETTINGS,
            "host": name,
            "port": PORT,
            "advertised_host": name,
            "insecure": True,
            "name": name,
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            **self._broker_settings,
        }
        broker = self.brokers[name] = SimBroker(
            name,
            self.loop,
            self.front,
            self.net,
            self.store,
            self.history,
            seed=f"{self.seed}/{name}",
            settings=BrokerSettings.model_validate(values),
            ledger_settings=self._ledger_settings,
            is_clustered=self._has_leases,
        )
        return broker

    def recovery(
        self,
        name: str = "ar1",
        *,
        worker: WorkerSettings = WORKER,
        auditor: AuditorSettings = AUDITOR,
        has_worker: bool = True,
        has_auditor: bool = True,
    ) -> SimRecovery:
        """A process of auto-recovery, made at its first mention; it does not run yet."""
        found = self.recoveries.get(name)
        if found is None:
            found = self.recoveries[name] = SimRecovery(
                name,
                self.loop,
                self.net,
                self.store,
                self.history,
                seed=f"{self.seed}/{name}",
                worker_settings=worker,
                auditor_settings=auditor,
                has_worker=has_worker,
                has_auditor=has_auditor,
            )
        return found

    async def wait_repaired(self, *, timeout_s: float = 60.0) -> None:
        """Wait until no item is left, and no ledger names a lost bookie.

        Raises:
            SimulationStuckError: that takes too long.
        """
        await self.until(self.is_repaired, timeout_s=timeout_s, what="everything is repaired")

    def is_repaired(self) -> bool:
        lost = {name for name, bookie in self.bookies.items() if bookie.is_lost}
        if self.missing_copies():
            return False
        for metadata in self.take_stock().metadata.values():
            named = {bookie for _, bookies in metadata.ensembles for bookie in bookies}
            if named & lost:
                return False
        return True

    async def stop_recoveries(self) -> None:
        for recovery in self.recoveries.values():
            await recovery.stop()

    def broker(self, name: str) -> SimBroker:
        return self.brokers[name]

    def user(self, name: str, *, url: str = "") -> SimUser:
        """A client process, made at its first mention; without `url` it knows every broker."""
        user = self.users.get(name)
        if user is None:
            hosts = ",".join(f"{broker}:{PORT}" for broker in self.brokers)
            user = self.users[name] = SimUser(
                name,
                self.loop,
                self.front,
                self.history,
                url=url or f"pulsar://{hosts}",
                seed=f"{self.seed}/{name}",
            )
        return user

    # Looking

    def owner(self, topic: str) -> SimBroker | None:
        """The broker that last took the topic's log over, as the metadata tell."""
        path = self.log_path(topic)
        for entry in reversed(self.history.entries):
            if getattr(entry.event, "path", None) == path and entry.actor in self.brokers:
                return self.brokers[entry.actor]
        return None

    def owner_of(self, topic: str) -> SimBroker:
        """The broker that owns a topic, where there must be one."""
        owner = self.owner(topic)
        assert owner is not None, f"nobody has {topic}"
        return owner

    def another(self, broker: SimBroker) -> SimBroker:
        """A broker that is not this one."""
        return next(each for each in self.brokers.values() if each is not broker)

    async def moved(self, topic: str, *, away_from: SimBroker) -> SimBroker:
        """Wait until another broker has the topic."""
        await self.until(
            lambda: self.owner(topic) is not away_from, what=f"{topic} leaves {away_from.name}"
        )
        return self.owner_of(topic)

    @staticmethod
    def log_path(topic: str) -> str:
        return naming.log_path(parse_topic_name(full_name(topic)))

    def cursor_path(self, topic: str, subscription: str = "s") -> str:
        return f"{self.log_path(topic)}/{subscription}"

    def log_metadata(self, topic: str) -> LogMetadata:
        """The ledger list of a topic, as it is in the store now."""
        path = self.log_path(topic)
        return LogMetadata.from_json(self.store.tree.get(path).value, path=path)

    def topics(self) -> list[str]:
        """Full names of all topics that there are."""
        found: list[str] = []
        for namespace in NAMESPACES:
            root = naming.topics_path(namespace)
            if self.store.tree.version(root) is not None:
                children = self.store.tree.children(root)
                found += [naming.topic_at(namespace, each) for each in children]
        return found

    # The end

    def heal(self) -> None:
        """Undo what was done to networks and store, and let everybody go on."""
        self.net.heal_all()
        self.front.heal_all()
        self.store.heal_all()
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.resume()
        for user in self.users.values():
            user.process.resume()
        for recovery in self.recoveries.values():
            if recovery.process is not None:
                recovery.resume()

    async def inspect(self) -> None:
        """Stop the brokers, close what they left open, and read every topic from its ledgers."""
        self.heal()
        self.count_backlogs()
        await self.stop_brokers()
        await self.read_all()

    async def stop_brokers(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    async def read_all(self) -> None:
        """Close what was left open, and read every topic from its ledgers."""
        inspector = self.clients.get("y") or await self.client("y")
        for topic in self.topics():
            await inspector.run(self._close(inspector, topic))
            await inspector.run(self._read(inspector, topic))

    async def _close(self, client: SimClient, topic: str) -> None:
        """Take the log over, as the next owner would, and close it."""
        ensemble_size, write_quorum, ack_quorum = self.quorum
        config = LogConfig(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        deadline_s = self.loop.time() + _TAKEOVER_S_MAX
        while True:
            try:
                log = await ManagedLog.open(
                    client.ledgers,
                    client.store,
                    self.log_path(topic),
                    config,
                    clock=client.clock,
                    random=client.random,
                )
            except LedgerError as error:
                if self.loop.time() > deadline_s:
                    client.record(Unreadable(topic, f"{type(error).__name__}: {error}"))
                    return
                await asyncio.sleep(0.5)
            else:
                await log.close()
                return

    async def _read(self, client: SimClient, topic: str) -> None:
        try:
            path = self.log_path(topic)
            reader = await LogReader.open(client.ledgers, client.store, path, clock=client.clock)
        except NoSuchLogError:
            return
        except LedgerError as error:
            client.record(Unreadable(topic, f"{type(error).__name__}: {error}"))
            return
        try:
            while entries := await reader.read():
                for entry in entries:
                    ledger_id, entry_id = entry.position
                    messages = messages_of(topic, entry.payload, ledger_id, entry_id)
                    client.record(Kept(topic, ledger_id, entry_id, messages))
        except LedgerError as error:
            client.record(Unreadable(topic, f"{type(error).__name__}: {error}"))
        finally:
            await reader.close()

    def count_backlogs(self) -> None:
        """Write down what the owners count as not acknowledged."""
        for broker in self.brokers.values():
            if broker.broker is None:
                continue
            for topic in broker.broker.services.topics.loaded:
                if self.owner(str(topic.name)) is not broker:
                    continue  # it was paused, and does not know yet
                for subscription in topic.subscriptions.values():
                    if not subscription.is_open or not subscription.is_durable:
                        continue
                    log, cursor = topic.log, subscription.cursor
                    acked, at = [], log.first_position()
                    while at <= log.last_confirmed:
                        if at <= cursor.mark_delete or cursor.is_acked(at):
                            acked.append(tuple(at))
                        at = log.next_position(at)
                    broker.record(
                        Backlog(
                            str(topic.name),
                            subscription.name,
                            cursor.backlog_entries,
                            tuple(acked),  # type: ignore[arg-type]  # pairs
                        )
                    )


def messages_of(topic: str, entry: bytes, ledger_id: int, entry_id: int) -> tuple[bytes, ...]:
    """Payloads of the messages in an entry of a topic's log."""
    source = EntrySource(topic, -1, True, 1 << 20)
    batch = MessageBatch(entry, source, ledger_id, entry_id)
    return tuple(message.data for message in batch.messages())


Story = Callable[[Cluster], Awaitable[None]]


def play(story: Story, cluster: Cluster, *, without: tuple[str, ...] = ()) -> Cluster:
    """Start the cluster and play a story on it; the invariants are judged at the end.

    Raises:
        AssertionError: of the story, or with the invariants that do not hold and the transcript.
    """

    async def main() -> None:
        await cluster.start()
        await story(cluster)

    try:
        cluster.run(main())
    except BaseException as error:
        error.add_note("the transcript of the story:\n" + cluster.history.text())
        raise
    record = Record(cluster.history, cluster.take_stock(), is_complete=False)
    violations = [each for each in judge_cluster(record) if each.invariant not in without]
    if violations:
        text = "\n".join(map(str, violations))
        raise AssertionError(f"{text}\nthe transcript of the story:\n{cluster.history.text()}")
    return cluster


def story(
    *,
    bookies: int = 3,
    brokers: int = 2,
    quorum: tuple[int, int, int] = (3, 3, 2),
    seed: str = "0",
    settings: dict[str, object] | None = None,
    has_leases: bool = True,
    without: tuple[str, ...] = (),
) -> Callable[[Story], Callable[[], None]]:
    """Make a test of a story: `async def test_...(sim: Cluster)`.

    Without leases every broker takes every topic for its own; only ledgers keep them apart.
    `without`: invariants that the story breaks by what it does to bookies.
    """

    def decorate(told: Story) -> Callable[[], None]:
        def test() -> None:
            play(
                told,
                Cluster(
                    bookies=bookies,
                    brokers=brokers,
                    quorum=quorum,
                    seed=seed,
                    broker_settings=settings,
                    has_leases=has_leases,
                ),
                without=without,
            )

        # Not functools.wraps: pytest would look through it, and ask for a fixture named `sim`.
        test.__name__ = told.__name__
        test.__doc__ = told.__doc__
        test.__module__ = told.__module__
        return test

    return decorate
