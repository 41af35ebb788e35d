"""Reads of objects for runs of the steps, in the plainest way: footer and run for each read.

How the product reads them has its own properties (tests/property/ledger/offloading).
"""

import json

from magnetar.ledger.digest import codec_for
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.offloading.object_format import ObjectName, open_run
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.offloading.offloader import read_footer
from magnetar.ledger.ports import ObjectPlace


class PlainLedger:
    """`ObjectLedger`, with nothing kept."""

    def __init__(self, store: ObjectStore, place: ObjectPlace, metadata: LedgerMetadata) -> None:
        self._store, self._place, self._metadata = store, place, metadata

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        name = ObjectName(self._place.ledger_id, bytes.fromhex(self._place.attempt))
        footer = await read_footer(self._store, self._place.key, name)
        number = footer.run_of(first)
        run = footer.runs[number]
        data = await self._store.get(self._place.key, run.offset, run.offset + run.size_bytes)
        block = open_run(data, footer, number)
        payloads, error = codec_for(self._metadata).open_payloads(
            block, run.first_entry_id, run.entries
        )
        assert error is None
        return payloads[first - run.first_entry_id : last + 1 - run.first_entry_id]

    def entries_after(self, publish_ms: int) -> range:
        raise NotImplementedError("nobody looks for a time in these runs")

    async def close(self) -> None:
        pass


class PlainLedgers:
    """`ObjectLedgers`, out of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def open(self, place: ObjectPlace, *, password: bytes) -> PlainLedger:
        name = ObjectName(place.ledger_id, bytes.fromhex(place.attempt))
        footer = await read_footer(self._store, place.key, name)
        described = {"password": "", **footer.description.ledger}
        return PlainLedger(
            self._store, place, LedgerMetadata.from_json(json.dumps(described).encode())
        )
