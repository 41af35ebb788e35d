"""The parts of a running bookie, for its background services.

A background service (garbage collection, scrubbing, the disk watch, ...) gets the parts it needs
when the bookie is up. It starts after the registration and ends before the server stops, so all
parts work while it runs.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.disks.disk_watch import DiskWatch
from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.journaling.checkpoint import Checkpointer
from magnetar.bookie.journaling.journal import JournalSet
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.bookie.requests.write_gate import WriteGate
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Disk, Network, Worker
from magnetar.ledger.registration import BookieRegistry


class BackgroundService(Protocol):
    """A service that runs beside the requests, on the event loop and on workers of its own."""

    def start(self) -> None:
        """Start the service; return at once."""
        ...

    async def close(self) -> None:
        """Stop the service and wait until all its work has ended. May be called without `start`."""
        ...


@dataclass(frozen=True, slots=True)
class BookieParts:
    """The parts of one running bookie. Owned by the event loop."""

    bookie_id: str
    instance_id: str
    """Id of the cluster."""
    settings: BookieSettings
    directories: BookieDirectories
    storage: LedgerStorage
    """The storage that requests use; made of the shards."""
    shards: tuple[EntryStorage, ...]
    """One storage per ledger directory, in their order; empty where a simulation uses a stand-in.
    """
    disks: DiskWatch
    """Usage of the ledger directories, and which writes it allows."""
    gate: WriteGate
    ledgers: LedgerTable
    handler: RequestHandler
    journals: JournalSet[BatchContext]
    checkpointer: Checkpointer
    registry: BookieRegistry
    store: MetadataStore
    metrics: BookieMetrics
    clock: Clock
    disk: Disk
    network: Network
    random: random.Random
    make_worker: Callable[[str], Worker]
    """Makes a worker thread of the given name; the caller closes it."""
    worker: Worker
    """Worker for calls that block for a moment. Long work needs a worker of its own."""
    was_unclean: bool
    """Whether the previous run did not stop in order."""
    on_fatal: Callable[[BaseException], None]
    """Ends the process, after an error with which the bookie must not continue."""
