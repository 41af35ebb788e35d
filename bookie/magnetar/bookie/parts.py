"""What a running bookie consists of, for what runs beside its requests.

A background service (garbage collection, scrubbing, the watch on the disks, ...) is handed the
parts it needs when the bookie has come up. It starts after the registration and has ended before
the server stops, so that all parts work while it runs.
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
    """Something that goes on beside the requests, on the event loop and on workers of its own."""

    def start(self) -> None:
        """Begin; returns at once."""
        ...

    async def close(self) -> None:
        """End, and wait until everything under way has ended. May come without `start`."""
        ...


@dataclass(frozen=True, slots=True)
class BookieParts:
    """The parts of one running bookie. Owned by the event loop."""

    bookie_id: str
    instance_id: str
    """Of the cluster."""
    settings: BookieSettings
    directories: BookieDirectories
    storage: LedgerStorage
    """What requests use; it is made of the shards."""
    shards: tuple[EntryStorage, ...]
    """One per ledger directory, in their order; none where a simulation has a stand-in."""
    disks: DiskWatch
    """How full the ledger directories are, and what may be written there."""
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
    """A new worker thread of that name; whoever makes one closes it."""
    worker: Worker
    """For calls that block for a moment. What takes long makes a worker of its own."""
    was_unclean: bool
    """The run before did not stop in order."""
    on_fatal: Callable[[BaseException], None]
    """Ends the process: for what the bookie must not go on with."""
