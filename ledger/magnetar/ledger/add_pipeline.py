"""Sends runs of entries to their write sets and releases them in order.

The thin shell around `PendingAdds`, shared by the writer and by the write-back of recovery. For
one fixed ensemble; an ensemble change (not built yet) will replace members under rule 5.1. Until
then a member that fails an add simply does not count for it: adds go on while every write set can
still reach its ack quorum, and the pipeline is lost when one cannot.
"""

from collections.abc import Callable, Sequence
from functools import partial

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    UnauthorizedError,
)
from magnetar.ledger.pending_adds import OnDone, PendingAdd, PendingAdds
from magnetar.ledger.quorum import write_set
from magnetar.ledger.wire import EntryBlock, Frame, Op, Status, encode_block


class AddPipeline:
    """Adds on their way to one ensemble."""

    def __init__(
        self,
        channels: ChannelPool,
        *,
        ledger_id: int,
        ensemble: tuple[str, ...],
        write_quorum: int,
        ack_quorum: int,
        key: bytes,
        flags: int,
        on_released: Callable[[list[PendingAdd]], None],
        on_lost: Callable[[LedgerError], None],
    ) -> None:
        self._channels = [channels.get(bookie_id) for bookie_id in ensemble]
        self._ledger_id = ledger_id
        self._ensemble = ensemble
        self._write_quorum = write_quorum
        self._key = key
        self._flags = flags
        self._on_released = on_released
        self._on_lost = on_lost
        self._is_striped = write_quorum < len(ensemble)
        self._pending = PendingAdds(write_quorum=write_quorum, ack_quorum=ack_quorum)
        self._is_lost = False

    @property
    def pending_bytes(self) -> int:
        return self._pending.pending_bytes

    @property
    def is_empty(self) -> bool:
        return not self._pending

    def send(
        self,
        first_entry_id: int,
        packets: Sequence[bytes],
        lengths_after: Sequence[int],
        callbacks: Sequence[tuple[int, OnDone]],
    ) -> None:
        """Send consecutive entries as one frame per bookie.

        `lengths_after[i]` is the ledger's length after packet i. `callbacks` holds pairs
        (entry id, callback): the callback runs once that entry and all before it are confirmed.
        """
        if self._is_striped:
            self._send_striped(first_entry_id, packets, lengths_after, callbacks)
        else:
            self._send_whole(first_entry_id, packets, lengths_after, callbacks)

    def _send_whole(
        self,
        first_entry_id: int,
        packets: Sequence[bytes],
        lengths_after: Sequence[int],
        callbacks: Sequence[tuple[int, OnDone]],
    ) -> None:
        block = encode_block(packets)
        add = PendingAdd(
            first_entry_id,
            first_entry_id + len(packets) - 1,
            size_bytes=len(block.data),
            length_after=lengths_after[-1],
            callbacks=[callback for _, callback in callbacks],
        )
        self._pending.push(add)
        for index in range(len(self._ensemble)):
            self._send_block(index, first_entry_id, block, [add])

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
        packets_of: list[list[bytes]] = [[] for _ in range(size)]
        adds_of: list[list[PendingAdd]] = [[] for _ in range(size)]
        for offset, packet in enumerate(packets):
            entry_id = first_entry_id + offset
            add = PendingAdd(
                entry_id,
                entry_id,
                size_bytes=len(packet),
                length_after=lengths_after[offset],
                callbacks=by_entry.get(entry_id, []),
            )
            self._pending.push(add)
            members = write_set(entry_id, ensemble_size=size, write_quorum=self._write_quorum)
            for index in members:
                packets_of[index].append(packet)
                adds_of[index].append(add)
        for index in range(size):
            if adds_of[index]:
                block = encode_block(packets_of[index])
                self._send_block(index, adds_of[index][0].first_entry_id, block, adds_of[index])

    def _send_block(
        self, index: int, first_entry_id: int, block: EntryBlock, adds: list[PendingAdd]
    ) -> None:
        self._channels[index].send(
            Op.ADD,
            (self._key, block.data),
            partial(self._on_reply, index, adds),
            ledger_id=self._ledger_id,
            entry_id=first_entry_id,
            flags=self._flags,
        )

    def _on_reply(
        self, index: int, adds: list[PendingAdd], reply: Frame | BookieUnavailableError
    ) -> None:
        if self._is_lost:
            return
        if isinstance(reply, BookieUnavailableError):
            self._on_failure(index, adds, reply)
        elif reply.status == Status.OK:
            for add in adds:
                self._pending.on_ack(add, index)
            self._release()
        else:
            self._on_error_reply(index, adds, reply)

    def _on_error_reply(self, index: int, adds: list[PendingAdd], reply: Frame) -> None:
        text = reply.body.decode("utf-8", "replace")
        where = f"ledger {self._ledger_id}, bookie {self._ensemble[index]}"
        if reply.status == Status.FENCED:
            self._lose(LedgerFencedError(f"{where}: the ledger is fenced by another client"))
        elif reply.status == Status.UNAUTHORIZED:
            self._lose(UnauthorizedError(f"{where}: {text}"))
        elif reply.status in (Status.BAD_REQUEST, Status.BAD_VERSION):
            self._lose(LedgerWriteError(f"{where}: the bookie refuses the add: {text}"))
        else:
            # A newer bookie may have reasons to fail that we do not know.
            known = reply.status in Status._value2member_map_
            status = Status(reply.status).name if known else f"status {reply.status}"
            self._on_failure(index, adds, BookieUnavailableError(f"{where}: {status} {text}"))

    def _on_failure(
        self, index: int, adds: list[PendingAdd], error: BookieUnavailableError
    ) -> None:
        for add in adds:
            if self._pending.on_failure(add, index):
                self._lose(
                    LedgerWriteError(
                        f"ledger {self._ledger_id}: entries {add.first_entry_id} to "
                        f"{add.last_entry_id} cannot reach their ack quorum; the last failure: "
                        f"{error}"
                    )
                )
                return

    def _release(self) -> None:
        released = self._pending.release()
        if released:
            self._on_released(released)

    def _lose(self, error: LedgerError) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost(error)

    def stop(self) -> list[PendingAdd]:
        """Ignore all further replies; returns the adds that were not released."""
        self._is_lost = True
        return self._pending.drain()
