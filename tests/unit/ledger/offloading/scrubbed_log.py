"""A log of copied ledgers whose objects lie in a directory, as its owner sees it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_object_changes import LogObjectChanges
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectTail
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import encode_block
from tests.ledger_objects import closed_ledger

BASE = ObjectBase("main", "logs/")
VALUES = [bytes([number]) * 1_000 for number in range(3)]
COPIED_MS = 1_000


class HandClock(SystemClock):
    """Time moves only as a test says."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.step_s = 0.0
        """What each look at the clock takes."""

    def monotonic_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def wall_ms(self) -> int:
        return round(self.now_s * 1_000)


class FaultyStore(DirectoryStore):
    """A directory whose requests fail as a test wants."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failing: dict[str, list[Exception]] = {}
        """By key: what the next looks at the end of the object raise."""

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        if errors := self.failing.get(key):
            raise errors.pop(0)
        return await super().tail(key, size_bytes)


class ScrubbedLog:
    """A log that is its own `LogObjectChanges`, and the only store that it knows."""

    path = "/log"

    def __init__(self, root: Path) -> None:
        self.files = FaultyStore(root)
        self.root = root
        self.ledgers: tuple[LogLedger, ...] = ()
        self.objects = cast(LogObjectChanges, self)
        self.properties: dict[str, str] = {}
        self.rereads = 0
        self.reread_error: LedgerError | None = None
        self.updates = 0

    # What a scrub needs of it

    def store(self, _name: str) -> ObjectStore:
        return self.files

    def base(self, _found: LedgerObject) -> ObjectBase:
        return BASE

    def key(self, ledger_id: int, _found: LedgerObject, attempt: str) -> str:
        return BASE.key(ledger_id, attempt)

    async def reread(self, ledger_id: int) -> LedgerObject | None:
        self.rereads += 1
        if self.reread_error is not None:
            raise self.reread_error
        return next((each.object for each in self.ledgers if each.ledger_id == ledger_id), None)

    async def update_properties(self, changes: Mapping[str, str | None]) -> None:
        self.updates += 1
        self.properties |= {name: value for name, value in changes.items() if value is not None}

    # What a test needs

    async def add(
        self, ledger_id: int, state: ObjectState = ObjectState.ONLY, *, attempt: str = "ab" * 16
    ) -> LogLedger:
        """Have another ledger with an object in the store; a known one gets another object."""
        metadata = replace(closed_ledger(VALUES), ledger_id=ledger_id)
        codec = codec_for(metadata)
        builder = ObjectBuilder(
            metadata, codec, bytes.fromhex(attempt), instance_id="", log=self.path, made_by=""
        )
        block = encode_block(codec.seal(0, -1, 0, VALUES))
        data = b"".join([*builder.add(block), *builder.finish()])
        key = BASE.key(ledger_id, attempt)
        await self.files.put(key, _pieces(data))
        found = LedgerObject(state, attempt, 0, len(data), builder.check, COPIED_MS)
        ledger = LogLedger(ledger_id, len(VALUES), metadata.length, 1, found)
        others = [each for each in self.ledgers if each.ledger_id != ledger_id]
        self.ledgers = tuple(sorted([*others, ledger], key=lambda each: each.ledger_id))
        return ledger

    def file(self, ledger: LogLedger) -> Path:
        """The file of a ledger's object."""
        assert ledger.object is not None
        return self.root / BASE.key(ledger.ledger_id, ledger.object.attempt)

    def rot(self, ledger: LogLedger, at: int) -> None:
        """Change a bit of an object."""
        data = bytearray(self.file(ledger).read_bytes())
        data[at] ^= 1
        self.file(ledger).write_bytes(data)

    def fail(self, ledger: LogLedger, *errors: Exception) -> None:
        """Have the next requests for an object fail."""
        assert ledger.object is not None
        self.files.failing[BASE.key(ledger.ledger_id, ledger.object.attempt)] = [*errors]


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
