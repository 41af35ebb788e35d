"""A key-value store that keeps nothing but a log, and recovers from its ledgers.

usage: python docs/examples/key_value_store.py METADATA_URL [--log PATH] [--quorum E,QW,QA]

Commands come from stdin, one a line, and each is answered by one line:
put KEY VALUE | delete KEY | get KEY | keys | compact

Every change is a message in the log before it is answered. The state is what the messages say, from
the first to the last; starting again reads them. `compact` writes the state anew, to a new ledger,
and removes the ledgers before that. Whoever starts a second store on the same log takes it over:
the first one can change nothing any more, and says so.
"""

import argparse
import asyncio
import random
import sys

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log_message import Message
from magnetar.ledger.message_log import MessageLog, MessageReader, StoredMessage
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock, SystemNetwork

DELETED = (("deleted", b""),)
COMPACTED_AT_ONCE = 1000
"""Keys in one entry of a compacted log."""


class KeyValueStore:
    """The state in memory, and the log that it comes from. Make one with `open`."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._state: dict[bytes, bytes] = {}

    @classmethod
    async def open(
        cls, client: LedgerClient, store: MetadataStore, path: str, config: LogConfig
    ) -> "KeyValueStore":
        """Take the log over, then read it. From then on nobody else adds to what was read."""
        clock = SystemClock()
        log = await MessageLog.open(
            client, store, path, config, clock=clock, random=random.Random(), must_exist=False
        )
        self = cls(log)
        reader = await MessageReader.open(client, store, path, clock=clock)
        while stored := await reader.read():
            self._replay(stored)
        await reader.close()
        return self

    def _replay(self, stored: list[StoredMessage]) -> None:
        for _, message in stored:
            assert message.key is not None
            if message.headers == DELETED:
                self._state.pop(message.key, None)
            else:
                self._state[message.key] = message.payload

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key)

    def keys(self) -> list[bytes]:
        return sorted(self._state)

    async def put(self, key: bytes, value: bytes) -> None:
        await self._log.append([Message(value, key=key)])
        self._state[key] = value  # only now: what was not logged is not there

    async def delete(self, key: bytes) -> None:
        await self._log.append([Message(b"", key=key, headers=DELETED)])
        self._state.pop(key, None)

    async def compact(self) -> int:
        """Shorten the log to the state; returns how many ledgers went.

        A crash at any point leaves a log that says the same: the ledgers before the state go only
        when all of it is durable.
        """
        if not self._state:
            return 0
        await self._log.rotate()
        items = [Message(value, key=key) for key, value in self._state.items()]
        first = None
        for at in range(0, len(items), COMPACTED_AT_ONCE):
            ids = await self._log.append(items[at : at + COMPACTED_AT_ONCE])
            first = first or ids[0]
        assert first is not None
        return await self._log.shrink(first)

    async def close(self) -> None:
        await self._log.close()


async def answer(store: KeyValueStore, line: str) -> str:
    """Carry out one command."""
    match line.split(maxsplit=2):
        case ["put", key, value]:
            await store.put(key.encode(), value.rstrip("\n").encode())
            return "ok"
        case ["delete", key]:
            await store.delete(key.encode())
            return "ok"
        case ["get", key]:
            found = store.get(key.encode())
            return "none" if found is None else f"value {found.decode()}"
        case ["keys"]:
            return " ".join(["keys", *map(bytes.decode, store.keys())])
        case ["compact"]:
            return f"removed {await store.compact()}"
    return "error: put KEY VALUE | delete KEY | get KEY | keys | compact"


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("metadata", help="such as embedded:data/metadata.db")
    parser.add_argument("--log", default="/examples/key-value-store", help="the log's node")
    parser.add_argument("--quorum", default="3,3,2", help="E,QW,QA")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ensemble, write_quorum, ack_quorum = map(int, arguments.quorum.split(","))
    config = LogConfig(ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
    metadata = await open_store(arguments.metadata)
    client = LedgerClient(
        metadata, network=SystemNetwork(), clock=SystemClock(), random=random.SystemRandom()
    )
    await client.start()
    try:
        store = await KeyValueStore.open(client, metadata, arguments.log, config)
        print(f"ready {len(store.keys())}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                print(await answer(store, line), flush=True)
            except LedgerError as error:
                print(f"error: {error}", flush=True)
        await store.close()
    finally:
        await client.close()
        await metadata.close()


if __name__ == "__main__":
    asyncio.run(main())
