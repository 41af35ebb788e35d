"""Copies closed ledgers of a log to an object store, so that the bookies can delete them.

A crash may follow each of these steps:

1. The log's node names the attempt, and with it the key: the name first, the bytes second.
2. The object is written from packets whose digests were checked.
3. Its end is read back and compared with the ledger, and with what was written.
4. The node records the ledger as copied. Until now only this attempt used the object.
5. Time passes while both copies exist.
6. The object is read back in full: every run, every packet.
7. The node records that the ledger lies in the object only.
8. The ledger is deleted (`log_offload.py`).

A step that fails deletes nothing (rule 16.2), and the next call continues from the state in the
node. An unfinished copy of an earlier owner is adopted if its object is whole, and replaced by a
new attempt if not. An object that turns out to be damaged while the bookies have the ledger is
replaced by another one.

Reads from bookies are bounded: by the number of concurrent copies, by bytes per second, and by the
rate at which the store takes pieces, since pieces are made on demand.

Source: tiered storage, sections 15, 16 and 18.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    LedgerError,
    ObjectDamagedError,
    ObjectIncompleteError,
    ObjectMissingError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_object_changes import LogObjectChanges
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_encryption import NO_KEYS, ObjectKeyRing
from magnetar.ledger.offloading.object_format import (
    ATTEMPT_BYTES,
    TAIL_BYTES,
    MoreOfTail,
    ObjectFooter,
    ObjectName,
    ObjectVerifier,
    check_footer,
    decode_footer,
    ranges_of,
)
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectStores
from magnetar.ledger.offloading.reads_ahead import packets_ahead
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.reading.entry_fetcher import Packets

log = structlog.get_logger()


COPY_READ_BYTES = 1 << 20
"""Bytes of one request to a bookie for a copy."""
_READS_AT_ONCE = 4
"""Concurrent requests to bookies for one copy: each is delayed by an interval of the loop, here and
at the bookie."""
READ_BACK_BYTES = 8 << 20
"""Bytes of one request to an object store when an object is read back."""


class BlockFacts(NamedTuple):
    """Facts about the messages in some entries."""

    publish_ms: Sequence[int] = ()
    """Publish time of each entry, ms since 1970; empty if one of them is unknown."""
    schema_versions: Sequence[int] = ()
    """Versions of schemas that the messages name."""


Describe = Callable[[Sequence[bytes]], BlockFacts]
"""Function that extracts facts about messages from the payloads of entries."""


def no_facts(_: Sequence[bytes]) -> BlockFacts:
    """Return no facts, for entries whose messages are not examined."""
    return BlockFacts()


class OffloadedLog(Protocol):
    """The owner's handle of the log whose ledgers are copied."""

    path: str
    objects: LogObjectChanges


@dataclass(slots=True)
class OffloadCounts:
    """Counters of an offloader. They only grow."""

    ledgers_copied: int = 0
    bytes_copied: int = 0
    ledgers_forgotten: int = 0
    objects_adopted: int = 0
    objects_replaced: int = 0
    """Damaged objects that were replaced while the bookies had the ledgers."""
    failures: int = 0
    """Passes over a log that ended with an error; the caller that schedules retries counts them."""


class Offloader:
    """Copies ledgers for all logs of one process."""

    def __init__(
        self,
        client: LedgerClient,
        stores: ObjectStores,
        *,
        copies_at_once: int = 2,
        copy_bytes_per_s_max: int = 200 << 20,
        copy_read_bytes: int = COPY_READ_BYTES,
        find_instance_id: Callable[[], Awaitable[str]],
        made_by: str,
        clock: Clock,
        random: random.Random,
        password: bytes | None = None,
        describe: Describe = no_facts,
        keys: ObjectKeyRing = NO_KEYS,
    ) -> None:
        """Make the offloader of a process; reads nothing.

        Args:
            copies_at_once: ledgers copied, or read back, at the same time.
            copy_bytes_per_s_max: bytes per second read from bookies for copies; 0: no bound.
            copy_read_bytes: bytes of one request to a bookie for a copy.
            find_instance_id: finds that of the cluster, which is in each object and its key.
            made_by: release and host, which are in each object.
            password: of the logs' ledgers; None uses the one from their metadata.
            keys: if it has a key for new objects, these are encrypted.
        """
        self._client = client
        self._stores = stores
        self._copy_read_bytes = copy_read_bytes
        self._find_instance_id = find_instance_id
        self._instance_id = ""
        self._made_by = made_by
        self._clock = clock
        self._random = random
        self._password = password
        self._describe = describe
        self._keys = keys
        self.copies_at_once = copies_at_once
        self._at_once = asyncio.Semaphore(copies_at_once)
        self._pace = Pace(copy_bytes_per_s_max)
        self.counts = OffloadCounts()

    async def instance_id(self) -> str:
        """Return the instance id of the cluster.

        Raises:
            MetadataError
        """
        if not self._instance_id:
            self._instance_id = await self._find_instance_id()
        return self._instance_id

    async def copy(self, owned: OffloadedLog, ledger_id: int, base: ObjectBase) -> None:
        """Perform steps 1 to 4 for one closed ledger of a log. On return the copy is made or no
        longer wanted: the ledger may have left the log meanwhile.

        Raises:
            LogFencedError: another owner has the log.
            ObjectError: the store failed; `retryable` says whether a retry helps.
            LedgerError: the ledger, or the metadata, cannot be read at present; call again.
        """
        async with self._at_once:
            ledger = _find(owned, ledger_id)
            if ledger is None or ledger.is_in_object:
                return
            try:
                reader = await self._client.open(ledger_id, password=self._password)
                if ledger.object is None or not await self._adopt(owned, ledger, reader):
                    await self._copy(owned, ledger_id, base, reader)
            except LedgerError:
                if _find(owned, ledger_id) is not None:
                    raise

    async def forget(self, owned: OffloadedLog, ledger_id: int) -> None:
        """Perform steps 6 and 7 for a copied ledger. A damaged object is replaced, and the time in
        which both copies exist begins anew.

        Raises:
            Every error of `copy`.
        """
        async with self._at_once:
            ledger = _find(owned, ledger_id)
            if ledger is None or ledger.object is None:
                return
            found = ledger.object
            if found.state is not ObjectState.COPIED:
                return
            try:
                reader = await self._client.open(ledger_id, password=self._password)
                try:
                    await self._read_back(owned, reader.metadata, found, found.attempt)
                except (ObjectDamagedError, ObjectMissingError) as error:
                    log.warning("object_damaged", path=owned.path, error=str(error))
                    await self._replace(owned, reader, found)
                    return
            except LedgerError:
                if _find(owned, ledger_id) is not None:
                    raise
                return
            after = await owned.objects.only(ledger_id, found.attempt)
            if after is None or (after.state, after.attempt) != (ObjectState.ONLY, found.attempt):
                return
            self.counts.ledgers_forgotten += 1
            log.info("ledger_in_object_only", path=owned.path, ledger_id=ledger_id)

    async def heal(self, owned: OffloadedLog, ledger_id: int, attempt: str) -> bool:
        """Replace the damaged or missing object of an attempt by a new one, made from the ledger;
        return whether that was done. False: the bookies may have deleted the ledger, or it has
        another object by now.

        Raises:
            Every error of `copy`.
        """
        async with self._at_once:
            ledger = _find(owned, ledger_id)
            found = ledger.object if ledger is not None else None
            if found is None or (found.state, found.attempt) != (ObjectState.COPIED, attempt):
                return False
            try:
                reader = await self._client.open(ledger_id, password=self._password)
                await self._replace(owned, reader, found)
            except LedgerError:
                if _find(owned, ledger_id) is not None:
                    raise
            ledger = _find(owned, ledger_id)
            return ledger is None or ledger.object is None or ledger.object.attempt != attempt

    # Steps 1 to 4

    async def _copy(
        self, owned: OffloadedLog, ledger_id: int, base: ObjectBase, reader: LedgerReader
    ) -> None:
        attempt = self._new_attempt()
        begun = await owned.objects.begin(ledger_id, attempt, base)
        if begun is None or begun.attempt != attempt:
            return
        footer = await self._write(owned, reader, begun, attempt)
        await self._note_copied(owned, footer)

    async def _adopt(self, owned: OffloadedLog, ledger: LogLedger, reader: LedgerReader) -> bool:
        """Adopt the object that an earlier attempt began, if it exists and has all entries. The
        content is compared before the bookies delete the ledger."""
        found = ledger.object
        assert found is not None
        store = self._stores.store(owned.objects.base(found).store)
        key = owned.objects.key(ledger.ledger_id, found, found.attempt)
        name = ObjectName(ledger.ledger_id, bytes.fromhex(found.attempt))
        try:
            footer = await read_footer(store, key, name)
            check_footer(footer, reader.metadata, footer.check)
        except (ObjectMissingError, ObjectDamagedError):
            return False
        self.counts.objects_adopted += 1
        await self._note_copied(owned, footer)
        return True

    async def _replace(
        self, owned: OffloadedLog, reader: LedgerReader, damaged: LedgerObject
    ) -> None:
        attempt = self._new_attempt()
        begun = await owned.objects.replace(reader.ledger_id, damaged.attempt, by=attempt)
        if begun is None or begun.next != attempt:
            return
        footer = await self._write(owned, reader, begun, attempt)
        await self._read_back(owned, reader.metadata, begun, attempt, check=footer.check)
        await self._note_copied(owned, footer)
        self.counts.objects_replaced += 1

    def _new_attempt(self) -> str:
        return self._random.randbytes(ATTEMPT_BYTES).hex()

    async def _write(
        self, owned: OffloadedLog, reader: LedgerReader, found: LedgerObject, attempt: str
    ) -> ObjectFooter:
        """Perform steps 2 and 3: write the object, and check by its end that it is complete."""
        metadata = reader.metadata
        builder = ObjectBuilder(
            metadata,
            codec_for(metadata),
            bytes.fromhex(attempt),
            instance_id=await self.instance_id(),
            log=owned.path,
            made_by=self._made_by,
            keys=self._keys,
        )
        store = self._stores.store(owned.objects.base(found).store)
        key = owned.objects.key(metadata.ledger_id, found, attempt)
        # Closed here: a store that fails leaves pieces unread, and a read from bookies under way.
        async with aclosing(self._pieces(reader, builder)) as pieces:
            await store.put(key, pieces, expected_bytes=metadata.length)
        footer = await read_footer(store, key, builder.name)
        if footer.size_bytes != builder.size_bytes:
            raise ObjectIncompleteError(
                f"{builder.name}: {builder.size_bytes} bytes were written, the store has "
                f"{footer.size_bytes}"
            )
        check_footer(footer, metadata, builder.check)
        self.counts.bytes_copied += footer.size_bytes
        return footer

    async def _note_copied(self, owned: OffloadedLog, footer: ObjectFooter) -> None:
        ledger_id, attempt = footer.name.ledger_id, footer.name.attempt.hex()
        after = await owned.objects.copied(
            ledger_id,
            attempt,
            size_bytes=footer.size_bytes,
            check=footer.check,
            at_ms=self._clock.wall_ms(),
        )
        if after is None or after.attempt != attempt:
            return  # it left the log meanwhile, and no log uses its object
        self.counts.ledgers_copied += 1
        log.info(
            "ledger_copied_to_object",
            path=owned.path,
            ledger_id=ledger_id,
            attempt=attempt,
            bytes=footer.size_bytes,
        )

    async def _pieces(
        self, reader: LedgerReader, builder: ObjectBuilder
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the object. Further requests to the bookies are under way while the
        store takes earlier pieces."""
        packets_of_ledger = packets_ahead(
            partial(self._read, reader),
            reader.metadata,
            read_bytes=self._copy_read_bytes,
            reads_at_once=_READS_AT_ONCE,
        )
        async with aclosing(packets_of_ledger):
            async for packets in packets_of_ledger:
                facts = self._describe(packets.payloads)
                for piece in builder.add(packets.block, **facts._asdict()):
                    yield piece
        for piece in builder.finish():
            yield piece

    async def _read(self, reader: LedgerReader, first: int, last: int) -> Packets:
        packets = await reader.read_packets(first, last, bytes_max=self._copy_read_bytes)
        wait_s = self._pace.take(len(packets.block.data), self._clock.monotonic_s())
        if wait_s:
            await asyncio.sleep(wait_s)
        return packets

    # Step 6

    async def _read_back(
        self,
        owned: OffloadedLog,
        metadata: LedgerMetadata,
        found: LedgerObject,
        attempt: str,
        *,
        check: int | None = None,
    ) -> ObjectFooter:
        """Read back every run and packet of an attempt's object, and compare them with the ledger.

        Raises:
            ObjectDamagedError, ObjectMissingError: certain, since the store was asked twice.
            ObjectStoreUnavailableError, ObjectStoreRefusedError
        """
        store = self._stores.store(owned.objects.base(found).store)
        key = owned.objects.key(metadata.ledger_id, found, attempt)
        name = ObjectName(metadata.ledger_id, bytes.fromhex(attempt))
        check = found.check if check is None else check
        try:
            return await self._read_back_once(store, key, name, metadata, check)
        except (ObjectDamagedError, ObjectMissingError):
            return await self._read_back_once(store, key, name, metadata, check)

    async def _read_back_once(
        self,
        store: ObjectStore,
        key: str,
        name: ObjectName,
        metadata: LedgerMetadata,
        check: int,
    ) -> ObjectFooter:
        footer = await read_footer(store, key, name)
        cipher = footer.cipher(self._keys)
        verifier = ObjectVerifier(footer, metadata, codec_for(metadata), check, cipher)
        for start, end in ranges_of(footer.runs, READ_BACK_BYTES):
            data = await store.get(key, start, end)
            while (run := verifier.next_run) is not None and run.offset < end:
                verifier.add(data[run.offset - start : run.offset - start + run.size_bytes])
                await asyncio.sleep(0)  # the loop runs other tasks between two runs
        verifier.finish()
        return footer


async def read_footer(store: ObjectStore, key: str, name: ObjectName) -> ObjectFooter:
    """Read the footer of an object.

    Raises:
        ObjectMissingError, ObjectDamagedError, FutureObjectVersionError
        ObjectStoreUnavailableError, ObjectStoreRefusedError
    """
    wanted = TAIL_BYTES
    while True:
        tail = await store.tail(key, wanted)
        footer = decode_footer(tail.data, name, tail.size_bytes)
        if isinstance(footer, ObjectFooter):
            return footer
        assert isinstance(footer, MoreOfTail)
        if footer.size_bytes <= wanted:
            raise ObjectDamagedError(f"{name}: the store gives {len(tail.data)} bytes of its end")
        wanted = footer.size_bytes


def _find(owned: OffloadedLog, ledger_id: int) -> LogLedger | None:
    for ledger in owned.objects.ledgers:
        if ledger.ledger_id == ledger_id:
            return ledger
    return None
