"""Embedded metadata, N bookies, a ledger client and a broker in one process, on one event loop.

The data directory:

    lock            held while a standalone runs here
    metadata.db     the embedded metadata store
    shared-secret   its bookies demand it, and its broker proves to know it
    bookie-1/ …     one place per bookie

A place is not a bookie id. When the files of a place are lost, the place continues as a new bookie
under the next id, `bookie-2.1` (docs/decisions/0005): a bookie with an emptied disk must never
answer for entries that it no longer has.
"""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.cookie import bookie_id_in
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.broker import Broker
from magnetar.deploy.bookie_metrics import BookieCollector
from magnetar.deploy.bookie_server import bookie_settings, make_bookie
from magnetar.deploy.broker_server import broker_addresses, start_broker
from magnetar.deploy.errors import DataDirectoryLockedError, SettingsError
from magnetar.deploy.explain import explained
from magnetar.deploy.options import Listen, Quorum, Sources
from magnetar.deploy.places import Assignment, assign_ids
from magnetar.deploy.shared_secret import with_own_secret
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.system import SystemDisk

_log = structlog.get_logger(__name__)

_PLACE = re.compile(r"bookie-([1-9][0-9]*)")
# Only the standalone's own broker connects to its bookies.
_BOOKIE_LISTEN = Listen("127.0.0.1")


def bookies_in(data: Path) -> int:
    """Return how many bookies a data directory was made with; 1 for a new one.

    Raises:
        DataDirectoryError: the directory cannot be read.
    """
    with explained(data=data):
        if not data.is_dir():
            return 1
        places = [_PLACE.fullmatch(each.name) for each in data.iterdir()]
        return max((int(place[1]) for place in places if place), default=1)


class Standalone:
    """A whole Magnetar in this process."""

    def __init__(
        self, data: Path, settings: BrokerSettings, sources: Sources, *, bookies: int
    ) -> None:
        """Make a standalone; `start` starts it.

        Args:
            settings: the broker's, from `broker_settings`.
            bookies: how many bookies it runs.

        Raises:
            SettingsError: too few bookies for the ledgers, or for the content of the directory.
        """
        quorum = Quorum(settings.ensemble_size, settings.write_quorum, settings.ack_quorum)
        if quorum.ensemble > bookies:
            raise SettingsError(
                f"--quorum {quorum} needs {quorum.ensemble} bookies, there are "
                f"{bookies}: give --bookies {quorum.ensemble}"
            )
        held = bookies_in(data)
        if bookies < held:
            raise SettingsError(
                f"{data} holds the files of {held} bookies; with --bookies "
                f"{bookies} some messages could not be read: give --bookies {held}, or "
                "leave it out"
            )
        if "unsubscribed_retention" not in settings.model_fields_set:
            # A consumer that subscribes after a publish finds the messages.
            settings = settings.model_copy(update={"unsubscribed_retention": True})
        self._settings = settings
        self._sources = sources
        self._bookies = bookies
        self._data = data.resolve()
        self._opened = AsyncExitStack()
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "start() comes first"
        return self._broker

    async def start(self) -> None:
        """Start all servers, lowest layer first.

        Raises:
            DeployError: in one line that says what to do; nothing is left running.
        """
        metadata_url = f"embedded:{self._data / 'metadata.db'}"
        with explained(data=self._data, metadata_url=metadata_url):
            async with AsyncExitStack() as opened:
                self._lock_directory(opened)
                self._sources = with_own_secret(self._sources, self._data)
                store = await open_store(
                    metadata_url, settings=self._sources.component(MetadataSettings, "metadata")
                )
                opened.push_async_callback(store.close)
                bookies = await self._start_bookies(store, opened)
                from magnetar.deploy.process_metrics import process_collectors

                self._broker = await start_broker(
                    store,
                    self._settings,
                    self._sources,
                    opened,
                    collectors=[BookieCollector(bookies), *process_collectors(opened)],
                    metadata_url=metadata_url,
                )
                self._opened = opened.pop_all()

    def addresses(self) -> list[str]:
        return broker_addresses(self.broker)

    async def stop(self) -> None:
        """Stop all servers, highest layer first."""
        await self._opened.aclose()

    def _lock_directory(self, opened: AsyncExitStack) -> None:
        disk = SystemDisk()
        disk.make_directory(str(self._data))
        try:
            lock = disk.lock(str(self._data / "lock"))
        except BlockingIOError as error:
            raise DataDirectoryLockedError(
                f"the data directory {self._data} is used by another magnetar process; stop that "
                f"one, or choose another --data"
            ) from error
        opened.callback(lock.release)

    async def _start_bookies(self, store: MetadataStore, opened: AsyncExitStack) -> list[Bookie]:
        assignment = await self._assign_ids(store)
        for bookie_id in assignment.lost:
            _log.warning("bookie_files_lost", bookie=bookie_id, data=str(self._data))
        bookies = [
            self._make_bookie(store, place, bookie_id)
            for place, bookie_id in assignment.ids.items()
        ]
        async with asyncio.TaskGroup() as starting:
            for bookie in bookies:
                starting.create_task(self._start_bookie(bookie, opened))
        return bookies

    async def _assign_ids(self, store: MetadataStore) -> Assignment:
        disk = SystemDisk()
        places = [f"bookie-{number}" for number in range(1, self._bookies + 1)]
        registered = frozenset(await BookieRegistry(store).cookie_ids())
        return assign_ids(
            {place: bookie_id_in(disk, str(self._data / place)) for place in places},
            is_registered=registered.__contains__,
            # A recovery needs answers from Qw - Qa + 1 bookies of each write set.
            losses_max=self._settings.ack_quorum - 1,
            has_files=lambda place: holds_files(self._data / place),
        )

    async def _start_bookie(self, bookie: Bookie, opened: AsyncExitStack) -> None:
        await bookie.start()
        opened.push_async_callback(bookie.stop)

    def _make_bookie(self, store: MetadataStore, place: str, bookie_id: str) -> Bookie:
        settings = bookie_settings(
            self._sources,
            data=self._data / place,
            listen=_BOOKIE_LISTEN,
            port=0,
            bookie_id=bookie_id,
        )
        return make_bookie(store, settings)


def holds_files(directory: Path) -> bool:
    """Return whether a directory holds any files; False if it does not exist.

    Raises:
        OSError: it cannot be listed, so it may hold messages.
    """
    try:
        return any(True for _ in directory.iterdir())
    except FileNotFoundError:
        return False
