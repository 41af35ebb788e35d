"""The local consistency check at a start: all stored data is read before it is served.

It is optional, since it reads the whole disk. Damage does not keep the bookie from starting:
damaged entries are I/O errors, as for any read, and go to the healer.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.integrity.local_check import LocalCheck
from magnetar.ledger.ports import Disk, Worker

_log = structlog.get_logger(__name__)

_STEP_RECORDS_MAX = 1024
_STEP_BYTES_MAX = 16 << 20
_DAMAGES_MAX = 100_000
"""Maximum number of damages that are kept; the scrubber finds the others again."""


async def check_everything(
    shards: Sequence[EntryStorage], disk: Disk, make_worker: Callable[[str], Worker]
) -> list[Damage]:
    """Read everything that the indexes of open storages list; return the damage.

    Raises:
        StorageIOError: an index, or a file, cannot be read at all: the bookie must not start.
    """
    damages: list[Damage] = []
    records = size = 0
    worker = make_worker("bookie-start-check")
    try:
        for shard in shards:
            check = LocalCheck(shard.maintenance.index, shard.maintenance.directory, disk)
            ledgers = array("q", shard.ledger_ids())
            at, entry_id = 0, 0
            while at < len(ledgers):
                step = await worker.run(
                    partial(
                        check.check_ledgers,
                        ledgers,
                        at,
                        entry_id,
                        records_max=_STEP_RECORDS_MAX,
                        bytes_max=_STEP_BYTES_MAX,
                    )
                )
                at, entry_id = step.at, step.next_entry_id
                damages += step.damages[: _DAMAGES_MAX - len(damages)]
                records += step.records
                size += step.bytes
    finally:
        worker.close()
    _log.info("everything_checked", records=records, bytes=size, damages=len(damages))
    return damages
