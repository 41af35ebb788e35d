"""One term of the auditor: from its election until another auditor may be elected.

Four loops, all of which end with the term:

- one follows the registrations, the cookies and the operators' controls, and feeds `LostBookies`;
- one runs audits when they are due;
- one runs the periodic checks, each at an interval after its last run, whose time the metadata
  store keeps;
- one counts the work items for the metrics.

While auto-recovery is switched off, or the delay for a single lost bookie runs, audits and checks
wait. Failures are retried; nothing is concluded from a store that does not answer. Source:
auto-recovery, sections 1, 3, 4 and 8.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from magnetar.ledger.autorecovery.audits import Audits
from magnetar.ledger.autorecovery.controls import Check, Controls
from magnetar.ledger.autorecovery.lost_bookies import LossRules, LostBookies
from magnetar.ledger.autorecovery.metrics import AuditorMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.status import Survey
from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    InvariantError,
    LedgerError,
    NoNodeError,
)
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent
from magnetar.ledger.ports import Clock

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_SURVEY_REST_SHARE = 10
"""Pause after a survey, as a multiple of the survey's duration."""


class AuditorTerm:
    """The work of an elected auditor. Use once: `await run()`, which ends only by cancellation."""

    def __init__(
        self,
        store: MetadataStore,
        audits: Audits,
        controls: Controls,
        survey: Survey,
        *,
        check_placement: Callable[[], Awaitable[None]],
        clock: Clock,
        settings: AuditorSettings,
        metrics: AuditorMetrics,
        root: str,
    ) -> None:
        self._store = store
        self._audits = audits
        self._controls = controls
        self._survey = survey
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._root = root
        begun_s = clock.monotonic_s()
        self._lost = LostBookies(
            LossRules(
                gather_s=settings.gather_s,
                mass_loss_share=settings.mass_loss_share,
                mass_loss_bookies_min=settings.mass_loss_bookies_min,
                mass_loss_window_s=settings.mass_loss_window_s,
                mass_loss_wait_s=settings.mass_loss_wait_s,
            ),
            settled_s=begun_s + settings.settle_s,
            delay_s=settings.lost_bookie_recovery_delay_s,
        )
        metrics.delay_s = settings.lost_bookie_recovery_delay_s
        self._is_enabled = False
        self._auditing = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._delay_version: int | None = None
        self._is_loaded = False
        self._must_load = asyncio.Event()
        self._news = asyncio.Event()
        """Wakes the audits: something about the bookies or the controls has changed."""
        self._again_s: float | None = None
        self._known_runs: dict[Check, tuple[int, float]] = {}
        """(last run by the wall clock in ms, monotonic time in s since which this auditor knows of
        it), per check."""
        self._checks: dict[Check, tuple[float, Callable[[], Awaitable[None]]]] = {
            Check.BOOKIES: (settings.bookie_check_interval_s, self._check_bookies),
            Check.ALL_LEDGERS: (settings.all_ledgers_check_interval_s, audits.check_all_ledgers),
            Check.REPLICAS: (settings.replicas_check_interval_s, audits.check_replicas),
            Check.PLACEMENT: (settings.placement_check_interval_s, check_placement),
        }

    async def run(self) -> None:
        """Work until cancelled. If the layout of the work items, or a value that operators wrote,
        is not understood, only log that.
        """
        watches = self._watch()
        try:
            await self._until_done(self._controls.claim_layout)
            async with asyncio.TaskGroup() as tasks:
                for loop in (self._follow, self._run_audits, self._run_checks, self._run_surveys):
                    tasks.create_task(_guarded(loop), name=f"auditor {loop.__name__}")
        finally:
            for watch in watches:
                watch.close()

    # Changes in the cluster

    def _watch(self) -> list[Watch]:
        self._must_load.set()

        def on_event(event: WatchEvent) -> None:
            self._must_load.set()

        paths = [f"{self._root}/{name}" for name in ("available", "available/readonly", "cookies")]
        return [
            *(self._store.watch(path, on_event) for path in paths),
            *self._controls.watch(self._must_load.set),
        ]

    async def _follow(self) -> None:
        while True:
            await self._must_load.wait()
            self._must_load.clear()
            await self._until_done(self._load)
            self._is_loaded = True
            self._show()
            self._news.set()

    async def _load(self) -> None:
        """Read all registrations, cookies and controls anew.

        Raises:
            LedgerError: nothing was concluded.
        """
        async with self._loading:  # so that an older reading never replaces a newer one
            await self._load_alone()

    async def _load_alone(self) -> None:
        # A server that is behind could show a bookie as gone that has just come back.
        await self._store.catch_up()
        is_enabled = await self._controls.is_enabled()
        delay_s, version = await self._read_delay()
        cookies = await self._names("cookies")
        # The read-only ones before and after: a bookie that moves from one list to the other is in
        # one of them at any time (defect B22).
        registered = {
            *await self._names("available/readonly"),
            *await self._names("available"),
            *await self._names("available/readonly"),
        } - {"readonly"}
        now_s = self._clock.monotonic_s()
        self._is_enabled = is_enabled
        if version != self._delay_version or delay_s != self._metrics.delay_s:
            # The same value in a new version requests an audit; the value of the first reading does
            # not.
            if self._is_loaded or delay_s != self._settings.lost_bookie_recovery_delay_s:
                self._lost.on_delay(delay_s, now_s=now_s)
            self._delay_version = version
            self._metrics.delay_s = delay_s
        # Registrations come first: with the cookies alone all bookies would be away.
        self._lost.on_registered(registered, now_s=now_s)
        self._lost.on_cookies(cookies, now_s=now_s)

    async def _read_delay(self) -> tuple[float, int | None]:
        """Return the recovery delay in seconds, and the version of its node. If the node is not
        understood, the last known delay stays in force, and bookies are still watched.

        Raises:
            MetadataUnavailableError
        """
        try:
            delay_s, version = await self._controls.read_delay()
        except InvalidLedgerMetadataError as error:
            _log.error("recovery_delay_not_understood", error=str(error))
            return self._metrics.delay_s, self._delay_version
        default_s = self._settings.lost_bookie_recovery_delay_s
        return default_s if delay_s is None else delay_s, version

    async def _names(self, path: str) -> list[str]:
        try:
            return await self._store.children(f"{self._root}/{path}")
        except NoNodeError:
            return []

    def _show(self) -> None:
        metrics, lost = self._metrics, self._lost
        away = sorted(lost.away)
        if metrics.bookies_lost != len(away):
            _log.warning("bookies_away", bookies=away, registered=len(lost.registered))
        is_mass_loss = lost.is_mass_loss(self._clock.monotonic_s())
        if is_mass_loss and not metrics.is_mass_loss:
            _log.error(
                "many_bookies_vanished_at_once",
                bookies=away,
                registered=len(lost.registered),
                advice="is it the metadata store, or the network?",
            )
        metrics.bookies_registered = len(lost.registered)
        metrics.bookies_lost = len(away)
        metrics.is_mass_loss = int(is_mass_loss)
        metrics.is_disabled = int(not self._is_enabled)
        metrics.delayed_audits_scheduled += lost.delayed_scheduled
        metrics.delayed_audits_cancelled += lost.delayed_cancelled
        lost.delayed_scheduled = lost.delayed_cancelled = 0

    # Audits

    async def _run_audits(self) -> None:
        while True:
            self._news.clear()
            now_s = self._clock.monotonic_s()
            self._show()
            due = self._due(now_s)
            if due is None or due[0] > now_s:
                wait_s = None if due is None else due[0] - now_s
                await self._wait_news(wait_s)
                continue
            try:
                await self._audit(due[1])
            except LedgerError as error:
                self._metrics.audit_failures += 1
                _log.warning("audit_failed", reason=due[1], error=str(error))
                if due[1] == "asked":  # nobody will ask for it again
                    self._lost.on_asked(now_s=now_s)
                await asyncio.sleep(self._settings.retry_delay_s)

    def _due(self, now_s: float) -> tuple[float, str] | None:
        """Return the time and the reason of the next audit; None if none is due."""
        if not self._is_enabled:
            return None
        due: list[tuple[float, str]] = []
        if (lost := self._lost.due(now_s)) is not None:
            due.append((lost.at_s, lost.reason))
        if self._again_s is not None and not self._lost.is_delayed:
            due.append((self._again_s, "again"))
        return min(due, default=None)

    async def _wait_news(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass  # the time has come

    async def _audit(self, reason: str) -> None:
        """Publish work items for the ledgers of lost bookies.

        Raises:
            LedgerError: the audit is incomplete and must be repeated.
        """
        async with self._auditing:
            # A timer may be long overdue, in a process that was paused: read the state again first.
            await self._load()
            now_s = self._clock.monotonic_s()
            due = self._due(now_s)
            if due is not None and due[0] <= now_s:
                await self._audit_alone(due[1])
            elif reason == "periodic":
                await self._audit_alone(reason)

    async def _audit_alone(self, reason: str) -> None:
        lost = self._lost
        begun_s = self._clock.monotonic_s()
        covered = lost.begin_audit()
        known = lost.registered | covered.keys()

        def is_lost(bookie_id: str) -> bool:
            # A bookie that left during the audit is for the next audit to judge. A bookie that only
            # ledgers name is lost.
            is_away = bookie_id in covered or bookie_id not in known
            return is_away and bookie_id not in lost.registered

        def is_mass_loss() -> bool:
            return lost.is_mass_loss(self._clock.monotonic_s())

        _log.info("audit_begins", reason=reason, lost=sorted(covered))
        published = await self._audits.audit(is_lost, is_mass_loss=is_mass_loss)
        lost.on_audited(covered)
        took_s = self._clock.monotonic_s() - begun_s
        self._metrics.audit_s.observe(took_s)
        self._metrics.audits[reason] = self._metrics.audits.get(reason, 0) + 1
        _log.info("audit_ended", reason=reason, items=published, seconds=round(took_s, 3))
        self._again_s = None
        if covered and reason != "again" and self._settings.audit_again_s > 0:
            self._again_s = self._clock.monotonic_s() + self._settings.audit_again_s
        self._survey.request()

    async def _check_bookies(self) -> None:
        await self._audit("periodic")

    # Periodic checks

    async def _run_checks(self) -> None:
        settings = self._settings
        checks = {check: each for check, each in self._checks.items() if each[0] > 0}
        if not checks:
            return
        await asyncio.sleep(settings.first_check_delay_s)
        while True:
            waits = {check: await self._wait_before(check, checks[check][0]) for check in checks}
            check = min(waits, key=lambda check: waits[check])
            if waits[check] > 0:
                await asyncio.sleep(waits[check])
                continue
            if not self._is_enabled or self._lost.is_delayed:
                await asyncio.sleep(settings.retry_delay_s)
                continue
            await self._run_check(check, checks[check][1])

    async def _wait_before(self, check: Check, interval_s: float) -> float:
        """Return the seconds until the check is due. The wall clock only chooses a time. If it
        jumps, a check runs early, or late by no more than its interval: a run is at least as old as
        the time for which this auditor has known of it."""
        last_ms = await self._until_done(lambda: self._controls.last_run_ms(check))
        if last_ms is None:
            return 0.0
        now_s = self._clock.monotonic_s()
        known_ms, known_s = self._known_runs.get(check, (None, now_s))
        if known_ms != last_ms:
            known_s = now_s
            self._known_runs[check] = (last_ms, known_s)
        age_s = max((self._clock.wall_ms() - last_ms) / 1000, now_s - known_s)
        return min(max(interval_s - age_s, 0.0), interval_s)

    async def _run_check(self, check: Check, work: Callable[[], Awaitable[None]]) -> None:
        name = check.name.lower()
        begun_s = self._clock.monotonic_s()
        _log.info("check_begins", check=name)
        try:
            await work()
            await self._controls.note_run(check, now_ms=self._clock.wall_ms())
        except LedgerError as error:
            failures = self._metrics.check_failures
            failures[name] = failures.get(name, 0) + 1
            _log.warning("check_failed", check=name, error=str(error))
            await asyncio.sleep(self._settings.retry_delay_s)
            return
        took_s = self._clock.monotonic_s() - begun_s
        self._metrics.check_s.observe(took_s)
        self._metrics.checks[name] = self._metrics.checks.get(name, 0) + 1
        _log.info("check_ended", check=name, seconds=round(took_s, 3))
        self._survey.request()

    # Survey

    async def _run_surveys(self) -> None:
        while True:
            begun_s = self._clock.monotonic_s()
            try:
                await self._survey.run()
            except LedgerError as error:
                _log.warning("survey_failed", error=str(error))
            took_s = self._clock.monotonic_s() - begun_s
            await asyncio.sleep(took_s * _SURVEY_REST_SHARE)
            await self._survey.wait_request(self._settings.survey_interval_s)

    async def _until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat the work until the store answers with values that are understood."""
        while True:
            try:
                return await work()
            except LedgerError as error:
                _log.warning("auditor_waits_for_metadata", error=str(error))
                await asyncio.sleep(self._settings.retry_delay_s)


async def _guarded(loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop of the term; end the whole term if something that the loop awaits is cancelled.

    A task group takes a cancelled task for a done one: the other loops would go on without it.
    """
    try:
        await loop()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the term ends
        raise InvariantError(f"a wait in {loop!r} of the auditor was cancelled") from error
