"""The lock on a ledger's replicas: one holder at a time copies them, or drops one.

A worker that re-replicates holds it from the first copy to the metadata write. A bookie that drops
entries that it need not hold takes the lock while it reads the metadata and deletes. Otherwise it
could drop the copy that the worker is about to name (auto-recovery, section 2; defect B12).

The lock is the ephemeral node `{root}/underreplication/locks/urL{ledger id}`. Its value names the
holder, with a token: after a lost reply to a create, the token tells the own lock from another's.
Layout: docs/formats/under-replication.md.
"""

import asyncio
import random

import structlog

from magnetar.ledger.errors import (
    LedgerError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore

_log = structlog.get_logger(__name__)

_TOKEN_BITS = 64


def lock_path(root: str, ledger_id: int) -> str:
    """Return the path of a ledger's lock."""
    return f"{root}/underreplication/locks/urL{ledger_id}"


class ReplicationLock:
    """A held lock of one ledger. It ends with `release`, or with the session."""

    def __init__(self, store: MetadataStore, path: str, value: bytes) -> None:
        """Internal; call `try_take`."""
        self._store = store
        self._path = path
        self._value = value

    @classmethod
    async def try_take(
        cls,
        store: MetadataStore,
        ledger_id: int,
        *,
        holder: str,
        random: random.Random,
        unclear: "UnreleasedLocks",
        root: str = "/ledgers",
    ) -> "ReplicationLock | None":
        """Take the lock; None if another process holds it.

        Args:
            unclear: gets a lock that may have been taken although this call does not report it. It
                must be released later; until then, no other process can take it while this session
                lives.

        Raises:
            MetadataUnavailableError: not taken, as far as is known.
        """
        path = lock_path(root, ledger_id)
        value = f"{holder} {random.getrandbits(_TOKEN_BITS):016x}".encode()
        lock = cls(store, path, value)
        try:
            await store.create(path, value, ephemeral=True)
        except NodeExistsError:
            return None
        except UnknownOutcomeError as error:
            _log.warning("replication_lock_unclear", ledger_id=ledger_id, error=str(error))
            is_held = False
            try:
                is_held = await lock.is_held()
            finally:
                if not is_held:
                    unclear.add(lock)
            return lock if is_held else None
        except asyncio.CancelledError:
            unclear.add(lock)  # the store may take it all the same
            raise
        return lock

    async def is_held(self) -> bool:
        """Return whether this session still holds the lock: it is lost with the session.

        Raises:
            MetadataUnavailableError: unknown.
        """
        try:
            return (await self._store.get(self._path)).value == self._value
        except NoNodeError:
            return False

    async def release(self) -> None:
        """Release the lock, if this session still holds it.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError: call again; until then, no other process
                can take it while this session lives.
        """
        if not await self.is_held():
            return
        try:
            await self._store.delete(self._path)
        except NoNodeError:
            pass  # the session ended just now


class UnreleasedLocks:
    """Locks of one holder that could not be released, or that may or may not have been taken. Until
    they are released, no other process can work on their ledgers while this session lives."""

    def __init__(self) -> None:
        self._locks: list[ReplicationLock] = []

    def __len__(self) -> int:
        return len(self._locks)

    def add(self, lock: ReplicationLock) -> None:
        self._locks.append(lock)

    async def release(self, lock: ReplicationLock) -> None:
        """Release a lock; after a failure, or if cancelled, `release_all` tries again."""
        try:
            await lock.release()
        except LedgerError as error:
            self._locks.append(lock)
            _log.warning("replication_lock_not_released", error=str(error))
        except BaseException:
            self._locks.append(lock)
            raise

    async def release_all(self) -> None:
        """Try to release all locks that are left."""
        for _ in range(len(self._locks)):
            if self._locks:  # Another call may have taken the rest.
                await self.release(self._locks.pop(0))
