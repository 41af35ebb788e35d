"""A directory tree whose standby follows the edit log of its primary, as HDFS's name nodes do.

usage: python docs/examples/edit_log.py METADATA_URL [--standby] [--log PATH] [--quorum E,QW,QA]

Commands come from stdin, one per line. The program answers each with one line:
make PATH | remove PATH | list | edits | promote

The primary writes every edit to the log before it answers. The standby tails the log and keeps the
same tree, so it has little left to read when it is promoted. `promote` takes the log over, which
fences the primary: from then on the primary can log no edit, whether or not it is alive. Then the
standby reads the remaining edits and continues as the primary. No answered edit is missing. A
primary that cannot log an edit, because it was fenced or no bookie answers, becomes a standby.
"""

import argparse
import asyncio
import random
import sys

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log_message import Message, MessageId
from magnetar.ledger.message_log import MessageLog, MessageReader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.position import EARLIEST
from magnetar.ledger.settings import LedgerSettings, LogConfig
from magnetar.ledger.system import SystemClock, SystemNetwork

SEEN_AFTER_MS = 50
"""Time after which a standby sees the last edit of a burst even if no other edit follows."""
WAIT_S = 1.0


class DirectoryTree:
    """The state: a set of paths that only edits change."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.edits = 0

    def apply(self, edit: Message) -> None:
        """Apply an edit of the log."""
        path = edit.payload.decode()
        if edit.key == b"make":
            self.paths.add(path)
        else:
            self.paths.discard(path)
        self.edits += 1


class NameNode:
    """One process: a standby, until it is promoted."""

    def __init__(
        self, client: LedgerClient, store: MetadataStore, path: str, config: LogConfig
    ) -> None:
        self.tree = DirectoryTree()
        self._client = client
        self._store = store
        self._path = path
        self._config = config
        self._log: MessageLog | None = None
        self._last: MessageId | None = None
        """Id of the last edit that the tree has."""
        self._follower: asyncio.Task[None] | None = None

    async def create_log(self) -> None:
        """Create the log if it does not exist, so that a standby can follow it from the start."""
        await self._take_over()

    def follow(self) -> None:
        """Follow the primary's log in the background."""
        self._follower = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_log()
            except LedgerError as error:
                # There is no log yet, or no bookie answers: resume at the same position.
                print(f"the log cannot be read: {error}; trying again", file=sys.stderr)
                await asyncio.sleep(WAIT_S)

    async def _follow_log(self) -> None:
        reader = await self._open_reader()
        try:
            while True:
                await self._take_edits(reader, wait_s=WAIT_S)
        finally:
            await reader.close()

    async def promote(self) -> None:
        """Become the primary: fence the former one, read the remaining edits, then accept edits."""
        if self._log is not None:
            return
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        await self._take_over()

    async def _take_over(self) -> None:
        log = await MessageLog.open(
            self._client,
            self._store,
            self._path,
            self._config,
            clock=SystemClock(),
            random=random.Random(),
            must_exist=False,
        )
        # No other process can append now: this reads the last edits of all former primaries.
        reader = await self._open_reader()
        while await self._take_edits(reader, wait_s=0):
            pass
        await reader.close()
        self._log = log

    async def _open_reader(self) -> MessageReader:
        start = EARLIEST if self._last is None else self._last
        return await MessageReader.open(
            self._client, self._store, self._path, clock=SystemClock(), start=start
        )

    async def _take_edits(self, reader: MessageReader, *, wait_s: float) -> bool:
        """Apply the next edits, if there are any; skip edits that the tree already has."""
        stored = await reader.read(wait_s=wait_s)
        for at, edit in stored:
            if self._last is None or at > self._last:
                self.tree.apply(edit)
                self._last = at
        return bool(stored)

    async def log_edit(self, kind: str, path: str) -> str:
        """Log an edit, then apply it. A standby refuses."""
        if self._log is None:
            return "error: this is the standby; promote it first"
        edit = Message(path.encode(), key=kind.encode())
        try:
            (self._last,) = await self._log.append([edit])
        except LedgerError:
            # The edit may or may not be in the log, which another process may own: read the log.
            log, self._log = self._log, None
            await log.close()
            self.follow()
            raise
        self.tree.apply(edit)
        return "ok"

    async def close(self) -> None:
        """Close the log, so that the next primary has nothing to recover."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        if self._log is not None:
            await self._log.close()


async def answer(node: NameNode, line: str) -> str:
    """Execute one command."""
    match line.split():
        case ["make" | "remove" as kind, path]:
            return await node.log_edit(kind, path)
        case ["list"]:
            return " ".join(["paths", *sorted(node.tree.paths)])
        case ["edits"]:
            return f"edits {node.tree.edits}"
        case ["promote"]:
            await node.promote()
            return f"primary {node.tree.edits}"
    return "error: make PATH | remove PATH | list | edits | promote"


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("metadata", help="such as embedded:data/metadata.db")
    parser.add_argument("--standby", action="store_true", help="follow the log; do not own it")
    parser.add_argument("--log", default="/examples/edit-log", help="the log's node")
    parser.add_argument("--quorum", default="3,3,2", help="E,QW,QA")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ensemble, write_quorum, ack_quorum = map(int, arguments.quorum.split(","))
    config = LogConfig(ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
    metadata = await open_store(arguments.metadata)
    client = LedgerClient(
        metadata,
        network=SystemNetwork(),
        clock=SystemClock(),
        random=random.SystemRandom(),
        settings=LedgerSettings(explicit_lac_interval_ms=SEEN_AFTER_MS),
    )
    await client.start()
    try:
        node = NameNode(client, metadata, arguments.log, config)
        if arguments.standby:
            node.follow()
        else:
            await node.create_log()
        print("standby" if arguments.standby else f"primary {node.tree.edits}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                print(await answer(node, line), flush=True)
            except LedgerError as error:
                print(f"error: {error}", flush=True)
        await node.close()
    finally:
        await client.close()
        await metadata.close()


if __name__ == "__main__":
    asyncio.run(main())
