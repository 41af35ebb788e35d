"""Implementation of `magnetar backup` and `magnetar restore`."""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.backup import (
    BackupDeletion,
    BackupMaker,
    Backups,
    ClusterBackup,
    Covered,
    LeftOut,
    LogReading,
    Restore,
    RestorePlan,
    Scope,
    Uncovered,
    topic_of_log,
)
from magnetar.broker.features.offloading import object_keys
from magnetar.cursors import CursorError
from magnetar.deploy.cluster_access import opened_store, started_client
from magnetar.deploy.copy_open import OpenLedgers
from magnetar.deploy.errors import DeployError, SettingsError
from magnetar.deploy.explain import explain, explained
from magnetar.deploy.options import Sources, default_quorum
from magnetar.deploy.printing import say
from magnetar.deploy.recovery_tools import ROOT, check_cluster
from magnetar.deploy.shared_secret import with_secret_beside
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_keys import backups_prefix
from magnetar.ledger.offloading.backup_pins import note_of, note_store
from magnetar.ledger.offloading.object_reader import ObjectReads
from magnetar.ledger.offloading.store_set import StoredLedgers, StoreSet
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock


class BackupTools:
    """The backup commands, over an open metadata store and a started ledger client."""

    def __init__(
        self,
        store: MetadataStore,
        client: LedgerClient,
        stores: StoreSet,
        settings: BrokerSettings,
        store_name: str,
        instance_id: str,
        clock: SystemClock,
    ) -> None:
        self._store = store
        self._client = client
        self._stores = stores
        self._settings = settings
        self._objects = stores.store(store_name)
        self._store_name = store_name
        self._instance_id = instance_id
        self._clock = clock

    def scope(self, *, tenant: str, namespace: str, topic: str) -> Scope:
        """Return the scope that a command's options choose.

        Raises:
            InvalidNameError, InvalidTopicNameError
        """
        return Scope.of(tenant=tenant, namespace=namespace, topic=topic)

    async def create(
        self, name: str, scope: Scope, *, admin_url: str, wait_s: float, as_json: bool
    ) -> None:
        """Make a backup; print what it covers and what it does not.

        Args:
            admin_url: brokers that copy open ledgers first; empty: open ledgers are not copied.

        Raises:
            DeployError, LedgerError, CursorError, RequestError
        """
        name = name or _time(self._clock.wall_ms()).translate({ord("-"): None, ord(":"): None})
        backups = self._backups("")
        backups.folder(name)
        maker = BackupMaker(
            self._objects,
            backups,
            self._store,
            LogReading(self._client, self._store, self._instance_id, self._clock),
            store_name=self._store_name,
            instance_id=self._instance_id,
            clock=self._clock,
            random=random.SystemRandom(),
        )
        if admin_url:
            topics = [topic_of_log(path) for path in await maker.logs(scope)]
            copying = OpenLedgers(admin_url, wait_s=wait_s, clock=self._clock)
            await copying.copy([each for each in topics if each is not None])

        def tell(covered: Covered) -> None:
            fields = {
                "topic": str(topic_of_log(covered.file.log)),
                "ledgers": covered.ledgers,
                "not_covered": covered.uncovered.model_dump(),
            }
            if as_json:
                say(json.dumps(fields))
            elif not covered.uncovered.is_nothing:
                say(f"{fields['topic']}: {self._in_words(covered.uncovered)}")

        try:
            made = await maker.make(
                name, scope, on_log=tell, on_left_out=lambda each: self._say_left_out(each, as_json)
            )
        except BaseException:
            sys.stderr.write(
                f"magnetar: if there is a part of backup {name} now, `magnetar backup list` calls "
                f"it unfinished, and `magnetar backup delete {name}` removes it\n"
            )
            raise
        self._say_backup(made, as_json=as_json)

    async def list_backups(self, instance_id: str, *, as_json: bool) -> None:
        """Print a line for each backup.

        If the metadata store does not know that this cluster has backups, note it there. That is
        the case after the store was restored from an older copy.

        Raises:
            ObjectError, MetadataError
        """
        found = await self._backups(instance_id).found()
        if instance_id in ("", self._instance_id) and await self._has_backups():
            await note_store(self._store, self._store_name, _token())
        for each in found:
            state = "finished" if each.is_finished else "unfinished"
            if as_json:
                fields = {
                    "name": each.name,
                    "state": state,
                    "files": each.files,
                    "bytes": each.size_bytes,
                    "written_ms": each.written_ms,
                }
                say(json.dumps(fields))
            else:
                say(
                    f"{each.name}  {state:<10}  {each.files} files, {each.size_bytes} bytes  "
                    f"{_time(each.written_ms)}"
                )

    async def show(self, name: str, instance_id: str, *, as_json: bool) -> None:
        """Print a line for each topic of a backup, then the totals.

        Raises:
            ObjectError, NotThereError, InvalidNameError
        """
        backups = self._backups(instance_id)
        cluster = await backups.cluster(name)
        for file in cluster.logs:
            found = await backups.log(file)
            ledgers = [each for each in found.manifest.node.ledgers if each.is_in_object]
            fields = {
                "topic": str(topic_of_log(file.log)),
                "ledgers": len(ledgers),
                "entries": sum(each.entries for each in ledgers),
                "bytes": sum(each.bytes for each in ledgers),
                "subscriptions": sorted(found.cursors),
                "schemas": [each.version for each in found.manifest.schemas],
                "not_covered": found.uncovered.model_dump(),
            }
            if as_json:
                say(json.dumps(fields))
            else:
                say(
                    f"{fields['topic']}: {len(ledgers)} ledgers, {fields['entries']} entries, "
                    f"{fields['bytes']} bytes; {self._in_words(found.uncovered)}"
                )
        for each in cluster.left_out:
            self._say_left_out(each, as_json)
        self._say_backup(cluster, as_json=as_json)

    async def delete(self, name: str) -> None:
        """Delete a backup of this cluster.

        Raises:
            ObjectError, InvalidNameError, MetadataError
        """
        current, *former = self._of_prefixes()
        deletion = BackupDeletion(
            self._objects, current, former, self._store, store_name=self._store_name
        )
        files = await deletion.delete(name)
        say(
            f"{files} files of backup {name} are deleted" if files else f"there is no backup {name}"
        )
        noted = await note_of(self._store, self._store_name) is not None
        if noted and not await self._has_backups():
            store = self._store_name
            sys.stderr.write(
                f"magnetar: store {store} lists no file of any backup, but the metadata store says "
                "that it has backups: until that is mended, brokers delete no objects that are no "
                "longer needed. See that the store is in place, for example that its directory is "
                "mounted. If it is, and no backup is being made, make one (magnetar backup create) "
                "and delete it (magnetar backup delete)\n"
            )

    async def restore(
        self,
        name: str,
        instance_id: str,
        scope: Scope,
        *,
        is_dry_run: bool,
        keeps_gaps: bool,
        ids_max: int,
        as_json: bool,
    ) -> None:
        """Restore topics, and print what was restored and what is lost.

        Raises:
            DeployError, LedgerError, CursorError, RequestError
        """
        quorum = default_quorum(max(1, len(self._client.registry.writable())))
        keys = object_keys(self._settings)
        reads = ObjectReads(self._settings, self._clock, keys=keys)
        objects = StoredLedgers(self._stores, reads)
        restore = Restore(
            self._backups(instance_id),
            name,
            scope,
            self._stores,
            self._store,
            self._client,
            objects,
            quorums=LogConfig(
                ensemble_size=quorum.ensemble, write_quorum=quorum.write, ack_quorum=quorum.ack
            ),
            keeps_gaps=keeps_gaps,
            clock=self._clock,
            random=random.SystemRandom(),
        )
        try:
            found = await restore.look()
            if not is_dry_run:
                await restore.write(found, ids_max=ids_max, on_behind=_tell_behind)
        finally:
            await objects.close()
        self._say_restore(found, is_dry_run=is_dry_run, as_json=as_json)

    # Parts

    def _backups(self, instance_id: str) -> Backups:
        prefix = backups_prefix(self._settings.object_prefix, instance_id or self._instance_id)
        return Backups(self._objects, prefix)

    async def _has_backups(self) -> bool:
        """Return whether the sweep of this cluster has to read backups in the store: also those
        below former prefixes, which the commands do not show.

        Raises:
            ObjectError
        """
        for each in self._of_prefixes():
            if await each.found():
                return True
        return False

    def _of_prefixes(self) -> Sequence[Backups]:
        """Return the backups of this cluster below the current prefix, and those below former
        ones."""
        prefixes = (self._settings.object_prefix, *self._settings.object_prefixes_former)
        return [
            Backups(self._objects, backups_prefix(each, self._instance_id)) for each in prefixes
        ]

    def _say_backup(self, made: ClusterBackup, *, as_json: bool) -> None:
        fields = {
            "backup": made.name,
            "instance_id": made.instance_id,
            "topics": len(made.logs),
            "scope": made.scope,
            "finished": _time(made.finished_ms),
            "scalable_topics_left_out": len(made.left_out),
            "not_covered": made.uncovered.model_dump(),
            "rpo_s": _rpo_s(made),
        }
        if as_json:
            say(json.dumps(fields))
            return
        scope = f" of {made.scope}" if made.scope else ""
        say(
            f"backup {made.name}{scope} of cluster {made.instance_id}, finished "
            f"{fields['finished']}: {_topics(len(made.logs))}"
        )
        rpo = f"; RPO {fields['rpo_s']} s" if made.uncovered.entries else ""
        say(f"{self._in_words(made.uncovered, left_out=len(made.left_out))}{rpo}")

    def _say_left_out(self, left_out: LeftOut, as_json: bool) -> None:
        if as_json:
            fields = {
                "topic": left_out.topic,
                "ledgers": 0,
                "not_covered": left_out.uncovered.model_dump(),
            }
            say(json.dumps(fields))
        else:
            say(f"{left_out.topic}: {self._in_words(left_out.uncovered, left_out=1)}")

    def _in_words(self, uncovered: Uncovered, *, left_out: int = 0) -> str:
        words = "everything is covered" if uncovered.is_nothing and not left_out else ""
        if uncovered.entries:
            words = (
                f"not covered: {uncovered.entries} entries, {uncovered.bytes} bytes in "
                f"{uncovered.ledgers} ledgers, since {_time(uncovered.since_ms)}"
            )
        if uncovered.is_compacted:
            words += "; compacted messages that left the topic are not covered"
        if behind := uncovered.cursors_rolled_back:
            some = "a subscription is" if behind == 1 else f"{behind} subscriptions are"
            words += f"; {some} older, because the last acknowledgements cannot be read"
        if left_out:
            scalable = "a scalable topic is" if left_out == 1 else f"{left_out} scalable topics are"
            words += f"; {scalable} not in the backup, with messages and subscriptions"
        return words.removeprefix("; ")

    def _say_restore(self, found: RestorePlan, *, is_dry_run: bool, as_json: bool) -> None:
        fields = {
            "backup": found.cluster.name,
            "restored": not is_dry_run,
            "topics": len(found.logs),
            "restored_before": found.done_before,
            "ledgers": found.ledgers,
            "entries": found.entries,
            "bytes": found.bytes,
            "cursors": found.cursors,
            "scalable_topics_left_out": len(found.left_out),
            "not_covered": found.lost.model_dump(),
            "behind_gap": found.behind_gap.model_dump(),
            "kept": sorted(found.kept),
        }
        if as_json:
            say(json.dumps(fields))
            return
        done = "to be restored" if is_dry_run else "restored"
        say(
            f"{_topics(len(found.logs))} {done} from backup {found.cluster.name}: {found.entries} "
            f"entries, {found.bytes} bytes in {found.ledgers} ledgers, {found.cursors} cursors"
        )
        if found.done_before:
            say(f"restored before: {_topics(found.done_before)}")
        say(self._in_words(found.lost, left_out=len(found.left_out)))
        if found.behind_gap.entries:
            say(
                f"{found.behind_gap.entries} entries are in the object store and left out, because "
                "a ledger before them is not: --with-gaps restores them"
            )
        for path in sorted(found.kept):
            say(f"{path} was there with other values, and was left as it is")


def _topics(count: int) -> str:
    return f"{count} topic{'' if count == 1 else 's'}"


def _token() -> bytes:
    return f"{random.SystemRandom().getrandbits(128):x}".encode()


def _rpo_s(made: ClusterBackup) -> int:
    """Return the age in seconds, when the backup finished, of the oldest entry not covered; 0:
    none."""
    since_ms = made.uncovered.since_ms
    return max(0, made.finished_ms - since_ms) // 1000 if since_ms else 0


def _tell_behind(ids: int) -> None:
    sys.stderr.write(f"magnetar: {ids} ledger ids are used up to pass those of the backup\n")


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(
    metadata_url: str,
    sources: Sources,
    store_name: str,
    work: Callable[[BackupTools], Awaitable[None]],
) -> None:
    """Run one tool against the cluster behind a metadata URL, and its object stores.

    Args:
        store_name: object store of the backups; empty: the one that brokers offload ledgers to.

    Raises:
        DeployError: with a message for a person.
    """
    sources = with_secret_beside(sources, metadata_url)
    settings = sources.component(BrokerSettings, "broker")
    chosen = store_name or settings.offload_store
    if not chosen:
        raise SettingsError(
            "no object store: give --store, or the brokers' settings (--config, with "
            "object_stores and offload_store in [broker])"
        )

    async def on_cluster() -> None:
        async with opened_store(metadata_url, sources) as store, AsyncExitStack() as opened:
            stores = StoreSet(settings.object_stores)
            opened.push_async_callback(stores.close)
            await check_cluster(store, metadata_url)
            client = await opened.enter_async_context(started_client(store, sources, root=ROOT))
            instance_id = await client.registry.instance_id()
            await work(
                BackupTools(store, client, stores, settings, chosen, instance_id, SystemClock())
            )

    with explained(metadata_url=metadata_url):
        try:
            asyncio.run(on_cluster())
        except (LedgerError, CursorError) as error:
            # For example a bookie is down: that is no fault of this program.
            explanation = explain(error, metadata_url=metadata_url)
            raise explanation or DeployError(f"{error}; run the command again") from error
