"""Sweep of the object stores by the leader: deletes objects that no topic names.

Source: tiered storage, section 17.
"""

import asyncio
from collections.abc import Callable

import structlog

from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import backups_prefix
from magnetar.ledger.offloading.backup_pins import BackupPins
from magnetar.ledger.offloading.log_manifest import manifests_prefix
from magnetar.ledger.offloading.manifest_sweep import ManifestSweep, ManifestSweepCounts
from magnetar.ledger.offloading.object_keys import ledgers_prefix
from magnetar.ledger.offloading.store_set import StoreSet
from magnetar.ledger.offloading.sweeper import SweepCounts, Sweeper
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()


class Sweeping:
    """Sweeps every object store of the settings at intervals. `start`, `stop`."""

    def __init__(
        self,
        settings: ObjectSettings,
        stores: StoreSet,
        client: LedgerClient,
        store: MetadataStore,
        *,
        is_leader: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._client = client
        self._store = store
        self._is_leader = is_leader
        self._clock = clock
        # The current prefix and former ones: no node names the former prefix of a deleted topic.
        self._prefixes = (settings.object_prefix, *settings.object_prefixes_former)
        self._sweepers: dict[tuple[str, str], Sweeper] = {}
        """Sweepers by store and prefix."""
        self._task: asyncio.Task[None] | None = None
        self.counts: dict[tuple[str, str], SweepCounts] = {}
        """Counts of the last pass, by store and prefix."""
        self._manifest_sweeps: dict[tuple[str, str], ManifestSweep] = {}
        self.manifest_counts: dict[tuple[str, str], ManifestSweepCounts] = {}
        """Counts of the last pass over the manifests, by store and prefix."""
        self.failures = 0
        """Passes that ended with an error; each was logged."""

    def start(self) -> None:
        """Begin to sweep, if the settings have object stores and an interval."""
        if self._settings.object_stores and self._settings.object_sweep_interval_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="object-sweep")

    async def stop(self) -> None:
        """Cancel the running pass; nothing depends on it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.object_sweep_interval_s)
            if not self._is_leader():
                # What this broker found unnamed is outdated when it leads again.
                self._sweepers.clear()
                self._manifest_sweeps.clear()
                continue
            for each in self._settings.object_stores:
                for prefix in self._prefixes:
                    await self._sweep(each.name, prefix)
                    await self._sweep_manifests(each.name, prefix)

    async def _sweep(self, name: str, prefix: str) -> None:
        try:
            sweeper = self._sweepers.get((name, prefix))
            if sweeper is None:
                instance_id = await self._client.registry.instance_id()
                sweeper = self._sweepers[name, prefix] = Sweeper(
                    self._stores.store(name),
                    self._store,
                    ledgers_prefix(prefix, instance_id),
                    clock=self._clock,
                    grace_s=self._settings.object_grace_s,
                    pins=BackupPins(
                        self._store,
                        self._stores,
                        [backups_prefix(each, instance_id) for each in self._prefixes],
                    ),
                    unnamed_max=self._settings.object_sweep_keys_max,
                )
            self.counts[name, prefix] = await sweeper.sweep(may_delete=self._is_leader)
        except LedgerError as error:
            self.failures += 1
            _log.warning("object_sweep_failed", store=name, prefix=prefix, error=str(error))
        except Exception:  # noqa: BLE001 - the next pass may do better
            self.failures += 1
            _log.exception("object_sweep_broke", store=name, prefix=prefix)

    async def _sweep_manifests(self, name: str, prefix: str) -> None:
        try:
            sweep = self._manifest_sweeps.get((name, prefix))
            if sweep is None:
                instance_id = await self._client.registry.instance_id()
                sweep = self._manifest_sweeps[name, prefix] = ManifestSweep(
                    self._stores.store(name),
                    self._store,
                    manifests_prefix(prefix, instance_id),
                    clock=self._clock,
                    grace_s=self._settings.object_grace_s,
                    remembered_max=self._settings.object_sweep_keys_max,
                )
            self.manifest_counts[name, prefix] = await sweep.sweep(may_delete=self._is_leader)
        except LedgerError as error:
            self.failures += 1
            _log.warning("manifest_sweep_failed", store=name, prefix=prefix, error=str(error))
        except Exception:  # noqa: BLE001 - the next pass may do better
            self.failures += 1
            _log.exception("manifest_sweep_broke", store=name, prefix=prefix)
