"""Implementation of `magnetar ledger list`, `show` and `orphans`. Passwords are never printed."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from magnetar.broker.features.compaction.compacted_ledger import compaction_refers
from magnetar.broker.features.delayed.bucket_ledgers import COMPONENT, delayed_index_refers
from magnetar.broker.schemas.ledgers import schema_refers
from magnetar.cursors.node import cursor_refers
from magnetar.deploy.cluster_access import opened_store
from magnetar.deploy.explain import explained
from magnetar.deploy.options import Sources
from magnetar.deploy.printing import say, time_in_words
from magnetar.ledger.errors import InvalidLedgerMetadataError, NoSuchLedgerError
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import Finding, OrphanSweep, Verdict, agreed_ms, log_refers
from magnetar.ledger.system import SystemClock

_ROOT = "/ledgers"


class LedgerTools:
    """The ledger commands, over an open metadata store."""

    def __init__(self, store: MetadataStore, manager: LedgerManager) -> None:
        self._store = store
        self._manager = manager

    async def list_ledgers(self, *, as_json: bool) -> None:
        """Print a line for each ledger."""
        async for ledger_id in self._manager.ledger_ids():
            try:
                found = await self._manager.read(ledger_id)
            except NoSuchLedgerError:
                continue  # deleted since it was listed
            except InvalidLedgerMetadataError as error:
                problem: dict[str, object] = {"ledger_id": ledger_id, "problem": str(error)}
                say(json.dumps(problem) if as_json else f"{ledger_id}  unreadable: {error}")
                continue
            say(json.dumps(_fields(found)) if as_json else _line(found.metadata))

    async def show_ledger(self, ledger_id: int, *, as_json: bool) -> None:
        """Print everything about one ledger.

        Raises:
            NoSuchLedgerError, InvalidLedgerMetadataError
        """
        fields = _fields(await self._manager.read(ledger_id))
        if as_json:
            say(json.dumps(fields))
            return
        for name, value in fields.items():
            if name == "ensembles":
                continue
            say(f"{name:<16} {json.dumps(value) if isinstance(value, dict) else value}")
        for first_entry_id, bookies in (await self._manager.read(ledger_id)).metadata.ensembles:
            say(f"{'fragment from':<16} {first_entry_id}: {', '.join(bookies)}")

    async def sweep_orphans(self, *, delete: bool, grace_ms: int, as_json: bool) -> None:
        """Print the ledgers that are orphaned or in doubt, then the counts."""
        sweep = OrphanSweep(
            self._manager,
            {
                "managed-log": log_refers(self._store),
                "cursor": cursor_refers(self._store),
                COMPONENT: delayed_index_refers(self._store),
                "compaction": compaction_refers(self._store),
                "schema": schema_refers(self._store),
                "perf": _nobody_refers,
            },
            now_ms=await agreed_ms(self._store, SystemClock()),
            grace_ms=grace_ms,
        )
        counts = Counter({verdict.value: 0 for verdict in Verdict})
        async for finding in sweep.run(delete=delete):
            counts[finding.verdict.value] += 1
            if finding.verdict not in (Verdict.IN_USE, Verdict.TOO_YOUNG):
                say(json.dumps(_finding_fields(finding)) if as_json else _finding_line(finding))
        if as_json:
            say(json.dumps({"counts": counts}))
            return
        say(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))
        if counts[Verdict.ORPHAN.value]:
            say("nothing was deleted; --delete deletes the orphans")
        if counts[Verdict.SEALED.value]:
            say("sealed orphans were open; run the command again later to delete them")


async def _nobody_refers(metadata: LedgerMetadata) -> bool:
    """Return False: ledgers of `magnetar perf ledger` have no owner after the run."""
    return False


def run(metadata_url: str, work: Callable[[LedgerTools], Awaitable[None]]) -> None:
    """Run one tool against the ledgers behind a metadata URL.

    Raises:
        DeployError: with a message for a person.
    """

    async def on_store() -> None:
        async with opened_store(metadata_url, Sources()) as store:
            manager = await LedgerManager.of_root(
                store, random=random.Random(), clock=SystemClock(), root=_ROOT
            )
            await work(LedgerTools(store, manager))

    with explained(metadata_url=metadata_url):
        asyncio.run(on_store())


def _fields(ledger: VersionedLedger) -> dict[str, object]:
    metadata = ledger.metadata
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest_type": metadata.digest_type.value,
        "has_password": bool(metadata.password),
        "created": time_in_words(metadata.created_ms),
        "custom_metadata": metadata.custom_metadata,
        "version": ledger.version,
        "ensembles": [[first, list(bookies)] for first, bookies in metadata.ensembles],
    }


def _line(metadata: LedgerMetadata) -> str:
    is_closed = metadata.state is LedgerState.CLOSED
    end = f"{metadata.last_entry_id + 1} entries, {metadata.length} bytes" if is_closed else "-"
    quorums = f"{metadata.ensemble_size},{metadata.write_quorum},{metadata.ack_quorum}"
    created = time_in_words(metadata.created_ms)
    return (
        f"{metadata.ledger_id}  {metadata.state.value:<11}  {quorums}  {created}"
        f"  {end}  {_owner(metadata.custom_metadata)}"
    )


def _owner(custom_metadata: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(custom_metadata.items()))


def _finding_fields(finding: Finding) -> dict[str, object]:
    return {
        "ledger_id": finding.ledger_id,
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "custom_metadata": dict(finding.custom_metadata),
    }


def _finding_line(finding: Finding) -> str:
    owner = _owner(dict(finding.custom_metadata))
    return f"{finding.ledger_id}  {finding.verdict.value:<9}  {finding.reason}  {owner}".rstrip()
