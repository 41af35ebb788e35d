"""A writer of the drill: fills ledger after ledger at full speed, and logs what is acknowledged.

usage: python -m tests.chaos.write --metadata URL --directory DIR --name NAME --seed N
"""

import asyncio

from magnetar.ledger.errors import LedgerError
from magnetar.ledger.writer import LedgerWriter
from tests.chaos.content import digest_of, payload_of
from tests.chaos.journals import CLOSED, FAILED, OPENED, WRONG
from tests.chaos.player import Player, play

LEDGERS_AT_ONCE = 2
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2))
IN_FLIGHT_MAX = 40
BATCH_MAX = 25
ENTRIES_MAX = 20_000
STRIPED_ENTRIES_MAX = 2_000
"""With striping a range read finds few entries: the verdict would take minutes for more."""


async def write(player: Player) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(LEDGERS_AT_ONCE):
            group.create_task(_write_ledgers(player))


async def _write_ledgers(player: Player) -> None:
    while not player.stop.is_set():
        ensemble_size, write_quorum, ack_quorum = player.random.choice(QUORUMS)
        try:
            writer = await player.client.create(
                ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
            )
        except LedgerError:
            await player.pause()
            continue
        player.journal.note(OPENED, writer.ledger_id)
        entries_max = STRIPED_ENTRIES_MAX if ensemble_size > write_quorum else ENTRIES_MAX
        await _Filling(player, writer).run(player.random.randrange(100, entries_max))
        await _close(player, writer)


async def _close(player: Player, writer: LedgerWriter) -> None:
    """Mostly close what was written; what failed is at times left to the recoverers."""
    if writer.has_failed and player.random.random() < 0.5:
        player.journal.note(FAILED, writer.ledger_id, text="left as it is")
        return
    try:
        closed = await writer.close(force=writer.has_failed)
    except LedgerError as error:
        player.journal.note(FAILED, writer.ledger_id, text=type(error).__name__)
        return
    player.journal.note(CLOSED, writer.ledger_id, closed.last_entry_id, closed.length)


class _Filling:
    """Appends to one ledger: many batches in flight, the next as soon as one is acknowledged."""

    def __init__(self, player: Player, writer: LedgerWriter) -> None:
        self._player = player
        self._writer = writer
        self._in_flight = 0
        self._next_acknowledged = 0
        self._room = asyncio.Event()
        self._is_over = False

    async def run(self, entries: int) -> None:
        writer = self._writer
        while not (self._is_over or self._player.stop.is_set() or writer.entries_added >= entries):
            if self._in_flight >= IN_FLIGHT_MAX:
                self._room.clear()
                await self._room.wait()
                continue
            first = writer.entries_added
            count = self._player.random.randint(1, BATCH_MAX)
            payloads = [payload_of(writer.ledger_id, first + at) for at in range(count)]
            if not self._append(first, payloads):
                await self._player.pause()
                return
            await self._player.pace(LEDGERS_AT_ONCE * sum(map(len, payloads)))

    def _append(self, first: int, payloads: list[bytes]) -> bool:
        def on_done(error: LedgerError | None) -> None:
            self._in_flight -= 1
            self._room.set()
            if error is not None:
                self._is_over = True
                return
            if first != self._next_acknowledged:
                text = f"acknowledged out of order, {self._next_acknowledged} was expected"
                self._player.journal.note(WRONG, self._writer.ledger_id, first, text=text)
            self._next_acknowledged = first + len(payloads)
            digests = [digest_of(payload) for payload in payloads]
            self._player.journal.acknowledged(self._writer.ledger_id, first, digests)

        try:
            at = self._writer.append(payloads, on_done)
        except LedgerError:
            return False
        self._in_flight += 1
        if at != first:
            text = f"got the id {at}, {first} was expected"
            self._player.journal.note(WRONG, self._writer.ledger_id, at, text=text)
        return True


if __name__ == "__main__":
    play(write)
