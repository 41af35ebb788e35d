"""A ledger client that writes down which states of cursors it has made durable."""

from typing import cast

from magnetar.cursors.record import decode_record
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.writer import LedgerWriter
from tests.simulation.cluster.events import CursorSaved
from tests.simulation.history import History
from tests.simulation.loop import SimLoop

_CURSOR = "cursor"


class RecordedClient(LedgerClient):
    """The real client; `record_to` is called before it is used."""

    def record_to(self, history: History, loop: SimLoop, actor: str) -> None:
        self._history, self._loop, self._actor = history, loop, actor

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = None,
        custom_metadata: dict[str, str] | None = None,
    ) -> LedgerWriter:
        writer = await super().create(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom_metadata=custom_metadata,
        )
        if not custom_metadata or custom_metadata.get("component") != _CURSOR:
            return writer
        return cast(LedgerWriter, _CursorWriter(self, writer, custom_metadata))

    def on_cursor_saved(self, names: dict[str, str], ledger_id: int, payload: bytes) -> None:
        record = decode_record(payload)
        snapshot = record.snapshot
        event = CursorSaved(
            names["log"],
            names["cursor"],
            ledger_id,
            (snapshot.mark_delete.ledger_id, snapshot.mark_delete.entry_id),
            tuple(
                (each.ledger_id, each.first_entry_id, each.last_entry_id)
                for each in snapshot.ranges
            ),
            tuple(sorted(record.position_properties.items())),
        )
        self._history.add(self._loop.time(), self._actor, event)


class _CursorWriter:
    """The writer of a cursor ledger."""

    def __init__(self, client: RecordedClient, writer: LedgerWriter, names: dict[str, str]) -> None:
        self._client = client
        self._writer = writer
        self._names = names

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    async def add(self, payload: bytes) -> int:
        entry_id = await self._writer.add(payload)
        self._client.on_cursor_saved(self._names, self._writer.ledger_id, payload)
        return entry_id

    async def close(self) -> object:
        return await self._writer.close()

    def abandon(self) -> None:
        self._writer.abandon()
