"""A directory of named logs: create, list, append, read and delete them, from any process.

usage: python docs/examples/named_logs.py METADATA_URL [--quorum E,QW,QA] COMMAND …

create NAME | list | append NAME TEXT | read NAME | delete NAME

The directory is a node of the metadata store, and each log is a node below it: there is no index
that could disagree with the logs. Any number of processes can read a log; one process at a time
appends to it. The last process that opened a log for appending owns it; appends of a former owner
are refused.
"""

import argparse
import asyncio
import random
import sys

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoNodeError
from magnetar.ledger.log_message import Message, MessageId
from magnetar.ledger.message_log import MessageLog, MessageReader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock, SystemNetwork

ROOT = "/examples/logs"


class LogDirectory:
    """Logs by name, below one node of the metadata store."""

    def __init__(self, client: LedgerClient, store: MetadataStore, config: LogConfig) -> None:
        self._client = client
        self._store = store
        self._config = config

    async def create(self, name: str) -> None:
        """Create an empty log.

        Raises:
            LogExistsError: the name is taken.
        """
        log = await MessageLog.create(
            self._client,
            self._store,
            f"{ROOT}/{name}",
            self._config,
            clock=SystemClock(),
            random=random.Random(),
        )
        await log.close()

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        try:
            return await self._store.children(ROOT)
        except NoNodeError:
            return []

    async def open(self, name: str) -> MessageLog:
        """Take ownership of a log for appending. The caller closes it.

        Raises:
            NoSuchLogError
        """
        return await MessageLog.open(
            self._client,
            self._store,
            f"{ROOT}/{name}",
            self._config,
            clock=SystemClock(),
            random=random.Random(),
        )

    async def append(self, name: str, text: str) -> MessageId:
        """Append one message; return its id when the message is durable.

        Raises:
            NoSuchLogError
        """
        log = await self.open(name)
        try:
            (message_id,) = await log.append([Message(text.encode())])
        finally:
            await log.close()
        return message_id

    async def read(self, name: str) -> list[str]:
        """Return the text of all messages of a log.

        Raises:
            NoSuchLogError
        """
        reader = await MessageReader.open(
            self._client, self._store, f"{ROOT}/{name}", clock=SystemClock()
        )
        found: list[str] = []
        try:
            while stored := await reader.read():
                found += [message.payload.decode() for _, message in stored]
        finally:
            await reader.close()
        return found

    async def delete(self, name: str) -> None:
        """Delete a log with all of its ledgers.

        Raises:
            NoSuchLogError
        """
        log = await self.open(name)  # from here on no other process can append
        await log.managed_log.delete()


async def run(logs: LogDirectory, words: list[str]) -> str:
    """Execute one command."""
    match words:
        case ["create", name]:
            await logs.create(name)
            return f"created {name}"
        case ["list"]:
            return " ".join(["logs", *await logs.names()])
        case ["append", name, text]:
            return f"appended {await logs.append(name, text)}"
        case ["read", name]:
            return "\n".join([f"log {name}", *await logs.read(name)])
        case ["delete", name]:
            await logs.delete(name)
            return f"deleted {name}"
    raise SystemExit("create NAME | list | append NAME TEXT | read NAME | delete NAME")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("metadata", help="such as embedded:data/metadata.db")
    parser.add_argument("--quorum", default="3,3,2", help="E,QW,QA")
    parser.add_argument("command", nargs="+", help="create, list, append, read or delete")
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
        print(await run(LogDirectory(client, metadata, config), arguments.command))
    except LedgerError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    finally:
        await client.close()
        await metadata.close()


if __name__ == "__main__":
    asyncio.run(main())
