"""The loss horizon on disk: the file `integrity-horizon` in every ledger directory.

It stays for the rest of the bookie's life. Layout: docs/formats/integrity.md. Calls block.
"""

import posixpath
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.bookie.errors import HorizonDamagedError
from magnetar.bookie.integrity.sealed import open_sealed, seal
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.ledger.ports import Disk

HORIZON_NAME = "integrity-horizon"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int = Field(default=1, ge=1, le=1)
    ledger_id: int
    open_ledgers: list[int]


def write_horizon(disk: Disk, directories: Sequence[str], horizon: LossHorizon) -> None:
    """Write the horizon to all directories; durable on return.

    Raises:
        OSError: the disk failed.
    """
    record = _Record(ledger_id=horizon.ledger_id, open_ledgers=sorted(horizon.open_ledgers))
    data = seal(record.model_dump_json().encode())
    for directory in directories:
        disk.replace_file(posixpath.join(directory, HORIZON_NAME), data)


def read_horizon(disk: Disk, directories: Sequence[str]) -> LossHorizon:
    """Read the horizon of the last loss, from whichever directory has it.

    Raises:
        HorizonDamagedError: copies exist, and all are damaged.
        OSError: the disk failed.
    """
    found: list[LossHorizon] = []
    damaged: list[str] = []
    for directory in directories:
        path = posixpath.join(directory, HORIZON_NAME)
        try:
            record = _Record.model_validate_json(open_sealed(disk.read_file(path)) or b"")
        except FileNotFoundError:
            continue
        except ValidationError:
            damaged.append(path)
        else:
            found.append(LossHorizon(record.ledger_id, frozenset(record.open_ledgers)))
    if damaged and not found:
        raise HorizonDamagedError(
            f"{' and '.join(damaged)} damaged, and there is no other copy: the bookie lost data "
            f"once, and this says which ledgers it may take adds for; restore it, or empty the "
            f"directories and start with integrity_stamp_missing_cookies"
        )
    return max(found, key=lambda each: each.ledger_id, default=LossHorizon())
