"""Ledger locations for the driver: ensembles from the metadata store, and addresses of bookies.

The client of the metadata store uses asyncio. It runs in a thread of its own, so that the driver,
which Spark calls from synchronous code, can use it. Metadata of closed ledgers is cached for a
while: only re-replication changes it.
"""

import asyncio
import logging
import random
import threading
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import TypeVar

from magnetar.arrow.stored.errors import OptionError, UnreachableError
from magnetar.arrow.stored.slices import Address, Ensemble, LedgerPart
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import InvalidPathError, LedgerError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemNetwork

T = TypeVar("T")

_ROOT = "/ledgers"

_KEPT_S = 60.0
"""How long the location of a closed ledger is cached, in seconds."""

_READS_AT_ONCE = 64
_TIMEOUT_S = 60.0
_CANCEL_S = 5.0
"""How long cancelled work may take to end, in seconds."""

_log = logging.getLogger(__name__)


class LedgerDirectory:
    """Looks up ledgers and bookies. For one thread."""

    def __init__(self, metadata_url: str) -> None:
        """Connect to the metadata store.

        Raises:
            OptionError: there is no metadata store at this URL, or it holds no cluster.
        """
        file = metadata_url.removeprefix("embedded:")
        if file != metadata_url and not Path(file).exists():
            raise OptionError(
                "metadata.url",
                f"{metadata_url}: no such file; where it is on another machine, leave the option "
                f"out and read through brokers",
            )
        self._url = metadata_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ledger-directory", daemon=True
        )
        self._thread.start()
        self._store: MetadataStore | None = None
        self._known: dict[int, tuple[float, LedgerMetadata]] = {}
        try:
            self._client = self._run(self._open())
        except (LedgerError, OSError, ValueError) as error:
            self._end()
            raise OptionError("metadata.url", f"{metadata_url}: {_reason(error)}") from None
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the connection to the metadata store, and end the thread.

        What was read stays valid if the store does not answer: its session expires by itself.
        """
        try:
            self._run(self._close())
        except TimeoutError:
            _log.warning("%s: the metadata store was not closed within %s s", self._url, _TIMEOUT_S)
        finally:
            self._end()

    def read(self, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata]:
        """Return the metadata of these ledgers, without those that are deleted.

        Raises:
            UnreachableError: the metadata store does not answer.
        """
        wanted = set(ledger_ids)
        try:
            return self._run(self._read(wanted))
        except (LedgerError, TimeoutError) as error:
            raise UnreachableError(f"metadata.url: {self._url}: {_reason(error)}") from error

    def addresses(self, bookies: Iterable[str]) -> dict[str, Address]:
        """Return the addresses of these bookies, without those that are not registered now."""
        found = {}
        for bookie_id in bookies:
            info = self._client.registry.resolve(bookie_id)
            if info is not None:
                found[bookie_id] = Address(info.host, info.port, info.instance_id)
        return found

    def _end(self) -> None:
        """Cancel what is left of the work, and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> LedgerClient:
        store = await open_store(self._url)
        try:
            client = LedgerClient(
                store,
                network=SystemNetwork(),
                clock=SystemClock(),
                random=random.Random(),
                root=_ROOT,
                follows_root=True,
            )
            if await client.registry.find_instance_id() is None:
                raise InvalidPathError(
                    "it holds no cluster: is its path the one that the brokers use?"
                )
            await client.start()
        except BaseException:
            await store.close()
            raise
        self._store = store
        return client

    async def _close(self) -> None:
        try:
            await self._client.close()
        finally:
            if self._store is not None:
                await self._store.close()

    async def _read(self, wanted: set[int]) -> dict[int, LedgerMetadata]:
        now_s = self._loop.time()
        found = {
            ledger_id: metadata
            for ledger_id in wanted
            if ledger_id in self._known
            for read_s, metadata in (self._known[ledger_id],)
            if now_s - read_s < _KEPT_S
        }
        missing = sorted(wanted - found.keys())
        for start in range(0, len(missing), _READS_AT_ONCE):
            some = missing[start : start + _READS_AT_ONCE]
            for metadata in await asyncio.gather(*map(self._read_one, some)):
                if metadata is not None:
                    found[metadata.ledger_id] = metadata
                    if metadata.state is LedgerState.CLOSED:
                        self._known[metadata.ledger_id] = (now_s, metadata)
        if len(self._known) > 100_000:
            self._known.clear()
        return found

    async def _read_one(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._client.manager.read(ledger_id)).metadata
        except NoSuchLedgerError:
            return None

    def _run(self, work: Coroutine[object, object, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout=_TIMEOUT_S)


def _reason(error: Exception) -> str:
    return str(error) or f"no answer within {_TIMEOUT_S} s"


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, and wait until they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    if others:
        await asyncio.wait(others, timeout=_CANCEL_S)


def ledger_part(
    metadata: LedgerMetadata, first: int, last: int, aborted: bytes = b""
) -> LedgerPart:
    """Return a range of a ledger's entries, with all that a reader of bookies needs."""
    is_end = metadata.state is LedgerState.CLOSED and last == metadata.last_entry_id
    return LedgerPart(
        metadata.ledger_id,
        first,
        last,
        tuple(Ensemble(each.first_entry_id, each.bookies) for each in metadata.ensembles),
        metadata.write_quorum,
        metadata.digest_type.value,
        metadata.password,
        aborted,
        metadata.length if is_end else -1,
    )
