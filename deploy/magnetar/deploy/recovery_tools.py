"""Implementation of `magnetar admin recovery`. All commands work through the metadata store."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

from magnetar.deploy.cluster_access import opened_store
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.explain import explained
from magnetar.deploy.options import Sources
from magnetar.deploy.printing import say, time_in_words
from magnetar.ledger.autorecovery.controls import DELAY_S_MAX, Controls, election_path
from magnetar.ledger.autorecovery.ledger_scan import PacedReads
from magnetar.ledger.autorecovery.status import (
    ItemReport,
    RecoveryStatus,
    lock_holder,
    report_items,
    report_status,
)
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.metadata.election import read_leader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.system import SystemClock

ROOT = "/ledgers"
_ITEMS_MAX = 100_000
READS_PER_S_MAX = 2_000.0
READS_AT_ONCE_MAX = 64


class RecoveryTools:
    """The recovery commands, over an open metadata store."""

    def __init__(self, store: MetadataStore, manager: LedgerManager, clock: SystemClock) -> None:
        self._store = store
        self._clock = clock
        self._controls = Controls(store, ROOT)
        self._items = WorkItems(store, clock=clock, random=random.Random(), root=ROOT)
        self._reads = PacedReads(
            manager, clock, per_s_max=READS_PER_S_MAX, at_once_max=READS_AT_ONCE_MAX
        )

    async def show_status(self, *, as_json: bool) -> None:
        """Print the state of re-replication."""
        status = await report_status(
            self._store,
            self._items,
            self._reads,
            now_ms=self._clock.wall_ms(),
            items_max=_ITEMS_MAX,
            root=ROOT,
        )
        if as_json:
            say(json.dumps(_status_fields(status)))
            return
        for name, text in _status_lines(status):
            say(f"{name:<18} {text}")
        for problem in status.items.unreadable:
            say(f"{'not understood':<18} {problem}")

    async def list_items(self, *, lacking: str | None, as_json: bool) -> None:
        """Print a line for each ledger that waits for copies, then one for each item or record that
        cannot be read."""
        report = await report_items(
            self._items,
            self._reads,
            now_ms=self._clock.wall_ms(),
            items_max=_ITEMS_MAX,
            lacking=lacking,
        )
        for item in report.items:
            holder = ""
            if item.is_in_work:
                holder = await lock_holder(self._store, item.ledger_id, root=ROOT)
            lost = [list(each) for each in report.lost.get(item.ledger_id, ())]
            say(
                json.dumps({**_item_fields(item), "holder": holder, "lost": lost})
                if as_json
                else _item_line(item, holder, is_lost=item.ledger_id in report.lost)
            )
        if not as_json:
            say(f"{len(report.items)} ledgers, {_size(report.bytes_to_copy)} to copy")
        for problem in report.unreadable:
            say(json.dumps({"problem": problem}) if as_json else f"not understood: {problem}")

    async def show_auditor(self) -> None:
        """Print the id of the auditor.

        Raises:
            SettingsError: there is no auditor.
        """
        leader = await read_leader(self._store, election_path(ROOT))
        if leader is None:
            raise SettingsError(
                "there is no auditor: no auto-recovery process runs, or the last one has just "
                "died; start `magnetar autorecovery`"
            )
        say(leader)

    async def trigger_audit(self) -> None:
        """Ask the auditor for an audit."""
        await self._controls.ask_for_audit()
        leader = await read_leader(self._store, election_path(ROOT))
        say(f"requested an audit from {leader}" if leader else "requested; there is no auditor now")

    async def show_delay(self) -> None:
        """Print the recovery delay."""
        delay_s, _ = await self._controls.read_delay()
        say("not set: the auditor's settings apply" if delay_s is None else f"{delay_s:g} s")

    async def set_delay(self, delay_s: float | None) -> None:
        """Set the recovery delay.

        Raises:
            SettingsError: out of bounds.
        """
        if delay_s is not None and not 0 <= delay_s <= DELAY_S_MAX:
            raise SettingsError(f"the delay must be 0 to {DELAY_S_MAX:.0f} s, got {delay_s:g}")
        await self._controls.write_delay(delay_s)
        await self.show_delay()

    async def enable(self) -> None:
        """Enable re-replication."""
        was_off = await self._controls.enable()
        say("switched on" if was_off else "it was on already")

    async def disable(self) -> None:
        """Disable re-replication."""
        was_on = await self._controls.disable(now_ms=self._clock.wall_ms())
        say("switched off" if was_on else "it was off already")


def run(metadata_url: str, work: Callable[[RecoveryTools], Awaitable[None]]) -> None:
    """Run one tool against the cluster behind a metadata URL.

    Raises:
        DeployError: with a message for a person.
    """

    async def on_store() -> None:
        async with opened_store(metadata_url, Sources()) as store:
            clock = SystemClock()
            await check_cluster(store, metadata_url)
            manager = await LedgerManager.of_root(
                store, random=random.Random(), clock=clock, root=ROOT
            )
            await work(RecoveryTools(store, manager, clock))

    with explained(metadata_url=metadata_url):
        asyncio.run(on_store())


async def check_cluster(store: MetadataStore, metadata_url: str) -> None:
    """Check that the store holds a cluster, because tools must not write anywhere else.

    Raises:
        SettingsError: there is no cluster.
    """
    if await store.exists(f"{ROOT}/INSTANCEID") is None:
        raise SettingsError(f"{metadata_url} holds no cluster; check the URL")


def _status_fields(status: RecoveryStatus) -> dict[str, object]:
    items = status.items
    return {
        "auditor": status.auditor,
        "enabled": status.is_enabled,
        "delay_s": status.delay_s,
        "bookies": {bookie.bookie_id: bookie.state for bookie in status.bookies},
        "under_replicated_ledgers": items.count,
        "bytes_to_copy": items.bytes_to_copy,
        "in_work": items.in_work,
        "oldest_age_s": round(items.oldest_age_ms / 1000, 3),
        "lost": {
            str(ledger_id): [list(each) for each in ranges]
            for ledger_id, ranges in items.lost.items()
        },
        "not_understood": list(items.unreadable),
        "last_checks": {
            name: None if at_ms is None else time_in_words(at_ms)
            for name, at_ms in status.last_run_ms.items()
        },
    }


def _status_lines(status: RecoveryStatus) -> list[tuple[str, str]]:
    items = status.items
    bookies = [
        f"{len(names)} {state}{f' ({chr(44).join(names)})' if state == 'lost' else ''}"
        for state in ("writable", "readonly", "lost")
        if (names := status.bookies_in(state))
    ]
    lines = [
        ("auditor", status.auditor or "none: start `magnetar autorecovery`"),
        ("re-replication", "on" if status.is_enabled else "OFF: `recovery enable` switches it on"),
        (
            "delay",
            "not set: the auditor's settings apply"
            if status.delay_s is None
            else f"{status.delay_s:g} s",
        ),
        ("bookies", ", ".join(bookies) or "none"),
        ("ledgers to repair", f"{items.count}, {items.in_work} in progress"),
        ("bytes to copy", _size(items.bytes_to_copy)),
        ("oldest", _age(items.oldest_age_ms) if items.items else "-"),
    ]
    if items.lost:
        ledgers = ", ".join(map(str, sorted(items.lost)))
        lines.append(("DATA LOSS", f"some entries of these ledgers are on no bookie: {ledgers}"))
    lines += [
        (f"{name.replace('_', ' ')} check", "never" if at_ms is None else time_in_words(at_ms))
        for name, at_ms in status.last_run_ms.items()
    ]
    return lines


def _item_fields(item: ItemReport) -> dict[str, object]:
    return {
        "ledger_id": item.ledger_id,
        "bookies": list(item.bookies),
        "age_s": round(item.age_ms / 1000, 3),
        "bytes_to_copy": item.bytes_to_copy,
    }


def _item_line(item: ItemReport, holder: str, *, is_lost: bool) -> str:
    return (
        f"{item.ledger_id}  lacks {', '.join(item.bookies)}  {_size(item.bytes_to_copy)}  "
        f"since {_age(item.age_ms)}  {f'in progress at {holder}' if holder else 'waiting'}"
        f"{'  DATA LOSS' if is_lost else ''}"
    )


def _size(size: int) -> str:
    return f"about {size / 1_000_000:.1f} MB"


def _age(age_ms: int) -> str:
    seconds = age_ms // 1000
    return f"{seconds} s" if seconds < 600 else f"{seconds // 60} min"
