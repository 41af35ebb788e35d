"""What a cursor needs of the ledger client and of the log. `LedgerClient` and `ManagedLog` fit."""

from typing import Protocol

from magnetar.cursors.ack_state import LogShape


class CursorLog(LogShape, Protocol):
    """The log that a cursor moves on."""

    @property
    def path(self) -> str:
        """Node of the log in the metadata store; cursors are its children."""
        ...

    async def check_owned(self) -> None:
        """Look at the store whether the log is still ours.

        Raises:
            LogFencedError: another owner has taken it over.
            MetadataError: that cannot be told now.
        """
        ...


class RecordWriter(Protocol):
    """An open cursor ledger."""

    @property
    def ledger_id(self) -> int: ...

    async def add(self, payload: bytes) -> int: ...

    async def close(self) -> object: ...


class RecordReader(Protocol):
    """A closed cursor ledger."""

    @property
    def last_add_confirmed(self) -> int: ...

    async def read(self, first: int, last: int) -> list[bytes]: ...


class CursorLedgers(Protocol):
    """Creates, recovers and deletes cursor ledgers; errors are those of the ledger component."""

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        password: bytes | None = None,
        custom_metadata: dict[str, str] | None = None,
    ) -> RecordWriter: ...

    async def open_and_recover(self, ledger_id: int) -> RecordReader: ...

    async def delete(self, ledger_id: int) -> None: ...
