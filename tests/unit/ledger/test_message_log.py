"""Reading messages: what one read of the log brought is returned whole, whatever fails between."""

import pytest

from magnetar.ledger.errors import MetadataUnavailableError, UnknownMessageFormatError
from magnetar.ledger.log import LogEntry
from magnetar.ledger.log_message import Message, encode_messages
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.message_log import MessageReader
from magnetar.ledger.position import Position

ALIEN = b"\xd9 of the future"


class LogOfEntries(LogReader):
    """A log of one ledger that was terminated; a read returns all that is left of it."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.path = "/logs/orders"
        self._entries = [LogEntry(Position(7, at), each) for at, each in enumerate(payloads)]
        self._next = 0
        self.is_away = False

    @property
    def is_at_end(self) -> bool:
        return self._next == len(self._entries)

    async def read(
        self, *, entries_max: int = 1000, bytes_max: int = 1 << 20, wait_s: float = 0.0
    ) -> list[LogEntry]:
        found, self._next = self._entries[self._next :], len(self._entries)
        return found

    async def seek(self, position: Position) -> None:
        if self.is_away:
            raise MetadataUnavailableError("the metadata store is away")
        self._next = position.entry_id


def entry(payload: bytes) -> bytes:
    return encode_messages([Message(payload)])


async def payloads(reader: MessageReader) -> list[bytes]:
    return [stored.message.payload for stored in await reader.read()]


async def test_an_unreadable_entry_costs_no_message_while_the_metadata_store_is_away() -> None:
    log = LogOfEntries([entry(b"0"), entry(b"1"), ALIEN, entry(b"3")])
    reader = MessageReader(log)
    log.is_away = True
    assert await payloads(reader) == [b"0", b"1"]
    for _ in range(2):
        with pytest.raises(UnknownMessageFormatError, match="entry 7:2: magic 0xd9"):
            await reader.read()
    with pytest.raises(MetadataUnavailableError):
        await reader.seek(Position(7, 3))
    with pytest.raises(UnknownMessageFormatError, match="entry 7:2: magic 0xd9"):
        await reader.read()
    log.is_away = False
    await reader.seek(Position(7, 3))
    assert await payloads(reader) == [b"3"]


async def test_a_terminated_log_is_not_at_its_end_before_an_unreadable_entry_was_passed() -> None:
    reader = MessageReader(LogOfEntries([entry(b"0"), ALIEN]))
    assert await payloads(reader) == [b"0"]
    assert not reader.is_at_end
    await reader.seek(Position(7, 2))
    assert reader.is_at_end
