"""The ledger writer: one open ledger, one writer, entries confirmed in order.

The appends of one loop turn leave as one frame per bookie, together with those of the client's
other ledgers. `append` gives the entry ids. Each entry carries the last add confirmed (LAC) that is
known when the entry is sent. `on_done` callbacks run in entry order as the ack quorum is reached.
There is no task, future or lock per entry.

A writer that is refused as fenced stops for good: another client decides where the ledger ends. The
outcome of the pending adds is then unknown; recovery decides. The writer also stops when the
metadata, which it watches, says that the ledger is no longer OPEN. `add_pipeline.py` sends the
entries and changes ensembles; `writer_metadata.py` writes metadata.

Readers that follow learn the LAC from the next entry. If none comes, the writer sends an explicit
LAC after `explicit_lac_interval_ms`. Source: ledger protocol, sections 4, 6 and 9.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial

from magnetar.ledger.client_parts import ClientParts
from magnetar.ledger.digest import codec_for, master_key
from magnetar.ledger.errors import (
    BookieUnavailableError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
)
from magnetar.ledger.ledger_manager import VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.wire import ADD_BYTES_MAX, Frame, Op, Status
from magnetar.ledger.writing.add_pipeline import AddPipeline
from magnetar.ledger.writing.add_turn import OnDone, PendingAdd
from magnetar.ledger.writing.writer_metadata import WriterMetadata

_TABLE_BYTES = 4
"""Bytes of an entry in an ADD frame beside its packet: its place in the table of lengths."""


class _State(Enum):
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()
    FAILED = auto()


class LedgerWriter:
    """The only handle that may add to a ledger."""

    def __init__(self, ledger: VersionedLedger, parts: ClientParts) -> None:
        metadata = ledger.metadata
        settings = parts.settings
        self.ledger_id = metadata.ledger_id
        self._parts = parts
        self._settings = settings
        self._metadata = WriterMetadata(
            ledger,
            manager=parts.manager,
            clock=parts.clock,
            settings=settings,
            on_superseded=self._fail,
        )
        self._state = _State.OPEN
        self._error: LedgerError | None = None
        self._codec = codec_for(metadata)
        self._entry_overhead_bytes = self._codec.overhead_bytes + _TABLE_BYTES
        self._key = master_key(metadata.password)
        self._pipeline = AddPipeline(
            parts.turn,
            ledger_id=metadata.ledger_id,
            ensemble=metadata.last_fragment.bookies,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            first_entry_id=0,
            key=self._key,
            flags=0,
            frame_bytes_max=settings.add_frame_bytes_max,
            replacements=parts.replacements(metadata),
            commit=self._metadata.commit_ensemble,
            on_released=self._on_released,
            on_missed=self._on_missed,
            on_lost=self._fail,
        )
        self._next_entry_id = 0
        self._last_add_confirmed = -1
        self._told_last_add_confirmed = -1
        """The newest LAC that was sent to bookies, with an entry or explicitly."""
        self._explicit_lac_s = settings.explicit_lac_interval_ms / 1000
        self._explicit_lac_timer: asyncio.TimerHandle | None = None
        self._explicit_lac = -1
        """The last explicit LAC that was sent."""
        self._explicit_lac_answers_due = 0
        self._explicit_lac_copies = 0
        """Number of bookies that have stored it."""
        self._length_sent = 0
        self._length_confirmed = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._unsent_groups: list[tuple[int, OnDone]] = []
        """Per append: the number of payloads, and the callback."""
        self._drained: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def metadata(self) -> LedgerMetadata:
        """The last value that is known to be committed."""
        return self._metadata.current

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id that is confirmed together with all before it; -1 if there is none."""
        return self._last_add_confirmed

    @property
    def has_failed(self) -> bool:
        """Whether the handle ended before its ledger was closed: its bookies failed, another client
        acts on the ledger or deleted it, or the handle was abandoned."""
        return self._state is _State.FAILED

    @property
    def entries_added(self) -> int:
        """Entries given to `append` so far, confirmed or not."""
        return self._next_entry_id

    @property
    def bytes_added(self) -> int:
        """Payload bytes given to `append` so far, confirmed or not."""
        return self._length_sent + self._unsent_bytes

    @property
    def length(self) -> int:
        """Payload bytes up to the last add confirmed."""
        return self._length_confirmed

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet confirmed."""
        return self._pipeline.pending_bytes + self._unsent_bytes

    def append(self, payloads: Sequence[bytes], on_done: OnDone) -> int:
        """Add entries; return the id of the first. The ids of the others follow without a gap.

        `on_done(None)` runs when all of them are confirmed, `on_done(error)` when they may not be.

        Raises:
            LedgerClosedError, LedgerFencedError, LedgerWriteError: the handle takes no more adds,
                a payload exceeds `entry_bytes_max`, or `pending_bytes_max` is reached.
        """
        if self._state is not _State.OPEN:
            raise self._error or LedgerClosedError(
                f"ledger {self.ledger_id} is closed and takes no more entries; go on in a new one"
            )
        assert payloads
        size = sum(map(len, payloads))
        if size > self._settings.entry_bytes_max:
            largest = max(map(len, payloads))
            if largest > self._settings.entry_bytes_max:
                raise EntryTooLargeError(
                    f"ledger {self.ledger_id}: a payload of {largest} bytes; entry_bytes_max is "
                    f"{self._settings.entry_bytes_max}"
                )
        if self.pending_bytes + size > self._settings.pending_bytes_max:
            raise LedgerWriteError(
                f"ledger {self.ledger_id}: {self.pending_bytes} bytes are pending; "
                f"pending_bytes_max is {self._settings.pending_bytes_max}"
            )
        first_entry_id = self._next_entry_id
        self._next_entry_id += len(payloads)
        if not self._unsent:
            self._parts.turn.join(self._send)
        self._unsent += payloads
        self._unsent_bytes += size
        self._unsent_groups.append((len(payloads), on_done))
        return first_entry_id

    async def add(self, payload: bytes) -> int:
        """Add one entry and wait until it is confirmed; return its id.

        Raises:
            LedgerError: see `append`; or the error that ended the handle meanwhile.
        """
        future: asyncio.Future[None] = self._loop.create_future()

        def on_done(error: LedgerError | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        entry_id = self.append([payload], on_done)
        await future
        return entry_id

    def _send(self) -> None:
        """Send the appends of this loop turn, in as few frames as the bounds allow.

        An append is split only if it does not fit into any frame. So its entries are confirmed, or
        fail, together.
        """
        payloads, groups = self._unsent, self._unsent_groups
        self._unsent, self._unsent_groups = [], []
        self._unsent_bytes = 0
        entry_id = self._next_entry_id - len(payloads)
        if len(payloads) == 1:
            self._send_one(entry_id, payloads[0], groups[0][1])
            return
        bytes_max = self._settings.add_frame_bytes_max
        entries_max = self._settings.add_frame_entries_max
        frame: list[bytes] = []
        frame_bytes = 0
        callbacks: list[tuple[int, OnDone]] = []
        at = 0
        for count, on_done in groups:
            parts = _cut(payloads[at : at + count], self._entry_overhead_bytes)
            at += count
            for part in parts:
                size = sum(map(len, part))
                is_full = frame_bytes + size > bytes_max or len(frame) + len(part) > entries_max
                if frame and is_full:
                    self._send_frame(entry_id, frame, callbacks)
                    entry_id += len(frame)
                    frame, frame_bytes, callbacks = [], 0, []
                frame += part
                frame_bytes += size
            callbacks.append((entry_id + len(frame) - 1, on_done))
        if frame:
            self._send_frame(entry_id, frame, callbacks)

    def _send_one(self, entry_id: int, payload: bytes, on_done: OnDone) -> None:
        """Send the only entry of this turn: the usual case for one ledger among thousands."""
        if self._state is _State.FAILED:
            assert self._error is not None
            self._tell(on_done, self._error)
            return
        last_add_confirmed = self._last_add_confirmed
        packet = self._codec.seal_one(entry_id, last_add_confirmed, self._length_sent, payload)
        self._length_sent += len(payload)
        self._told_last_add_confirmed = last_add_confirmed
        self._pipeline.send_one(entry_id, packet, self._length_sent, on_done)

    def _send_frame(
        self, first_entry_id: int, payloads: list[bytes], callbacks: list[tuple[int, OnDone]]
    ) -> None:
        if self._state is _State.FAILED:
            # The handle failed while earlier frames of this turn were sent.
            assert self._error is not None
            for _, on_done in callbacks:
                self._tell(on_done, self._error)
            return
        packets = self._codec.seal(
            first_entry_id, self._last_add_confirmed, self._length_sent, payloads
        )
        length, lengths_after = self._length_sent, []
        for payload in payloads:
            length += len(payload)
            lengths_after.append(length)
        self._length_sent = length
        self._told_last_add_confirmed = self._last_add_confirmed
        self._pipeline.send(first_entry_id, packets, lengths_after, callbacks)

    def _on_released(self, released: list[PendingAdd]) -> None:
        last = released[-1]
        self._last_add_confirmed = last.last_entry_id
        self._length_confirmed = last.length_after
        if self._explicit_lac_s:
            self._tell_lac_later()
        for add in released:
            for on_done in add.callbacks:
                self._tell(on_done, None)
        if self._drained is not None and self._is_drained:
            self._drained.set()

    def _on_missed(self, bookie_id: str, add: PendingAdd) -> None:
        if bookie_id not in self.metadata.ensemble_for(add.first_entry_id):
            return  # a late reply of a replaced bookie: another bookie has stored the entries
        self._parts.follow_up.take(
            bookie_id,
            self.ledger_id,
            add.first_entry_id,
            add.last_entry_id,
            add.packets(),
            self._key,
        )

    def _tell_lac_later(self) -> None:
        if self._explicit_lac_timer is None:
            self._explicit_lac_timer = self._loop.call_later(
                self._explicit_lac_s, self._tell_last_add_confirmed
            )

    def _tell_last_add_confirmed(self) -> None:
        """Send the explicit LAC, unless an entry has carried it already."""
        self._explicit_lac_timer = None
        if self._state is not _State.OPEN:
            return
        last_add_confirmed = self._last_add_confirmed
        if last_add_confirmed <= self._told_last_add_confirmed:
            return
        self._told_last_add_confirmed = self._explicit_lac = last_add_confirmed
        body = (self._key, self._codec.seal_lac(last_add_confirmed))
        ensemble = self._pipeline.ensemble
        self._explicit_lac_answers_due, self._explicit_lac_copies = len(ensemble), 0
        for bookie_id in ensemble:
            self._parts.channels.get(bookie_id).send(
                Op.WRITE_LAC,
                body,
                partial(self._on_lac_reply, last_add_confirmed),
                ledger_id=self.ledger_id,
                entry_id=last_add_confirmed,
            )

    def _on_lac_reply(self, told: int, reply: Frame | BookieUnavailableError) -> None:
        if told == self._explicit_lac:  # otherwise a late reply to an earlier one
            self._count_lac_copy(reply)
        if isinstance(reply, Frame) and reply.status == Status.FENCED:
            self._fail(
                LedgerFencedError(
                    f"ledger {self.ledger_id} is fenced by another client, which decides where "
                    f"it ends"
                )
            )

    def _count_lac_copy(self, reply: Frame | BookieUnavailableError) -> None:
        """Count a copy of the explicit LAC. It is a hint to readers, who ask any E - Qa + 1
        bookies, so it needs Qa copies."""
        self._explicit_lac_answers_due -= 1
        if isinstance(reply, Frame) and reply.status == Status.OK:
            self._explicit_lac_copies += 1
        is_short = self._explicit_lac_copies < self.metadata.ack_quorum
        if self._explicit_lac_answers_due == 0 and is_short:
            if self._told_last_add_confirmed == self._explicit_lac:
                self._told_last_add_confirmed -= 1  # otherwise an entry has carried a newer LAC
            self._tell_lac_later()

    def _tell(self, on_done: OnDone, error: LedgerError | None) -> None:
        """Call `on_done`. An exception in one callback must not prevent the later ones."""
        try:
            on_done(error)
        except Exception as bug:  # noqa: BLE001  # handed on to the loop's handler
            self._loop.call_exception_handler(
                {"message": f"the outcome of an add to ledger {self.ledger_id}", "exception": bug}
            )

    @property
    def _is_drained(self) -> bool:
        return self._pipeline.is_empty and not self._unsent

    def _fail(self, error: LedgerError) -> None:
        """End the handle: every pending add fails, in order, with an unknown outcome."""
        if self._state in (_State.FAILED, _State.CLOSED):
            return
        self._state = _State.FAILED
        self._error = error
        self._metadata.stop_watching()
        self._abandon_pending(error)

    def abandon(self) -> None:
        """Abandon the handle without closing the ledger, as a crash would; recovery decides.

        Pending adds fail with LedgerClosedError; their outcome is unknown. A close or an ensemble
        change in progress is not retried, and fails with the same error.
        """
        self._metadata.give_up()
        self._fail(LedgerClosedError(f"ledger {self.ledger_id}: its handle was given up"))

    def _abandon_pending(self, error: LedgerError) -> None:
        groups, self._unsent_groups = self._unsent_groups, []
        self._unsent, self._unsent_bytes = [], 0
        for add in self._pipeline.stop():
            for on_done in add.callbacks:
                self._tell(on_done, error)
        for _, on_done in groups:
            self._tell(on_done, error)
        if self._drained is not None:
            self._drained.set()

    async def close(self, *, force: bool = False) -> LedgerMetadata:
        """Close the ledger at the last add confirmed and return its final metadata.

        Wait up to `close_drain_timeout_s` for pending adds unless `force` is set. Adds that are
        still pending then fail with LedgerClosedError and are certainly not part of the ledger. A
        forced close also ends a handle whose adds failed for lack of bookies.

        Raises:
            LedgerFencedError: another client recovers or has closed the ledger differently.
            LedgerClosedError: the handle was abandoned meanwhile.
            LedgerWriteError: another client changed the ensemble; or, without `force`, the adds
                failed for lack of bookies before the call.
            NoSuchLedgerError: the ledger was deleted.
            InvalidLedgerMetadataError: another process wrote metadata that breaks a rule.
            MetadataUnavailableError and other MetadataErrors: call again.
        """
        if self._state is _State.CLOSED:
            return self.metadata
        if isinstance(self._error, LedgerFencedError):
            raise self._error
        if self._state is _State.FAILED and not force:
            assert self._error is not None
            raise self._error
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
        if not force:
            await self._wait_drained()
            if isinstance(self._error, LedgerClosedError):  # abandoned meanwhile
                raise self._error
        if isinstance(self._error, LedgerFencedError):
            raise self._error
        self._abandon_pending(LedgerClosedError(f"ledger {self.ledger_id} is closing"))
        closed = await self._metadata.close(self._last_add_confirmed, self._length_confirmed)
        self._state = _State.CLOSED
        return closed

    async def _wait_drained(self) -> None:
        if self._is_drained:
            return
        if self._drained is None:  # otherwise another close waits, too
            self._drained = asyncio.Event()
        try:
            async with asyncio.timeout(self._settings.close_drain_timeout_s):
                await self._drained.wait()
        except TimeoutError:
            pass  # the caller abandons what is still pending

    async def read(self, first: int, last: int, *, bytes_max: int = 1 << 20) -> list[bytes]:
        """Read payloads of confirmed entries, under the rules of `LedgerReader.read`."""
        return await self._parts.fetcher.fetch(
            self.metadata,
            first,
            last,
            last_add_confirmed=self._last_add_confirmed,
            bytes_max=bytes_max,
        )


def _cut(payloads: list[bytes], overhead_bytes: int) -> list[list[bytes]]:
    """Split payloads into pieces that each fit into one ADD frame; nearly always there is one.

    Counts the overhead of each payload: even an empty one takes 40 bytes of the frame.
    """
    if sum(map(len, payloads)) + len(payloads) * overhead_bytes <= ADD_BYTES_MAX:
        return [payloads]
    pieces: list[list[bytes]] = []
    piece: list[bytes] = []
    size = 0
    for payload in payloads:
        added = len(payload) + overhead_bytes
        if piece and size + added > ADD_BYTES_MAX:
            pieces.append(piece)
            piece, size = [], 0
        piece.append(payload)
        size += added
    pieces.append(piece)
    return pieces
