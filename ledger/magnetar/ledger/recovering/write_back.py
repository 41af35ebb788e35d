"""Recovery adds: write the recovered tail of a ledger back to its whole write set.

Ids, payloads and lengths stay the same. The packets carry the LAC that the fence found. An
advancing LAC could show a tailing reader entries whose place in the ledger only the closing CAS
decides (rule 8.3, D21). Ensemble changes stay in `fragments` until that CAS (D3).
"""

import asyncio

from magnetar.ledger.client_parts import ClientParts
from magnetar.ledger.digest import OpenedEntry, PacketCodec
from magnetar.ledger.errors import LedgerError, RecoveryUndecidedError, UnauthorizedError
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, merge_fragment
from magnetar.ledger.wire import Flag
from magnetar.ledger.writing.add_pipeline import AddPipeline
from magnetar.ledger.writing.add_turn import PendingAdd


class WriteBack:
    """The write-back of one recovery."""

    def __init__(
        self,
        snapshot: LedgerMetadata,
        parts: ClientParts,
        *,
        codec: PacketCodec,
        key: bytes,
        last_add_confirmed: int,
    ) -> None:
        self._ledger_id = snapshot.ledger_id
        self._parts = parts
        self._codec = codec
        self._last_add_confirmed = last_add_confirmed
        self._error: LedgerError | None = None
        self._changed = asyncio.Event()
        self._fragments: tuple[Fragment, ...] = ()
        self._snapshot_ensemble = snapshot.last_fragment.bookies
        self._pipeline = AddPipeline(
            parts.turn,
            ledger_id=snapshot.ledger_id,
            ensemble=self._snapshot_ensemble,
            write_quorum=snapshot.write_quorum,
            ack_quorum=snapshot.ack_quorum,
            first_entry_id=last_add_confirmed + 1,
            key=key,
            flags=Flag.RECOVERY,
            frame_bytes_max=parts.settings.add_frame_bytes_max,
            replacements=parts.replacements(snapshot),
            commit=self._keep_ensemble,
            on_released=self._on_released,
            on_missed=self._on_missed,
            on_lost=self._on_lost,
        )

    @property
    def fragments(self) -> list[Fragment]:
        """Ensembles that differ from the snapshot's, for the closing CAS."""
        return list(self._fragments)

    def send(self, entries: list[OpenedEntry]) -> None:
        """Write consecutive entries back; they follow those of the previous call."""
        packets = self._codec.reseal(self._last_add_confirmed, entries)
        self._pipeline.send(entries[0].entry_id, packets, [entry.length for entry in entries], [])

    async def wait_pending(self, bytes_max: int) -> None:
        """Wait until at most `bytes_max` of the entries have not reached their ack quorum.

        Raises:
            RecoveryUndecidedError: they cannot reach it; recovery must be run again later.
            UnauthorizedError: the ledger's password does not match.
        """
        while self._error is None and self._pipeline.pending_bytes > bytes_max:
            self._changed.clear()
            await self._changed.wait()
        if isinstance(self._error, UnauthorizedError):
            raise self._error
        if self._error is not None:
            raise RecoveryUndecidedError(
                f"ledger {self._ledger_id}: writing the tail back failed: {self._error}"
            ) from self._error

    async def _keep_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> None:
        self._fragments = merge_fragment(self._fragments, Fragment(first_entry_id, bookies))

    def _on_released(self, released: list[PendingAdd]) -> None:
        self._changed.set()

    def _on_missed(self, bookie_id: str, add: PendingAdd) -> None:
        if bookie_id not in self._ensemble_for(add.first_entry_id):
            return  # a late reply of a replaced bookie: another bookie has stored the entries
        # There is no retry: this client ends with the recovery, so the hole must be recorded.
        self._parts.repairs.note(
            self._ledger_id,
            add.first_entry_id,
            add.last_entry_id,
            bookie_id,
            "not stored during recovery",
        )

    def _ensemble_for(self, entry_id: int) -> tuple[str, ...]:
        for fragment in reversed(self._fragments):
            if fragment.first_entry_id <= entry_id:
                return fragment.bookies
        return self._snapshot_ensemble

    def _on_lost(self, error: LedgerError) -> None:
        self._error = error
        self._changed.set()

    def stop(self) -> None:
        """Ignore further replies."""
        self._pipeline.stop()
