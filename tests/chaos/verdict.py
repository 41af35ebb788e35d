"""The judgement after the drill: what was promised, against what is there.

Nothing here took part in the play. It reads the journals of all processes, closes what is still
open, and compares: the ledgers as clients see them, each replica as its bookie has it, and what
writers, recoverers and readers wrote down.
"""

import asyncio
import random
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoNodeError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.under_replication import decode_item, item_path
from magnetar.ledger.wire import Status
from tests.bookie_parts import BookieClient
from tests.chaos.alone import add_frame
from tests.chaos.content import digest_of, payload_of
from tests.chaos.journals import (
    CLOSED,
    ENDED,
    FENCED,
    READ,
    RECOVERED,
    REFUSED,
    WRONG,
    Event,
    read_acknowledged,
    read_events,
)
from tests.chaos.player import RETRY_S, SETTINGS
from tests.chaos.replicas import Copies, read_copies

_CLOSE_TIMEOUT_S = 120.0
_LEDGERS_AT_ONCE = 4
_FAR = 1 << 40
"""An entry id that nobody wrote."""


@dataclass(slots=True)
class Verdict:
    """What was found. `problems` is empty when every promise was kept."""

    ledgers: int = 0
    acknowledged: int = 0
    kept_beyond: int = 0
    """Entries that were never acknowledged and are part of their ledger all the same."""
    fragments: int = 0
    closed_by: Counter[str] = field(default_factory=Counter)
    read_by_readers: int = 0
    short_of_copies: int = 0
    """Entries with fewer copies than their write quorum."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Adds that bookies refused to those who write to one bookie, by status."""
    fences: int = 0
    """Fences that one bookie had confirmed, and that were tried."""
    missing_unrecorded: int = 0
    """Copies that are missing although no work item names them."""
    problems: list[str] = field(default_factory=list)


async def judge(metadata_url: str, directory: Path, ports: dict[str, int]) -> Verdict:
    """`ports`: where each bookie listens, by id. All bookies run."""
    verdict = Verdict()
    store = await open_store(metadata_url)
    client = LedgerClient(
        store,
        network=SystemNetwork(),
        clock=SystemClock(),
        random=random.Random(0),
        settings=SETTINGS,
    )
    await client.start()
    try:
        bookies = {name: await BookieClient.connect(port) for name, port in ports.items()}
        await _Judge(client, store, directory, bookies, verdict).run()
        for bookie in bookies.values():
            bookie.close()
    finally:
        await client.close()
        await store.close()
    return verdict


class _Judge:
    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        directory: Path,
        bookies: dict[str, BookieClient],
        verdict: Verdict,
    ) -> None:
        self._client = client
        self._store = store
        self._bookies = bookies
        self._verdict = verdict
        self._acknowledged = read_acknowledged(directory)
        self._ends: dict[int, list[tuple[str, int, int]]] = {}
        """By ledger: who says that it ends, at which entry, with which length."""
        self._read_up_to: Counter[int] = Counter()
        self._fenced: list[int] = []
        """Ledgers of a single bookie, which has confirmed the fence."""
        self._well_ended: set[int] = set()
        """Ledgers of writers that closed them, and came to an orderly end themselves."""
        for _, events in read_events(directory):
            self._take_events(events)

    def _take_events(self, events: list[Event]) -> None:
        has_ended = any(event.word == ENDED for event in events)
        for event in events:
            if event.word == WRONG:
                self._problem(f"ledger {event.numbers}: {event.text}")
            elif event.word in (CLOSED, RECOVERED):
                ledger_id, last, length = event.numbers
                self._ends.setdefault(ledger_id, []).append((event.word, last, length))
                if event.word == CLOSED and has_ended:
                    self._well_ended.add(ledger_id)
            elif event.word == REFUSED:
                self._verdict.refusals[Status(event.numbers[1]).name] += 1
            elif event.word == FENCED:
                self._fenced.append(event.numbers[0])
            elif event.word == READ:
                ledger_id, last = event.numbers
                self._read_up_to[ledger_id] = max(self._read_up_to[ledger_id], last + 1)

    async def run(self) -> None:
        verdict = self._verdict
        ids = [each async for each in self._client.manager.ledger_ids()]
        verdict.ledgers = len(ids)
        for ledger_id in sorted(self._acknowledged.keys() - set(ids)):
            self._problem(f"ledger {ledger_id} has acknowledged entries and no metadata")
        await self._check_fences()
        limit = asyncio.Semaphore(_LEDGERS_AT_ONCE)
        await asyncio.gather(*(self._judge(ledger_id, limit) for ledger_id in ids))

    async def _check_fences(self) -> None:
        """C2: whose fence was confirmed takes no ordinary add, whatever happened to the bookie."""
        for ledger_id in self._fenced:
            metadata = (await self._client.manager.read(ledger_id)).metadata
            (bookie_id,) = metadata.last_fragment.bookies
            reply = await self._bookies[bookie_id].ask(
                lambda number, ledger_id=ledger_id: add_frame(number, ledger_id, _FAR, 1, 0)  # type: ignore[misc]  # bound now, not later
            )
            self._verdict.fences += 1
            if reply.status != Status.FENCED:
                self._problem(
                    f"ledger {ledger_id} was fenced at {bookie_id}, which answers an add with "
                    f"{Status(reply.status).name}"
                )

    async def _judge(self, ledger_id: int, limit: asyncio.Semaphore) -> None:
        async with limit:
            reader = await self._closed(ledger_id)
            if reader is None:
                return
            metadata = reader.metadata
            acknowledged = self._acknowledged.get(ledger_id, array("Q"))
            verdict = self._verdict
            verdict.acknowledged += len(acknowledged)
            verdict.read_by_readers += self._read_up_to[ledger_id]
            verdict.fragments += len(metadata.ensembles)
            self._check_end(metadata, len(acknowledged))
            await self._check_entries(reader, acknowledged)
            copies = await read_copies(metadata, self._bookies)
            self._check_copies(metadata, copies)
            if copies.missing:
                await self._check_recorded(ledger_id, copies)

    async def _closed(self, ledger_id: int) -> LedgerReader | None:
        """The ledger, recovered if nobody has closed it yet."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while True:
                    try:
                        return await self._client.open_and_recover(ledger_id)
                    except LedgerError as error:
                        reason = f"{type(error).__name__}: {error}"
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self._problem(f"ledger {ledger_id} cannot be closed with all bookies up: {reason}")
            return None

    def _check_end(self, metadata: LedgerMetadata, acknowledged: int) -> None:
        """I1, I3, I4, I5: everybody agrees on the end, and it is not before what was promised."""
        ledger_id, last = metadata.ledger_id, metadata.last_entry_id
        if last < acknowledged - 1:
            self._problem(
                f"ledger {ledger_id} ends at {last}, but {acknowledged - 1} was acknowledged"
            )
        self._verdict.kept_beyond += max(0, last + 1 - acknowledged)
        if last < self._read_up_to[ledger_id] - 1:
            self._problem(
                f"ledger {ledger_id} ends at {last}, but a reader has seen "
                f"{self._read_up_to[ledger_id] - 1}"
            )
        ends = self._ends.get(ledger_id, [])
        for who, said_last, said_length in ends:
            if (said_last, said_length) != (last, metadata.length):
                self._problem(
                    f"ledger {ledger_id} was {who} at {said_last}, {said_length} bytes; its "
                    f"metadata says {last}, {metadata.length} bytes"
                )
        self._verdict.closed_by[ends[0][0] if ends else "verdict"] += 1

    async def _check_entries(self, reader: LedgerReader, acknowledged: "array[int]") -> None:
        """I1, I7: what a client reads is what the writer made; the length is the sum of it."""
        ledger_id, last = reader.metadata.ledger_id, reader.metadata.last_entry_id
        at = length = 0
        while at <= last:
            try:
                payloads = await reader.read(at, last)
            except LedgerError as error:
                self._problem(f"ledger {ledger_id} entry {at} cannot be read: {error}")
                return
            for entry_id, payload in enumerate(payloads, start=at):
                length += len(payload)
                if payload != payload_of(ledger_id, entry_id) or (
                    entry_id < len(acknowledged) and digest_of(payload) != acknowledged[entry_id]
                ):
                    self._problem(f"ledger {ledger_id} entry {entry_id} is {payload[:40]!r}")
            at += len(payloads)
        if length != reader.metadata.length:
            self._problem(
                f"ledger {ledger_id}: its entries have {length} bytes, its metadata says "
                f"{reader.metadata.length}"
            )

    def _check_copies(self, metadata: LedgerMetadata, copies: Copies) -> None:
        """I10: at least Qa good copies of each entry, and no copy differs."""
        self._verdict.problems += copies.wrong
        for entry_id, count in enumerate(copies.counts):
            if count < metadata.write_quorum:
                self._verdict.short_of_copies += 1
            if count < metadata.ack_quorum:
                self._problem(
                    f"ledger {metadata.ledger_id} entry {entry_id} has {count} copies, "
                    f"Qa is {metadata.ack_quorum}"
                )

    async def _check_recorded(self, ledger_id: int, copies: Copies) -> None:
        """Rule 4.5: a copy that is missing is there for re-replication to find.

        A writer that was killed had no time to record it; those are counted, not judged.
        """
        path = item_path("/ledgers", ledger_id)
        try:
            recorded, _ = decode_item((await self._store.get(path)).value, path=path)
        except NoNodeError:
            recorded = {}
        for entry_id, bookie_id in copies.missing:
            ranges = recorded.get(bookie_id, [])
            if any(first <= entry_id <= last for first, last in ranges):
                continue
            self._verdict.missing_unrecorded += 1
            if ledger_id in self._well_ended:
                self._problem(
                    f"ledger {ledger_id} entry {entry_id} is missing on {bookie_id}, which its "
                    f"writer did not record: {ranges}"
                )

    def _problem(self, text: str) -> None:
        self._verdict.problems.append(text)
