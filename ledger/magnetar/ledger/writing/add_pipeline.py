"""Sends runs of entries to their write sets, releases them in order, and changes the ensemble.

The writer and the write-back of recovery share it. They differ in how a new ensemble becomes
binding (`commit`): the writer writes it into the metadata; recovery keeps it in memory until it
closes the ledger (D3).

`PendingAdds`, which is pure, is the queue of unconfirmed adds. It records which members
acknowledged what, and decides what may be released. Its rules (ledger protocol, sections 4 and 5):

- An add is done at Qa acknowledgements from members of its write set (4.2).
- Adds are released strictly in id order, because recovery stops at the first missing entry and
  would lose any entry acknowledged beyond it (4.1).
- While the ensemble changes, nothing is released: the first entry of the new fragment was chosen
  by what is released (D9), and a done add may lose an acknowledgement (D8).
- An acknowledgement counts only for the member that was asked, and only while it is a member
  (4.2 step 5, D10): `revoke` takes back those of a replaced member.
- An add is lost when more than Qw - Qa members of its write set failed it.

`AddPipeline` is the shell around it. An ensemble change has eight steps (section 5 of the ledger
protocol):

1. A failure is noted in `_deferred`; the first one freezes all releases and starts `_change`.
2. Only failures of present members count. If there are none, go to 8.
3. The new fragment begins after the last released entry, which cannot move: nothing is released.
4. A replacement takes the index of the failed member; all others keep theirs.
5. `LedgerMetadata.with_ensemble` appends the fragment, or replaces one that begins there already.
6. `commit`. Nothing is sent, counted or released under an ensemble before that (rule 5.1, D7).
7. Install the ensemble. Take back all acknowledgements of the replaced members in the queue, and
   send the queue to the new members. Send the entries that were appended meanwhile.
8. If further failures arrived, go to 2. Otherwise thaw, and release once, since no further reply
   may ever come (D11).

A failure of an add that already has its ack quorum is handled before the next add is sent. If there
is no replacement, adds continue without the member as long as each of them reaches its ack quorum.
The replacement is tried again when the registered bookies change, or when the rest of a bookie that
failed this ledger has ended. `on_missed` makes up for the entries that a member misses (rule 4.5).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import structlog

from magnetar.ledger.errors import (
    BookieUnavailableError,
    InvariantError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    UnauthorizedError,
)
from magnetar.ledger.quorum import is_in_write_set, write_set
from magnetar.ledger.wire import Frame, Op, Status, encode_block
from magnetar.ledger.wire_adds import (
    ADD_HEAD,
    KEY_AT,
    SINGLE_ADD_HEAD,
    SINGLE_TABLE_BYTES,
)
from magnetar.ledger.writing.add_turn import AddMember, AddQueue, AddTurn, OnDone, PendingAdd
from magnetar.ledger.writing.replacements import Replacements

_log = structlog.get_logger(__name__)

Commit = Callable[[int, tuple[str, ...]], Awaitable[None]]
"""Makes an ensemble binding from an entry on; any exception ends the pipeline."""

OnMissed = Callable[[str, PendingAdd], None]
"""Called when a bookie did not store a released add, which then lacks a copy."""


class PendingAdds:
    """The queue of unconfirmed adds, in entry order."""

    def __init__(
        self, *, ensemble_size: int, write_quorum: int, ack_quorum: int, first_entry_id: int = 0
    ) -> None:
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._failures_max = write_quorum - ack_quorum
        self._queue: deque[PendingAdd] = deque()
        self.pending_bytes = 0
        self.first_unreleased = first_entry_id
        """Entry after the last released one: where a new fragment would begin."""
        self.is_frozen = False
        """Whether the ensemble is being changed: then nothing may be released."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PendingAdd]:
        return iter(self._queue)

    def push(self, add: PendingAdd) -> None:
        """Append an add whose entries follow those of the last one."""
        following = self._queue[-1].last_entry_id + 1 if self._queue else self.first_unreleased
        if add.first_entry_id != following:
            raise InvariantError(
                f"entry {add.first_entry_id} was added where {following} is the next one"
            )
        self._queue.append(add)
        self.pending_bytes += add.size_bytes

    def on_ack(self, adds: Iterable[PendingAdd], index: int) -> bool:
        """Record that a member stored the adds; return whether there may be adds to release now."""
        bit, ack_quorum, may_release = 1 << index, self._ack_quorum, False
        for add in adds:
            add.acked = acked = add.acked | bit
            add.failed &= ~bit
            if not add.is_released and acked.bit_count() >= ack_quorum:
                may_release = True
        return may_release

    def on_failure(self, add: PendingAdd, index: int) -> bool:
        """Record that a member failed the add; return whether its ack quorum is now impossible."""
        if add.acked >> index & 1:
            return False
        add.failed |= 1 << index
        return self._is_lost(add)

    def is_done(self, add: PendingAdd) -> bool:
        """Return whether the add has its ack quorum, released or not."""
        return add.acked.bit_count() >= self._ack_quorum

    def _is_lost(self, add: PendingAdd) -> bool:
        return add.failed.bit_count() > self._failures_max

    def first_lost(self) -> PendingAdd | None:
        """Return the first add that cannot reach its ack quorum with the present ensemble."""
        return next(filter(self._is_lost, self._queue), None)

    def revoke(self, indices: Iterable[int]) -> None:
        """Discard all answers of replaced members in the queue; nothing is released."""
        mask = ~sum([1 << index for index in indices])
        for add in self._queue:
            add.acked &= mask
            add.failed &= mask

    def belongs_to(self, add: PendingAdd, index: int) -> bool:
        """Return whether the member at `index` is in the add's write set."""
        return is_in_write_set(
            index,
            add.first_entry_id,
            ensemble_size=self._ensemble_size,
            write_quorum=self._write_quorum,
        )

    def release(self) -> list[PendingAdd]:
        """Take the done adds from the head of the queue, in order."""
        queue = self._queue
        released: list[PendingAdd] = []
        if self.is_frozen:
            return released
        while queue and queue[0].acked.bit_count() >= self._ack_quorum:
            add = queue.popleft()
            add.is_released = True
            self.pending_bytes -= add.size_bytes
            released.append(add)
        if released:
            self.first_unreleased = released[-1].last_entry_id + 1
        return released

    def drain(self) -> list[PendingAdd]:
        """Take all adds, for the caller to fail."""
        adds = list(self._queue)
        self._queue.clear()
        self.pending_bytes = 0
        return adds


class AddPipeline:
    """Sends adds to the members of one ensemble, and tracks their replies."""

    def __init__(
        self,
        turn: AddTurn,
        *,
        ledger_id: int,
        ensemble: tuple[str, ...],
        write_quorum: int,
        ack_quorum: int,
        first_entry_id: int,
        key: bytes,
        flags: int,
        frame_bytes_max: int,
        replacements: Replacements,
        commit: Commit,
        on_released: Callable[[list[PendingAdd]], None],
        on_missed: OnMissed,
        on_lost: Callable[[LedgerError], None],
    ) -> None:
        self._turn = turn
        self._ledger_id = ledger_id
        self._ensemble = ensemble
        self._write_quorum = write_quorum
        self._key = key
        self._flags = flags
        self._frame_bytes_max = frame_bytes_max
        self._replacements = replacements
        self._commit = commit
        self._on_released = on_released
        self._on_missed = on_missed
        self._on_lost = on_lost
        self._is_striped = write_quorum < len(ensemble)
        self._members = [self._member(index, bookie_id) for index, bookie_id in enumerate(ensemble)]
        self._pending = PendingAdds(
            ensemble_size=len(ensemble),
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            first_entry_id=first_entry_id,
        )
        self._is_lost = False
        self._last_failure = ""
        self._deferred: dict[int, str] = {}
        """Failed members to be replaced, by index."""
        self._stuck: dict[int, str] = {}
        """Failed members for which there was no replacement, by index."""
        self._stuck_since: tuple[int, tuple[str, ...]] | None = None
        """Generation of the replacements when `_stuck` was last set."""
        self._changing: asyncio.Task[None] | None = None
        self.changes = 0
        """Number of ensemble changes so far."""

    def _member(self, index: int, bookie_id: str) -> tuple[AddQueue, AddMember]:
        """Return the queue to a member, and the receiver of its answers."""
        return self._turn.queue_to(bookie_id), AddMember(
            self._ledger_id,
            on_stored=partial(self._on_stored, index, bookie_id),
            on_reply=partial(self._on_reply, index, bookie_id),
        )

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The committed ensemble."""
        return self._ensemble

    @property
    def pending_bytes(self) -> int:
        return self._pending.pending_bytes

    @property
    def is_empty(self) -> bool:
        return not self._pending

    @property
    def is_changing(self) -> bool:
        return self._pending.is_frozen

    # Sending -------------------------------------------------------------------------------------

    def send(
        self,
        first_entry_id: int,
        packets: Sequence[bytes],
        lengths_after: Sequence[int],
        callbacks: Sequence[tuple[int, OnDone]],
    ) -> None:
        """Send consecutive entries to every bookie; ordinary adds leave at the end of the turn.

        `lengths_after[i]` is the ledger's length after packet i. `callbacks` holds pairs (entry id,
        callback): the callback runs once that entry and all before it are confirmed. While the
        ensemble changes, entries wait unsent.
        """
        self._mind_failures()
        if self._is_striped:
            self._send_striped(first_entry_id, packets, lengths_after, callbacks)
        else:
            self._send_whole(first_entry_id, packets, lengths_after, callbacks)

    def send_one(self, entry_id: int, packet: bytes, length_after: int, on_done: OnDone) -> None:
        """Send one entry; unlike `send`, without lists, and without copying it into a block."""
        self._mind_failures()
        if self._is_striped:
            self._send_striped(entry_id, (packet,), (length_after,), ((entry_id, on_done),))
            return
        packet_bytes = len(packet)
        size = packet_bytes + SINGLE_TABLE_BYTES
        add = PendingAdd(
            entry_id,
            entry_id,
            content=packet,
            size_bytes=size,
            length_after=length_after,
            callbacks=[on_done],
        )
        head = SINGLE_ADD_HEAD.pack(self._ledger_id, entry_id, size, self._key, 1, packet_bytes)
        self._push(add, head, packet)

    def _mind_failures(self) -> None:
        """Try to replace failed members before more is sent."""
        if self._stuck and self._replacements.generation != self._stuck_since:
            self._deferred.update(self._stuck)
        if self._deferred and not self._pending.is_frozen:
            self._begin_change()

    def _send_whole(
        self,
        first_entry_id: int,
        packets: Sequence[bytes],
        lengths_after: Sequence[int],
        callbacks: Sequence[tuple[int, OnDone]],
    ) -> None:
        block = encode_block(packets)
        size = len(block.data)
        add = PendingAdd(
            first_entry_id,
            first_entry_id + len(packets) - 1,
            content=block,
            size_bytes=size,
            length_after=lengths_after[-1],
            callbacks=[callback for _, callback in callbacks],
        )
        head = ADD_HEAD.pack(self._ledger_id, first_entry_id, size, self._key)
        self._push(add, head, block.data)

    def _push(self, add: PendingAdd, head: bytes, content: bytes) -> None:
        """Send an add to all members, or queue it while the ensemble changes."""
        self._pending.push(add)
        if self._pending.is_frozen:
            return
        add.is_sent = True
        adds = [add]
        if self._flags:
            for index in range(len(self._members)):
                self._send_alone(index, adds, (head[KEY_AT:], content))
        else:
            for queue, member in self._members:
                queue.add(member, adds, head, content)

    def _send_striped(
        self,
        first_entry_id: int,
        packets: Sequence[bytes],
        lengths_after: Sequence[int],
        callbacks: Sequence[tuple[int, OnDone]],
    ) -> None:
        by_entry: dict[int, list[OnDone]] = {}
        for entry_id, callback in callbacks:
            by_entry.setdefault(entry_id, []).append(callback)
        size = len(self._ensemble)
        is_frozen = self._pending.is_frozen
        adds_of: list[list[PendingAdd]] = [[] for _ in range(size)]
        for offset, packet in enumerate(packets):
            entry_id = first_entry_id + offset
            add = PendingAdd(
                entry_id,
                entry_id,
                content=packet,
                size_bytes=len(packet),
                length_after=lengths_after[offset],
                callbacks=by_entry.get(entry_id, []),
            )
            self._pending.push(add)
            if not is_frozen:
                add.is_sent = True
                for index in write_set(
                    entry_id, ensemble_size=size, write_quorum=self._write_quorum
                ):
                    adds_of[index].append(add)
        for index, adds in enumerate(adds_of):
            if not adds:
                continue
            if self._flags:
                self._send_adds(index, adds)
            else:
                queue, member = self._members[index]
                data = _block_of(adds)
                entry_id = adds[0].first_entry_id
                head = ADD_HEAD.pack(self._ledger_id, entry_id, len(data), self._key)
                queue.add(member, adds, head, data)

    def _send_adds(self, index: int, adds: list[PendingAdd]) -> None:
        """Send several adds to one member in a frame of their own."""
        self._send_alone(index, adds, (self._key, _block_of(adds)))

    def _send_alone(self, index: int, adds: list[PendingAdd], body: Sequence[bytes]) -> None:
        queue, member = self._members[index]
        queue.channel.send(
            Op.ADD,
            body,
            partial(member.on_reply, adds),
            ledger_id=self._ledger_id,
            entry_id=adds[0].first_entry_id,
            flags=self._flags,
        )

    # Replies -------------------------------------------------------------------------------------

    def _on_reply(
        self,
        index: int,
        bookie_id: str,
        adds: list[PendingAdd],
        reply: Frame | BookieUnavailableError,
    ) -> None:
        if isinstance(reply, BookieUnavailableError):
            self._on_failure(index, bookie_id, adds, reply)
        elif reply.status != Status.OK:
            self._on_error_reply(index, bookie_id, adds, reply)
        else:
            self._on_stored(index, bookie_id, adds)

    def _on_stored(self, index: int, bookie_id: str, adds: list[PendingAdd]) -> None:
        if self._is_lost or self._ensemble[index] != bookie_id:
            return  # the reply of a replaced member does not count (D10)
        if self._stuck:
            self._stuck.pop(index, None)  # it is back
        if self._pending.on_ack(adds, index):
            self._release()

    def _on_error_reply(
        self, index: int, bookie_id: str, adds: list[PendingAdd], reply: Frame
    ) -> None:
        text = reply.body.decode("utf-8", "replace")
        where = f"ledger {self._ledger_id}, bookie {bookie_id}"
        is_member = self._ensemble[index] == bookie_id
        if is_member and reply.status == Status.FENCED:
            self._lose(LedgerFencedError(f"{where}: the ledger is fenced by another client"))
        elif is_member and reply.status == Status.UNAUTHORIZED:
            self._lose(UnauthorizedError(f"{where}: {text}"))
        elif is_member and reply.status in (Status.BAD_REQUEST, Status.BAD_VERSION):
            self._lose(LedgerWriteError(f"{where}: the bookie refuses the add: {text}"))
        # A newer bookie may fail for reasons that this release does not know.
        known = reply.status in Status._value2member_map_
        status = Status(reply.status).name if known else f"status {reply.status}"
        error = BookieUnavailableError(f"{where}: {status} {text}")
        self._on_failure(index, bookie_id, adds, error, is_final=reply.status == Status.READ_ONLY)

    def _on_failure(
        self,
        index: int,
        bookie_id: str,
        adds: list[PendingAdd],
        error: BookieUnavailableError,
        *,
        is_final: bool = False,
    ) -> None:
        """Handle adds that a bookie did not store. `is_final`: the bookie takes no adds at all."""
        for add in adds:
            if add.is_released:
                self._on_missed(bookie_id, add)
        if self._is_lost or self._ensemble[index] != bookie_id:
            return
        self._last_failure = str(error)
        pending = self._pending
        is_lost, is_wanted = False, is_final
        for add in adds:
            if not add.is_released:
                is_lost |= pending.on_failure(add, index)
                is_wanted |= not pending.is_done(add)
        if index in self._stuck:
            if is_lost and not pending.is_frozen:
                self._lose(self._too_few())
            return
        if self._replacements.is_delayed and not is_lost and not is_final:
            return
        self._deferred[index] = bookie_id
        if not pending.is_frozen and (is_wanted or is_lost):
            _log.warning("ensemble_member_failed", ledger_id=self._ledger_id, error=str(error))
            self._begin_change()

    def _too_few(self) -> LedgerWriteError:
        lost = self._pending.first_lost()
        entries = f"entries {lost.first_entry_id} to {lost.last_entry_id}" if lost else "entries"
        return LedgerWriteError(
            f"ledger {self._ledger_id}: {entries} cannot reach their ack quorum, and no other "
            f"bookie can take the place of a failed one; the last failure: {self._last_failure}"
        )

    def _release(self) -> None:
        released = self._pending.release()
        if not released:
            return
        for add in released:
            if add.failed:
                for index, bookie_id in enumerate(self._ensemble):
                    if add.failed >> index & 1:
                        self._on_missed(bookie_id, add)
        self._on_released(released)

    # Ensemble change -----------------------------------------------------------------------------

    def _begin_change(self) -> None:
        self._pending.is_frozen = True
        self._changing = asyncio.get_running_loop().create_task(
            self._change(), name=f"change-ensemble-{self._ledger_id}"
        )

    async def _change(self) -> None:
        try:
            while failed := self._take_failed():
                await self._replace(failed)
                if self._is_lost:
                    return
        except LedgerError as error:
            self._lose(error)
            return
        except Exception as bug:  # noqa: BLE001  # releases are frozen: nobody would ever hear
            self._lose(LedgerWriteError(f"ledger {self._ledger_id}: ensemble change: {bug!r}"))
            return
        self._send_waiting()
        self._pending.is_frozen = False
        if self._pending.first_lost() is not None:
            self._lose(self._too_few())
        else:
            self._release()

    def _take_failed(self) -> Mapping[int, str]:
        deferred, self._deferred = self._deferred, {}
        return {
            index: bookie_id
            for index, bookie_id in sorted(deferred.items())
            if self._ensemble[index] == bookie_id
        }

    async def _replace(self, failed: Mapping[int, str]) -> None:
        for bookie_id in failed.values():
            self._replacements.on_failed(bookie_id)
        generation = self._replacements.generation
        ensemble = self._replacements.choose(self._ensemble, failed)
        replaced = [index for index in failed if ensemble[index] != self._ensemble[index]]
        for index, bookie_id in failed.items():
            if index in replaced:
                self._stuck.pop(index, None)
            else:
                self._stuck[index] = bookie_id
                self._stuck_since = generation
        if not replaced:
            return
        self._replacements.check_changes(self.changes + 1, self._ledger_id)
        await self._commit(self._pending.first_unreleased, ensemble)
        if self._is_lost:
            return
        self.changes += 1
        _log.info(
            "ensemble_changed",
            ledger_id=self._ledger_id,
            first_entry_id=self._pending.first_unreleased,
            replaced=[self._ensemble[index] for index in replaced],
            ensemble=ensemble,
        )
        self._ensemble = ensemble
        for index in replaced:
            self._members[index] = self._member(index, ensemble[index])
        self._pending.revoke(replaced)
        sent = [add for add in self._pending if add.is_sent]
        for index in replaced:
            self._send_in_frames(index, sent)

    def _send_waiting(self) -> None:
        """Send the entries that were appended while the ensemble changed."""
        waiting = [add for add in self._pending if not add.is_sent]
        for add in waiting:
            add.is_sent = True
        for index in range(len(self._ensemble)):
            self._send_in_frames(index, waiting)

    def _send_in_frames(self, index: int, adds: Iterable[PendingAdd]) -> None:
        """Send one member its part of the adds, in frames of the usual size."""
        frame: list[PendingAdd] = []
        size = 0
        for add in adds:
            if not self._pending.belongs_to(add, index):
                continue
            if frame and size + add.size_bytes > self._frame_bytes_max:
                self._send_adds(index, frame)
                frame, size = [], 0
            frame.append(add)
            size += add.size_bytes
        if frame:
            self._send_adds(index, frame)

    # The end -------------------------------------------------------------------------------------

    def _lose(self, error: LedgerError) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost(error)

    def stop(self) -> list[PendingAdd]:
        """Ignore further replies; return the adds that were not released.

        If a bookie fails a released add, `on_missed` still runs.
        """
        self._is_lost = True
        if self._changing is not None and self._changing is not asyncio.current_task():
            self._changing.cancel()
        return self._pending.drain()


def _block_of(adds: Iterable[PendingAdd]) -> bytes:
    return encode_block([packet for add in adds for packet in add.packets()]).data
