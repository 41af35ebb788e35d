"""The ledgers that one log makes and removes.

The next ledger is created ahead of its use and is a *spare* until the list names it. A spare whose
place in the list is uncertain is never deleted (rule 1.3), and a creation whose caller has gone is
still waited for when the log closes, so that it leaves no ledger behind (rule 3.3).
"""

import asyncio

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.writer import LedgerWriter

log = structlog.get_logger()


class LogLedgers:
    """Creates and deletes the ledgers of one log."""

    def __init__(self, client: LedgerClient, path: str, config: LogConfig) -> None:
        self._client = client
        self._path = path
        self._config = config
        self._spare: asyncio.Task[LedgerWriter] | None = None

    def set_quorums(self, *, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Ledgers that are created from now on have these; a spare that is there stays."""
        changed = {
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
        }
        self._config = LogConfig.model_validate({**self._config.model_dump(), **changed})

    async def create(self) -> LedgerWriter:
        """
        Raises:
            NotEnoughBookiesError, MetadataError
        """
        return await self._client.create(
            ensemble_size=self._config.ensemble_size,
            write_quorum=self._config.write_quorum,
            ack_quorum=self._config.ack_quorum,
            password=self._config.password,
            custom_metadata={"component": "managed-log", "log": self._path},
        )

    async def delete(self, ledger_id: int) -> bool:
        """Delete a ledger that nobody refers to; False: that failed, which leaves an orphan."""
        try:
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            log.warning(
                "ledger_left_behind", path=self._path, ledger_id=ledger_id, error=str(error)
            )
            return False
        return True

    async def discard(self, writer: LedgerWriter) -> None:
        """Withdraw from a ledger that is no longer in the list, and delete it."""
        try:
            await writer.close(force=True)
        except LedgerError:
            writer.abandon()  # it goes either way
        await self.delete(writer.ledger_id)

    async def take_spare(self) -> LedgerWriter:
        """The next ledger, which stays the spare until `spare_listed`.

        Raises:
            NotEnoughBookiesError, MetadataError
        """
        if self._spare is None:
            self._spare = asyncio.get_running_loop().create_task(
                self.create(), name=f"create-ledger-{self._path}"
            )
        spare = self._spare
        try:
            return await asyncio.shield(spare)
        except LedgerError:
            if self._spare is spare:
                self._spare = None
            raise

    def spare_listed(self) -> None:
        """The list names it now: it is no spare any more."""
        self._spare = None

    async def find_spare(self) -> LedgerWriter | None:
        """The spare, if there is one, once it is created. It stays the spare."""
        if self._spare is None:
            return None
        try:
            return await self.take_spare()
        except LedgerError:
            return None

    async def take_away_spare(self) -> LedgerWriter | None:
        """The spare, if there is one, once it is created; the caller decides what becomes of it."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            return await spare
        except LedgerError:
            return None
