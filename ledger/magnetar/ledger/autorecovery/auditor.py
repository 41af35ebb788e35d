"""The auditor: one process of the cluster finds lost bookies and missing copies.

Every process of auto-recovery has an `Auditor` and stands for election. Only the elected one works,
for as long as it leads (`term.py`). Losing the session, or contact with the store, ends its work at
once. Two auditors for a moment do no harm: publishing an item twice changes nothing.

Source: auto-recovery, section 1.
"""

import asyncio
import random

import structlog

from magnetar.ledger.autorecovery.audits import Audits
from magnetar.ledger.autorecovery.controls import Controls, election_path
from magnetar.ledger.autorecovery.metrics import AuditorMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.status import Survey
from magnetar.ledger.autorecovery.term import AuditorTerm
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.autorecovery.worker import make_checker
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.election import Election
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import LedgerSettings

_log = structlog.get_logger(__name__)

_OF_THE_CLUSTER = (
    "bookies_registered",
    "bookies_lost",
    "is_mass_loss",
    "is_disabled",
    "delay_s",
    "misplaced_fragments",
    "concentrated_fragments",
    "under_replicated_ledgers",
    "under_replicated_bytes",
    "ledgers_in_work",
    "oldest_item_age_s",
    "overdue_items",
    "unreadable_items",
    "unreadable_ledgers",
    "ledgers_without_replica",
)
"""Metrics that only the auditor knows."""


class Auditor:
    """A candidate for auditor, and the auditor if it is elected."""

    def __init__(
        self,
        store: MetadataStore,
        client: LedgerClient,
        *,
        name: str,
        clock: Clock,
        random: random.Random,
        ledger_settings: LedgerSettings,
        settings: AuditorSettings | None = None,
        metrics: AuditorMetrics | None = None,
        root: str = "/ledgers",
    ) -> None:
        """Make a candidate that does not stand yet.

        Args:
            client: started; the caller keeps it and closes it.
            name: the auditor's id, as others see it.
        """
        self._store = store
        self._client = client
        self._clock = clock
        self._random = random
        self._ledger_settings = ledger_settings
        self._settings = settings or AuditorSettings()
        self.metrics = metrics or AuditorMetrics()
        self._root = root
        self.election = Election(store, election_path(root), name, random=random)
        self._changed = asyncio.Event()
        self._term: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Stand for election from now on."""
        assert self._task is None, "started twice"
        self.election.on_change(self._on_election)
        await self.election.start()
        self._changed.set()
        self._task = asyncio.create_task(self._serve(), name="auditor")

    @property
    def is_alive(self) -> bool:
        """Whether this process stands for election, or is elected."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop, so that another process can be elected."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.election.close()

    def _on_election(self) -> None:
        self._changed.set()
        if self._term is not None and not self.election.is_leader:
            self._term.cancel()

    async def _serve(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.election.is_leader:
                await self._serve_term()

    async def _serve_term(self) -> None:
        """Work as the auditor until another process may be elected."""
        _log.info("auditor_term_begins")
        self.metrics.is_auditor = 1
        self.metrics.elections_won += 1
        self._term = asyncio.create_task(self._make_term().run(), name="auditor-term")
        try:
            await asyncio.wait([self._term])
            if not self._term.cancelled() and (error := self._term.exception()) is not None:
                # A bug, since all failures of the store or of a bookie are handled inside. It must
                # not leave the cluster without an auditor for good.
                _log.error("auditor_term_failed", error=repr(error), exc_info=error)
                await asyncio.sleep(self._settings.retry_delay_s)
                self._changed.set()
        finally:
            self._term.cancel()
            await asyncio.gather(self._term, return_exceptions=True)
            self._term = None
            self.metrics.is_auditor = 0
            for name in _OF_THE_CLUSTER:
                setattr(self.metrics, name, 0)
            _log.info("auditor_term_ends")

    def _make_term(self) -> AuditorTerm:
        client, settings = self._client, self._settings
        items = WorkItems(self._store, clock=self._clock, random=self._random, root=self._root)
        audits = Audits(
            client.manager,
            client.channels,
            make_checker(client),
            items,
            clock=self._clock,
            random=self._random,
            settings=settings,
            metrics=self.metrics,
        )

        async def check_placement() -> None:
            ledger_settings = self._ledger_settings
            is_zone = ledger_settings.placement == "zone"
            await audits.check_placement(
                self._client.registry.registered(),
                racks_min=ledger_settings.placement_racks_min,
                zones_min=ledger_settings.placement_zones_min if is_zone else 1,
            )

        return AuditorTerm(
            self._store,
            audits,
            Controls(self._store, self._root),
            Survey(
                items,
                audits.reads,
                clock=self._clock,
                settings=settings,
                metrics=self.metrics,
            ),
            check_placement=check_placement,
            clock=self._clock,
            settings=settings,
            metrics=self.metrics,
            root=self._root,
        )
