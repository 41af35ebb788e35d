"""The registered brokers with their load reports: a view in memory, kept current by watches.

The view shows which brokers have a session, not which are healthy: a dead broker is in it until its
session ends. While the store is unavailable the view stays as it was, since that says nothing about
the brokers. A registration that cannot be read is left out, and logged once.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import structlog
from pydantic import ValidationError

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.cluster.balance.load_report import LoadReport
from magnetar.broker.cluster.ownership.records import (
    BROKERS_ROOT,
    BrokerRecord,
    broker_path,
)
from magnetar.broker.policies.model import decode
from magnetar.ledger.errors import MetadataError, NoNodeError
from magnetar.ledger.metadata.store import MetadataStore, SessionState, Watch, WatchEvent

_log = structlog.get_logger()

_RELOAD_RETRY_DELAY_S = 0.5
_LOADS_AT_ONCE = 64


class Brokers:
    """The registered brokers, kept current between `start` and `close`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._records: dict[str, BrokerRecord] = {}
        self._reports: dict[str, LoadReport] = {}
        self._watches: dict[str, Watch] = {}
        self._root_watches: list[Watch] = []
        self._callbacks: list[Callable[[], None]] = []
        self._refused: dict[str, bytes] = {}
        self._old: set[str] = set()
        self._is_listing_old = True
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the registrations, and follow them from now on.

        Raises:
            MetadataUnavailableError
        """
        assert self._follower is None, "started twice"
        # First watch, then read: a change in between is seen twice rather than never.
        self._root_watches = [
            self._store.watch(BROKERS_ROOT, self._on_listing),
            self._store.on_session_change(self._on_session_change),
        ]
        try:
            await self._reload()
        except BaseException:
            self._close_watches()
            raise
        self._follower = asyncio.create_task(self._follow(), name="broker-registry")

    async def close(self) -> None:
        """Stop following; the view stays as it is. Closing twice has no effect."""
        self._callbacks.clear()
        self._close_watches()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None

    def all(self) -> Mapping[str, BrokerRecord]:
        """Return all brokers by name, including those that are about to stop."""
        return self._records

    def get(self, name: str) -> BrokerRecord | None:
        """Return a broker by name; None if it is not registered."""
        return self._records.get(name)

    def report_of(self, name: str) -> LoadReport | None:
        """Return the last load report of a broker; None if it has sent none, or none readable."""
        return self._reports.get(name)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop after each change of the view, until `close`."""
        self._callbacks.append(callback)

    def _close_watches(self) -> None:
        for watch in (*self._root_watches, *self._watches.values()):
            watch.close()
        self._root_watches = []
        self._watches = {}

    def _on_listing(self, event: WatchEvent) -> None:
        self._is_listing_old = True
        self._changed.set()

    def _on_session_change(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._is_listing_old = True
            self._old.update(self._watches)
            self._changed.set()

    def _on_record(self, name: str, event: WatchEvent) -> None:
        self._old.add(name)
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reload()
            except MetadataError as error:
                _log.warning("broker_registry_reload_failed", error=str(error))
                await asyncio.sleep(_RELOAD_RETRY_DELAY_S)
                self._changed.set()
            except Exception:  # noqa: BLE001 - a defect must not end the following
                _log.exception("broker_registry_reload_failed")
                await asyncio.sleep(_RELOAD_RETRY_DELAY_S)
                self._changed.set()

    async def _reload(self) -> None:
        """Read what is known to be outdated.

        Raises:
            MetadataUnavailableError: what was not read stays marked as outdated.
        """
        before = dict(self._records)
        try:
            await self._read_old()
        finally:  # changes read before a failure are not read again
            if self._records != before:
                for callback in list(self._callbacks):
                    try:
                        callback()
                    except Exception:  # noqa: BLE001 - the other callbacks must learn of it too
                        _log.exception("broker_registry_callback_failed")

    async def _read_old(self) -> None:
        if self._is_listing_old:
            self._is_listing_old = False
            try:
                names = set(await self._store.children(BROKERS_ROOT))
            except NoNodeError:
                names = set()  # No broker has ever registered.
            except BaseException:
                self._is_listing_old = True
                raise
            for name in self._watches.keys() - names:
                self._watches.pop(name).close()
                self._forget(name)
            for name in sorted(names - self._watches.keys()):
                self._watches[name] = self._store.watch(
                    broker_path(name), partial(self._on_record, name)
                )
                self._old.add(name)
        old = sorted(self._old & self._watches.keys())
        self._old.clear()
        for start in range(0, len(old), _LOADS_AT_ONCE):
            batch = old[start : start + _LOADS_AT_ONCE]
            results = await asyncio.gather(*map(self._load, batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    self._old.update(old[start:])
                    raise result

    async def _load(self, name: str) -> None:
        path = broker_path(name)
        try:
            value = (await self._store.get(path)).value
        except NoNodeError:
            self._forget(name)  # Gone since the listing. If it comes back, the watch reports it.
            return
        try:
            record = decode(BrokerRecord, path, value)
        except BrokerMetadataError as error:
            if self._refused.get(name) != value:
                self._refused[name] = value
                _log.error("broker_registration_refused", broker=name, error=str(error))
            self._records.pop(name, None)
            self._reports.pop(name, None)
            return
        self._refused.pop(name, None)
        self._records[name] = record
        try:
            report = LoadReport.model_validate(record.load) if record.load else None
        except ValidationError as error:
            _log.warning("load_report_unreadable", broker=name, problems=error.error_count())
            report = None
        if report is None:
            self._reports.pop(name, None)
        else:
            self._reports[name] = report

    def _forget(self, name: str) -> None:
        self._records.pop(name, None)
        self._reports.pop(name, None)
        self._refused.pop(name, None)
