"""Reads the ledger states of an index that may be damaged, as many as there are."""

from typing import NamedTuple

from magnetar.bookie.errors import StorageError
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.indexes.key_value import MakeKeyValue
from magnetar.bookie.indexes.ledger_state import check_state
from magnetar.bookie.indexes.open_index import index_path, open_index_to_read
from magnetar.bookie.indexes.pages.page_files import PageFiles
from magnetar.ledger.ports import Disk


class SalvagedStates(NamedTuple):
    """Ledger states, encoded, by ledger."""

    states: dict[int, bytes]
    are_complete: bool
    """None is missing, and none is older than it was promised to be."""


def salvage_states(directory: str, *, disk: Disk, open_key_value: MakeKeyValue) -> SalvagedStates:
    """The states that can be read from the index in `directory`; nothing is written.

    Raises:
        OSError: a directory that is there cannot be listed.
    """
    try:
        index = open_index_to_read(directory, disk=disk, open_key_value=open_key_value)
        try:
            return SalvagedStates(dict(index.states()), True)
        finally:
            index.close()
    except (StorageError, OSError):
        return SalvagedStates(_page_states(directory, "interleaved", disk), False)


def _page_states(directory: str, engine: EngineKind, disk: Disk) -> dict[int, bytes]:
    """Page files stand for themselves: what damages one leaves the others readable."""
    states: dict[int, bytes] = {}
    files = PageFiles(index_path(directory, engine), open_files_max=1, disk=disk)
    try:
        for ledger_id in files.list_ledgers():
            try:
                state = files.read_header(ledger_id).state
                if state:
                    check_state(state)
                    states[ledger_id] = state
            except StorageError:
                continue  # it is lost; the caller knows that not all are here
    finally:
        files.close()
    return states
