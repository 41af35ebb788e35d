"""Lying bookies against the real ledger client.

Each case writes a ledger, honestly or not, and then reads, recovers or follows it while bookies
lie. Whatever they say: the client returns the true entries or raises one of its errors, in bounded
time, and no acknowledged entry is lost. What a quorum of bookies agrees to deny cannot be known by
any client, so where that matters only one of them lies.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import read_key
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import DigestType, LedgerState
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import Status
from magnetar.ledger.writer import LedgerWriter
from tests.bookie_parts import BookieClient, read_request
from tests.fuzz.findings import Findings
from tests.fuzz.lying_network import LyingNetwork
from tests.integration.ledger.cluster import Cluster, cluster_of

BOOKIES = 4
_ENTRIES_MAX = 25
_CASE_TIMEOUT_S = 120.0
_ATTEMPTS = 3
_SETTINGS = LedgerSettings(
    request_timeout_s=0.15,
    connect_timeout_s=1,
    reconnect_delay_s=0.01,
    close_drain_timeout_s=1,
)
_HONEST_SETTINGS = LedgerSettings(
    request_timeout_s=60,  # all bookies share a disk, and it may stand still for seconds
    reconnect_delay_s=0.05,
    explicit_lac_interval_ms=5,  # so that there are LAC packets to lie about
)
_DIGESTS = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)


class _Case:
    """One seed: the truth, and what the client made of it."""

    def __init__(
        self, seed: int, cluster: Cluster, honest: LedgerClient, findings: Findings
    ) -> None:
        self.random = random.Random(seed)
        self._seed = seed
        self._cluster = cluster
        self._honest = honest
        self._findings = findings
        self._payloads = [
            self.random.randbytes(self.random.randrange(200))
            for _ in range(self.random.randint(1, _ENTRIES_MAX))
        ]
        self._digest_type = self.random.choice(_DIGESTS)

    async def run(self) -> None:
        part = self.random.choice((self._read_closed, self._recover, self._write, self._follow))
        try:
            async with asyncio.timeout(_CASE_TIMEOUT_S):
                await part()
        except TimeoutError:
            self._wrong(f"{part.__name__} hangs")
        except Exception as error:  # noqa: BLE001  # any other error is a finding
            self._wrong(f"{part.__name__} raised {error!r}")

    def _wrong(self, text: str) -> None:
        self._findings.add(f"seed {self._seed}: {text}")

    def _network(self, liars: int) -> LyingNetwork:
        ports = [bookie.port for bookie in self._cluster.bookies.values()]
        return LyingNetwork(
            self.random,
            set(self.random.sample(ports, liars)),
            share=self.random.choice((0.1, 0.5, 1.0)),
        )

    async def _write_honestly(self, *, close: bool) -> int:
        """A ledger whose entries are on all three bookies of its ensemble; returns its id."""
        writer = await self._honest.create(
            ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=self._digest_type
        )
        for payload in self._payloads:
            await writer.add(payload)
        if close:
            await writer.close()
        last = len(self._payloads) - 1
        for bookie_id in writer.metadata.last_fragment.bookies:
            bookie = await BookieClient.connect(self._cluster.bookies[bookie_id].port)
            key = read_key(writer.metadata.password)
            status = Status.NO_SUCH_ENTRY
            while status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):  # it is on its way
                reply = await bookie.ask(
                    lambda number, key=key: read_request(number, writer.ledger_id, last, key=key)  # type: ignore[misc]
                )
                status = Status(reply.status)
            assert status is Status.OK
            bookie.close()
        return writer.ledger_id

    async def _read_closed(self) -> None:
        ledger_id = await self._write_honestly(close=True)
        liars = self.random.randint(1, BOOKIES)
        async with self._cluster.client(self._network(liars), _SETTINGS) as client:
            reader = await client.open(ledger_id)
            await self._read_all(reader.read, len(self._payloads) - 1)
            await reader.close()

    async def _read_all(
        self, read: Callable[[int, int], Awaitable[list[bytes]]], last: int
    ) -> None:
        at = failures = 0
        while at <= last and failures < _ATTEMPTS:
            try:
                payloads = await read(at, last)
            except LedgerError:
                failures += 1
                continue
            if not payloads or payloads != self._payloads[at : at + len(payloads)]:
                self._wrong(f"entries from {at} on were read as {payloads}")
            at += len(payloads)

    async def _recover(self) -> None:
        ledger_id = await self._write_honestly(close=False)
        last_entry_id: int | None = None
        async with self._cluster.client(self._network(1), _SETTINGS) as client:
            for _ in range(_ATTEMPTS):
                try:
                    reader = await client.open_and_recover(ledger_id)
                except LedgerError:
                    continue
                last_entry_id = reader.last_add_confirmed
                break
        await self._check_end(ledger_id, acknowledged=len(self._payloads))
        if last_entry_id not in (None, len(self._payloads) - 1):
            self._wrong(f"recovery says that the ledger ends at {last_entry_id}")

    async def _write(self) -> None:
        """Two ledgers at once, whose adds share frames."""
        async with self._cluster.client(self._network(1), _SETTINGS) as client:
            writers = [
                await client.create(
                    ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=self._digest_type
                )
                for _ in range(2)
            ]
            all_outcomes = await asyncio.gather(*map(self._add_all, writers))
            for writer in writers:
                if self.random.random() < 0.5:
                    try:
                        await writer.close(force=writer.has_failed)
                    except LedgerError:
                        pass  # recovery decides
        for writer, outcomes in zip(writers, all_outcomes, strict=True):
            acknowledged = 0
            for entry_id, outcome in enumerate(outcomes):
                if outcome == entry_id == acknowledged:
                    acknowledged += 1
                elif not isinstance(outcome, LedgerError):
                    self._wrong(f"add {entry_id} ended with {outcome!r}")
            await self._check_end(writer.ledger_id, acknowledged=acknowledged)

    async def _add_all(self, writer: LedgerWriter) -> list[int | BaseException]:
        adds = (writer.add(payload) for payload in self._payloads)
        return await asyncio.gather(*adds, return_exceptions=True)

    async def _check_end(self, ledger_id: int, *, acknowledged: int) -> None:
        """With honest bookies only: all that was acknowledged is there, and nothing is made up."""
        reader = await self._honest.open_and_recover(ledger_id)
        last = reader.last_add_confirmed
        if not acknowledged - 1 <= last < len(self._payloads):
            self._wrong(f"{acknowledged} entries were acknowledged, the ledger ends at {last}")
        at = 0
        while at <= last:
            payloads = await reader.read(at, last)
            if payloads != self._payloads[at : at + len(payloads)]:
                self._wrong(f"entries from {at} on are {payloads}")
            at += len(payloads)
        await reader.close()

    async def _follow(self) -> None:
        """Bookies may hide the LAC, but nobody can make one up or take it back."""
        ledger_id = await self._write_honestly(close=False)
        liars = self.random.randint(1, BOOKIES)
        async with self._cluster.client(self._network(liars), _SETTINGS) as client:
            reader = await client.open(ledger_id)
            bound = -1
            for _ in range(_ATTEMPTS):
                try:
                    await reader.wait_beyond(bound, timeout_s=0.1)
                except LedgerError:
                    pass
                if not bound <= reader.last_add_confirmed < len(self._payloads):
                    self._wrong(f"the LAC went from {bound} to {reader.last_add_confirmed}")
                bound = reader.last_add_confirmed
                if bound >= 0:
                    await self._read_all(reader.read, bound)
            if reader.metadata.state is not LedgerState.OPEN:
                self._wrong(f"the ledger is {reader.metadata.state}")
            await reader.close()


async def fuzz(seeds: range, directory: Path, findings: Findings) -> None:
    """Run the cases of these seeds, one after the other, on one cluster."""
    async with (
        cluster_of(BOOKIES, directory) as cluster,
        cluster.client(settings=_HONEST_SETTINGS) as honest,
    ):
        with findings.of_loop():
            for seed in seeds:
                await _Case(seed, cluster, honest, findings).run()
                findings.inputs += 1
