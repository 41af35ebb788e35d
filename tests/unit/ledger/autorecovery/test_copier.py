"""Copies: every entry once, with a good digest, read in the order in which a bookie stores it."""

import asyncio
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from magnetar.ledger.autorecovery.copier import Copier, CopyResult
from magnetar.ledger.autorecovery.fragments import Piece, Span
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.channel import ChannelPool, OnReply
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.errors import BookieUnavailableError, DigestMismatchError
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.reading.replica_order import ReplicaFacts
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import (
    MASTER_KEY_BYTES,
    Frame,
    Op,
    Status,
    decode_block,
    decode_read_body,
    encode_block,
)

LEDGER_ID = 7
ENTRIES = 200
ENTRY_BYTES = 1000
READ_BYTES = 4096
PER_READ = 3
"""Packets that fit into a read."""
SOURCES = ("bookie-1", "bookie-2")
GONE, TARGET = "bookie-0", "bookie-9"
PACKETS = packet_codec(LEDGER_ID).seal(
    0, -1, 0, [bytes([at]) * ENTRY_BYTES for at in range(ENTRIES)]
)


class Bookies:
    """All bookies behind one face: every one has all packets but what a test spoils."""

    def __init__(self) -> None:
        self.packets = {bookie_id: list(PACKETS) for bookie_id in SOURCES}
        self.reads: list[tuple[str, int, int]] = []
        """Per read: the bookie that was asked, the first entry asked for, the number of entries
        given."""
        self.stored: dict[int, bytes] = {}

    def get(self, bookie_id: str) -> "_Channel":
        return _Channel(self, bookie_id)

    def read(self, bookie_id: str, first: int, body: bytes) -> tuple[Status, bytes]:
        last, bytes_max, _ = decode_read_body(body)
        assert bytes_max == READ_BYTES
        given = self.packets[bookie_id][first : min(last + 1, first + PER_READ)]
        self.reads.append((bookie_id, first, len(given)))
        return Status.OK, struct.pack(">q", -1) + encode_block(given).data

    def add(self, bookie_id: str, first: int, body: Sequence[bytes]) -> tuple[Status, bytes]:
        assert bookie_id == TARGET
        assert len(body[0]) == MASTER_KEY_BYTES
        for entry_id, packet in enumerate(decode_block(body[1]).packets(), first):
            assert entry_id not in self.stored, "an entry was copied twice"
            self.stored[entry_id] = packet
        return Status.OK, b""


class _Channel:
    def __init__(self, bookies: Bookies, bookie_id: str) -> None:
        self._bookies = bookies
        self._bookie_id = bookie_id

    def send(
        self,
        op: int,
        body: Sequence[bytes],
        on_reply: OnReply,
        *,
        ledger_id: int,
        entry_id: int,
        flags: int = 0,
    ) -> None:
        if self._bookie_id == GONE:
            error = BookieUnavailableError("not registered")
            asyncio.get_running_loop().call_soon(on_reply, error)
            return
        if op == Op.READ:
            status, data = self._bookies.read(self._bookie_id, entry_id, body[0])
        else:
            status, data = self._bookies.add(self._bookie_id, entry_id, body)
        frame = Frame(op, True, flags, status, 0, ledger_id, entry_id, data)
        asyncio.get_running_loop().call_soon(on_reply, frame)


def copy_all(bookies: Bookies) -> tuple[CopyResult, list[tuple[int, str]]]:
    """Copy everything to one bookie; what became of it, and which copies were bad."""
    bad: list[tuple[int, str]] = []

    def on_bad(ledger_id: int, entry_id: int, bookie_id: str, error: DigestMismatchError) -> None:
        bad.append((entry_id, bookie_id))

    copier = Copier(
        cast(ChannelPool, bookies),
        facts_of=lambda bookie_id: ReplicaFacts(is_registered=bookie_id != GONE),
        clock=SystemClock(),
        settings=WorkerSettings(
            copy_read_bytes=READ_BYTES, reads_per_ledger_max=2, copy_attempts_max=1
        ),
        metrics=WorkerMetrics(),
        on_bad_replica=on_bad,
    )
    members = (GONE, *SOURCES)
    metadata = LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        state=LedgerState.CLOSED,
        last_entry_id=ENTRIES - 1,
        length=ENTRIES * ENTRY_BYTES,
        ensembles=(Fragment(0, members),),
        digest_type=DigestType.CRC32C,
        password=b"",
        created_ms=0,
        creation_token=0,
    )
    span = Span(0, ENTRIES - 1, members, True)
    result = asyncio.run(copier.copy(metadata, span, [Piece(0, ENTRIES - 1, (TARGET,))]))
    return result, bad


def test_every_entry_is_copied_once_as_it_was_sealed() -> None:
    bookies = Bookies()
    result, bad = copy_all(bookies)
    assert result.is_complete
    assert result.entries == ENTRIES
    assert bookies.stored == dict(enumerate(PACKETS))
    assert bad == []


def test_a_bookie_is_read_in_order() -> None:
    """What it has stored together it then reads once. It is left only for the next run."""
    bookies = Bookies()
    copy_all(bookies)
    ordered = sorted(bookies.reads, key=lambda read: read[1])
    turns = sum(before[0] != after[0] for before, after in pairwise(ordered))
    assert {bookie_id for bookie_id, _, _ in ordered} == set(SOURCES)
    assert turns <= len(ordered) / 8


def test_a_bad_copy_is_left_out_and_had_from_another_bookie() -> None:
    bookies = Bookies()
    bookies.packets[SOURCES[0]] = [packet[:-1] + b"?" for packet in PACKETS]
    result, bad = copy_all(bookies)
    assert result.is_complete
    assert bookies.stored == dict(enumerate(PACKETS))
    assert bad
    assert {bookie_id for _, bookie_id in bad} == {SOURCES[0]}


def test_an_entry_that_only_a_silent_bookie_may_have_is_not_taken_for_lost() -> None:
    bookies = Bookies()
    for packets in bookies.packets.values():
        packets[100] = packets[100][:-1] + b"?"
    result, bad = copy_all(bookies)
    assert not result.is_complete
    assert result.is_unreachable
    assert result.lost == []
    assert 100 not in bookies.stored
    assert set(bad) == {(100, bookie_id) for bookie_id in SOURCES}
