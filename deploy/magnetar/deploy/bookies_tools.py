"""Implementation of `magnetar admin bookies`."""

import asyncio
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from magnetar.deploy.cluster_access import opened_store, started_client
from magnetar.deploy.errors import DeployError
from magnetar.deploy.explain import explained
from magnetar.deploy.options import Sources
from magnetar.deploy.printing import say
from magnetar.deploy.recovery_tools import (
    READS_AT_ONCE_MAX,
    READS_PER_S_MAX,
    ROOT,
    check_cluster,
)
from magnetar.deploy.shared_secret import with_secret_beside
from magnetar.ledger.autorecovery.controls import Controls
from magnetar.ledger.autorecovery.decommission import Decommission
from magnetar.ledger.autorecovery.ledger_scan import PacedReads
from magnetar.ledger.autorecovery.recover import ManualRecovery, Recovered
from magnetar.ledger.autorecovery.status import report_bookies
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.hello import READS_TAKE_KEYS
from magnetar.ledger.layouts.ledger_layout import (
    passwords_are_on,
    turn_passwords_on,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.reading.bookie_requests import ask, check_status
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import Op


class BookiesTools:
    """The bookies commands, over an open metadata store and a started ledger client."""

    def __init__(
        self, store: MetadataStore, client: LedgerClient, clock: SystemClock, sources: Sources
    ) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._sources = sources
        self._reads = PacedReads(
            client.manager, clock, per_s_max=READS_PER_S_MAX, at_once_max=READS_AT_ONCE_MAX
        )

    async def list_bookies(self, *, as_json: bool) -> None:
        """Print a line for each bookie."""
        for bookie in await report_bookies(self._store, ROOT):
            info = self._client.registry.resolve(bookie.bookie_id)
            fields: dict[str, object] = {"bookie": bookie.bookie_id, "state": bookie.state}
            if info is not None:
                fields |= {
                    "address": f"{info.host}:{info.port}",
                    "rack": info.rack,
                    "zone": info.zone,
                }
            if as_json:
                say(json.dumps(fields))
            else:
                said = [f"{name} {value}" for name, value in fields.items() if value]
                say(f"{bookie.bookie_id}  {bookie.state:<8}  {'  '.join(said[2:])}".rstrip())

    async def recover(
        self,
        bookies: Sequence[str],
        *,
        ledger_id: int | None,
        is_dry_run: bool,
        skips_open: bool,
        deletes_cookies: bool,
        as_json: bool,
    ) -> None:
        """Recover bookies, and print the outcome for each of their ledgers.

        Raises:
            DeployError: some ledgers still need the bookies, or may need them.
            LedgerError
        """
        manual = ManualRecovery(
            self._client,
            self._store,
            clock=self._clock,
            random=random.SystemRandom(),
            holder=f"admin at {socket.gethostname()}:{os.getpid()}",
            reads=self._reads,
            settings=self._sources.component(WorkerSettings, "worker"),
            root=ROOT,
        )
        counts: Counter[Recovered] = Counter()
        async for done in manual.recover(
            bookies, ledger_id=ledger_id, is_dry_run=is_dry_run, skips_open=skips_open
        ):
            counts[done.outcome] += 1
            fields = {"ledger_id": done.ledger_id, "outcome": done.outcome.value}
            if as_json:
                say(json.dumps({**fields, "reason": done.reason}))
            else:
                why = f": {done.reason}" if done.reason else ""
                say(f"{done.ledger_id}  {done.outcome.value}{why}")
        if not as_json:
            said = [f"{count} {outcome.value}" for outcome, count in counts.items()]
            say(", ".join(said) or "no ledger that can be read refers to these bookies")
        if left := counts[Recovered.FAILED] + counts[Recovered.BUSY]:
            raise DeployError(
                f"{left} ledgers still need {', '.join(bookies)}: see the reasons above, then run "
                "the command again"
            )
        if unreadable := self._reads.unreadable:
            first = min(unreadable)
            raise DeployError(
                f"the metadata of {len(unreadable)} ledgers cannot be read, and may name "
                f"{', '.join(bookies)}: these ledgers were not recovered. The first is ledger "
                f"{first}: {unreadable[first]}. Run the command again when they can be read, and "
                "keep the bookies' disks until then"
            )
        if deletes_cookies:
            for bookie_id in bookies:
                await self.decommission(bookie_id)

    async def decommission(self, bookie_id: str) -> None:
        """Wait until no ledger needs the bookie, and delete its cookie.

        Raises:
            LedgerError
        """
        controls = Controls(self._store, ROOT)
        if not await controls.is_enabled():
            raise DeployError(
                "re-replication is disabled, so no worker makes the copies: "
                "`magnetar admin recovery enable` enables it"
            )

        def on_left(left: int) -> None:
            sys.stderr.write(f"{left} ledgers still need {bookie_id}\n")

        moved = await Decommission(
            self._client,
            self._store,
            clock=self._clock,
            random=random.SystemRandom(),
            reads=self._reads,
            ask_for_audit=controls.ask_for_audit,
            on_left=on_left,
            root=ROOT,
        ).run(bookie_id)
        say(f"{bookie_id} is decommissioned; {moved} ledgers were moved")

    async def ledger_passwords(self, *, turns_on: bool) -> None:
        """Print whether new ledgers get passwords, or turn passwords on.

        Raises:
            DeployError: a bookie would not understand readers that present a password.
            LedgerError
        """
        are_on = await passwords_are_on(self._store, ROOT)
        if not turns_on:
            words = {
                True: "on: new ledgers have passwords, which readers must present",
                False: "off: new ledgers have no passwords; --turn-on when all run this release",
                None: "no ledger exists yet: the first one will have a password",
            }
            say(words[are_on])
            return
        for bookie in await report_bookies(self._store, ROOT):
            if self._client.registry.resolve(bookie.bookie_id) is None:
                raise DeployError(
                    f"bookie {bookie.bookie_id} is {bookie.state}: its release is unknown. Start "
                    f"it, or remove it (`magnetar admin bookies decommission`)"
                )
            await self._check_release(bookie.bookie_id)
        was_changed = await turn_passwords_on(self._store, ROOT)
        say("turned on" if was_changed else "already on")

    async def _check_release(self, bookie_id: str) -> None:
        """Check that a bookie's release knows ledger passwords.

        Raises:
            DeployError: the release does not know keys in reads.
            BookieUnavailableError: the bookie does not answer.
        """
        frame = await ask(self._client.channels, bookie_id, Op.INFO, b"", ledger_id=0)
        check_status(frame, bookie_id)
        if json.loads(frame.body).get(READS_TAKE_KEYS) is not True:
            raise DeployError(
                f"bookie {bookie_id} runs a release that does not know ledger passwords: "
                f"upgrade it, then try again"
            )


def run(metadata_url: str, work: Callable[[BookiesTools], Awaitable[None]]) -> None:
    """Run one tool against the cluster behind a metadata URL.

    Raises:
        DeployError: with a message for a person.
    """

    async def on_store() -> None:
        sources = with_secret_beside(Sources(), metadata_url)
        async with opened_store(metadata_url, sources) as store:
            await check_cluster(store, metadata_url)
            async with started_client(store, sources, root=ROOT) as client:
                await work(BookiesTools(store, client, SystemClock(), sources))

    with explained(metadata_url=metadata_url):
        asyncio.run(on_store())
