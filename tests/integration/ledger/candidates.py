"""Candidates of an election, in this process and in others.

As a program, `python -m tests.integration.ledger.candidates URL PATH NAME`, it stands for election
and prints who leads after each change: `NAME leads`, `NAME follows OTHER` or `NAME knows nobody`.
"""

import asyncio
import random
import sys
from collections.abc import Callable

from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.metadata import (
    MetadataStore,
    SessionState,
    Versioned,
    Watch,
    open_store,
)
from magnetar.ledger.metadata.election import Election
from magnetar.ledger.metadata.store import SessionCallback, WatchCallback
from tests.integration.ledger.metadata_stores import SETTINGS, WAIT_S, OtherProcess


async def wait_until(election: Election, is_so: Callable[[], bool]) -> None:
    """Wait for a change of the election after which something holds."""
    changed = asyncio.Event()
    election.on_change(changed.set)
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            changed.clear()
            await changed.wait()


def candidate(store: MetadataStore, path: str, name: str) -> Election:
    return Election(store, path, name, random=random.SystemRandom())


class UnsureStore:
    """A handle whose writes are done, or not, without saying so while `lost` has something."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lost: list[bool] = []
        """One per create to come: whether it was done before its reply was lost."""

    @property
    def session_state(self) -> SessionState:
        return self._store.session_state

    @property
    def session_timeout_ms(self) -> int:
        return self._store.session_timeout_ms

    async def get(self, path: str) -> Versioned:
        return await self._store.get(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        is_lost = bool(self.lost)
        if is_lost and not self.lost.pop(0):
            raise UnknownOutcomeError("the request was lost")
        made = await self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)
        if is_lost:
            raise UnknownOutcomeError("the reply was lost")
        return made

    async def create_child(self, path: str, value: bytes = b"") -> str:
        return await self._store.create_child(path, value)

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        return await self._store.set(path, value, version=version)

    async def delete(self, path: str, *, version: int | None = None) -> None:
        await self._store.delete(path, version=version)

    async def exists(self, path: str) -> int | None:
        return await self._store.exists(path)

    async def children(self, path: str) -> list[str]:
        return await self._store.children(path)

    @property
    def records_deletions(self) -> bool:
        return self._store.records_deletions

    async def is_gone(self, path: str) -> bool:
        return await self._store.is_gone(path)

    async def deleted_ms(self, path: str) -> int | None:
        return await self._store.deleted_ms(path)

    async def catch_up(self) -> None:
        await self._store.catch_up()

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        return self._store.watch(path, callback)

    def on_session_change(self, callback: SessionCallback) -> Watch:
        return self._store.on_session_change(callback)

    async def close(self) -> None:
        await self._store.close()


class CandidateProcess(OtherProcess):
    """A candidate in a process of its own."""

    def __init__(self, url: str, path: str, name: str) -> None:
        super().__init__("tests.integration.ledger.candidates", url, path, name)

    def read_until(self, line: str) -> None:
        while (read := self.read_line()) != line:
            assert read, f"the candidate ended before it said {line!r}"


async def _stand(url: str, path: str, name: str) -> None:
    store = await open_store(url, settings=SETTINGS)
    election = candidate(store, path, name)
    changed = asyncio.Event()
    election.on_change(changed.set)
    await election.start()
    while True:
        leader = election.leader()
        if election.is_leader:
            _say(f"{name} leads")
        else:
            _say(f"{name} follows {leader}" if leader else f"{name} knows nobody")
        changed.clear()
        await changed.wait()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import structlog

    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    asyncio.run(_stand(sys.argv[1], sys.argv[2], sys.argv[3]))
