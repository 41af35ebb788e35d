"""A key-value store whose only storage is a log; it recovers by reading the log's ledgers.

usage: python docs/examples/key_value_store.py METADATA_URL [--log PATH] [--quorum E,QW,QA]

Commands come from stdin, one per line. The program answers each with one line:
put KEY VALUE | delete KEY | get KEY | keys | compact

The store appends every change to the log before it answers. A restart replays all messages, from
the first to the last, to restore the state. `compact` writes the whole state to a new ledger, and
deletes the earlier ledgers. A second store on the same log takes the log over: the first store can
change nothing any more, and answers with an error.
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
    """The state in memory, and the log that stores it. Create one with `open`."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._state: dict[bytes, bytes] = {}

    @classmethod
    async def open(
        cls, client: LedgerClient, store: MetadataStore, path: str, config: LogConfig
    ) -> "KeyValueStore":
        """Take the log over, then read it. From then on no other process can append to it."""
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
        self._state[key] = value  # only after the append: the state never has more than the log

    async def delete(self, key: bytes) -> None:
        await self._log.append([Message(b"", key=key, headers=DELETED)])
        self._state.pop(key, None)

    async def compact(self) -> int:
        """Shorten the log to the state; return the number of ledgers that were deleted.

        A crash at any point leaves a log with the same state: the earlier ledgers are deleted only
        after the whole state is durable.
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
    """Execute one command."""
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
