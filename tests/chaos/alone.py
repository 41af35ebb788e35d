"""A writer of the drill that has to do with one bookie only, straight over the wire.

Its ledgers have an ensemble of one, so it has nowhere else to go when the bookie dies or its disk
is full: what was acknowledged must be on that very disk, a refusal is heard here and not hidden by
a change of ensemble, and a fence that the bookie has confirmed binds this bookie. It sends one add
at a time, and sends it again until it is answered with OK.

usage: python -m tests.chaos.alone --metadata URL --directory DIR --name NAME --seed N --bookie ID
"""

import asyncio
import time
from collections.abc import Callable

from magnetar.ledger.digest import master_key, packet_codec
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.wire import Flag, Frame, Op, Status, encode_block
from tests.bookie_parts import BookieClient
from tests.chaos.content import digest_of, payload_of
from tests.chaos.journals import FENCED, OPENED, REFUSED, WRONG
from tests.chaos.player import Player, play

ENTRIES_PER_ADD = 50
ADDS_MAX = 60
ANSWER_TIMEOUT_S = 2.0
REFUSALS = (Status.READ_ONLY, Status.TOO_MANY_REQUESTS, Status.IO_ERROR)
"""Read-only for want of room; the write cache is full; the journal's disk is full."""


async def write_alone(player: Player) -> None:
    while not player.stop.is_set():
        try:
            made = await player.client.manager.create(
                lambda ledger_id, token: _metadata(player.bookie, ledger_id, token)
            )
        except LedgerError:
            await player.pause()
            continue
        player.journal.note(OPENED, made.metadata.ledger_id)
        ledger = _Ledger(player, made.metadata.ledger_id)
        await ledger.fill(player.random.randrange(1, ADDS_MAX))
        if player.random.random() < 0.7:
            await ledger.fence()
        ledger.close()


def _metadata(bookie_id: str, ledger_id: int, token: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, (bookie_id,)),),
        created_ms=int(time.time() * 1000),
        creation_token=token,
    )


def add_frame(request_id: int, ledger_id: int, first: int, count: int, length: int) -> Frame:
    """An ordinary ADD of entries whose payloads are the drill's; `length` is that before them."""
    payloads = [payload_of(ledger_id, first + at) for at in range(count)]
    packets = packet_codec(ledger_id).seal(first, first - 1, length, payloads)
    body = master_key(b"") + encode_block(packets).data
    return Frame(Op.ADD, False, 0, 0, request_id, ledger_id, first, body)


class _Ledger:
    """One ledger, from its first entry to its fence."""

    def __init__(self, player: Player, ledger_id: int) -> None:
        self._player = player
        self._ledger_id = ledger_id
        self._next = 0
        self._length = 0
        self._connection: BookieClient | None = None

    async def fill(self, adds: int) -> None:
        """Add until so many adds are acknowledged, or the player is to stop."""
        journal = self._player.journal
        for _ in range(adds):
            payloads = [
                payload_of(self._ledger_id, self._next + at) for at in range(ENTRIES_PER_ADD)
            ]
            if not await self._add():
                return
            journal.acknowledged(self._ledger_id, self._next, [digest_of(p) for p in payloads])
            self._next += len(payloads)
            size = sum(map(len, payloads))
            self._length += size
            await self._player.pace(size)

    async def fence(self) -> None:
        """Fence the ledger at its bookie, and see that it is."""

        def read_lac(request_id: int) -> Frame:
            return Frame(
                Op.READ_LAC, False, Flag.FENCE, 0, request_id, self._ledger_id, -1, master_key(b"")
            )

        reply = await self._ask(read_lac)
        if reply is None or not reply.flags & Flag.FENCED:
            return
        self._player.journal.note(FENCED, self._ledger_id)
        after = await self._ask(self._add_frame)
        if after is not None and after.status == Status.OK:
            self._wrong(f"entry {self._next} was taken after the fence")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _add(self) -> bool:
        """One add, again and again until it is acknowledged; False if the player is to stop."""
        while not self._player.stop.is_set():
            reply = await self._ask(self._add_frame)
            if reply is None:
                await self._player.pause()
            elif reply.status == Status.OK:
                return True
            elif reply.status in REFUSALS:
                self._player.journal.note(REFUSED, self._ledger_id, reply.status)
                await self._player.pause()
            else:
                self._wrong(f"an add was answered with {Status(reply.status).name}")
                return False
        return False

    def _add_frame(self, request_id: int) -> Frame:
        return add_frame(request_id, self._ledger_id, self._next, ENTRIES_PER_ADD, self._length)

    async def _ask(self, make: Callable[[int], Frame]) -> Frame | None:
        """None if the bookie does not answer; nobody knows then what it has done."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                if self._connection is None or self._connection.is_closed:
                    port = int(self._player.bookie.rpartition(":")[2])
                    self._connection = await BookieClient.connect(port)
                return await self._connection.ask(make)
        except (TimeoutError, OSError):
            self.close()
            self._connection = None
            return None

    def _wrong(self, text: str) -> None:
        text = f"bookie {self._player.bookie}: {text}"
        self._player.journal.note(WRONG, self._ledger_id, text=text)


if __name__ == "__main__":
    play(write_alone)
