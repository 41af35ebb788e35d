"""Reads the last add confirmed (LAC) of a ledger that another client may be writing.

All members of the last ensemble are asked. The result is the highest LAC that any of them proves,
once enough have answered: in every write set at least Qw - Qa + 1 members gave an OK or an explicit
negative (`Coverage`). A bookie's "no such ledger" says that this bookie has nothing, not that the
ledger is empty (rule 9.5, defect D5b). An error or a damaged packet proves nothing (D5a).
"""

import asyncio

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import PacketCodec, read_key
from magnetar.ledger.errors import BookieUnavailableError, LedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.quorum import Coverage
from magnetar.ledger.reading.bookie_requests import check_status
from magnetar.ledger.reading.read_bound import proven_lac
from magnetar.ledger.reading.read_errors import READ_ERRORS, is_negative
from magnetar.ledger.wire import Frame, Op
from magnetar.ledger.wire_bodies import decode_lac_reply


class LacRead:
    """One read of the LAC. Use once: `await run()`."""

    def __init__(
        self,
        channels: ChannelPool,
        metadata: LedgerMetadata,
        codec: PacketCodec,
        *,
        enough_above: int | None,
    ) -> None:
        """Prepare a read.

        Args:
            enough_above: return the first LAC above this one; None: wait for coverage.
        """
        self._channels = channels
        self._codec = codec
        self._key = read_key(metadata.password)
        self._ledger_id = metadata.ledger_id
        self._bookies = metadata.last_fragment.bookies
        self._enough_above = enough_above
        self._coverage = Coverage(
            ensemble_size=metadata.ensemble_size,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
        )
        self._outstanding = len(self._bookies)
        self._heard = -1
        self._failures: list[str] = []
        self._future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Return the highest LAC that was proven; -1 if there is none.

        Raises:
            BookieUnavailableError: too few members answered to tell.
        """
        for index, bookie_id in enumerate(self._bookies):
            self._ask(index, bookie_id)
        return await self._future

    def _ask(self, index: int, bookie_id: str) -> None:
        def on_reply(reply: Frame | BookieUnavailableError) -> None:
            self._outstanding -= 1
            if not self._future.done():
                self._on_reply(index, bookie_id, reply)

        self._channels.get(bookie_id).send(
            Op.READ_LAC, (self._key,), on_reply, ledger_id=self._ledger_id
        )

    def _on_reply(self, index: int, bookie_id: str, reply: Frame | BookieUnavailableError) -> None:
        try:
            self._judge(index, bookie_id, reply)
        except READ_ERRORS as error:
            self._note(index, bookie_id, error)
        except Exception as error:  # noqa: BLE001  # a bug: for the caller, who would wait for ever
            self._future.set_exception(error)
            return
        is_enough = self._enough_above is not None and self._heard > self._enough_above
        if is_enough or self._coverage.is_covered:
            self._future.set_result(self._heard)
        elif self._outstanding == 0:
            self._future.set_exception(
                BookieUnavailableError(
                    f"ledger {self._ledger_id}: only {len(self._coverage.confirmed)} of "
                    f"{len(self._bookies)} bookies told their last add confirmed; "
                    f"{'; '.join(self._failures)}"
                )
            )

    def _judge(self, index: int, bookie_id: str, reply: Frame | BookieUnavailableError) -> None:
        if isinstance(reply, BookieUnavailableError):
            raise reply
        check_status(reply, bookie_id)
        proven = proven_lac(self._codec, decode_lac_reply(reply.body))
        self._heard = max(self._heard, proven.last_add_confirmed)
        if proven.error is not None:
            raise proven.error
        self._coverage.confirm(index)

    def _note(self, index: int, bookie_id: str, error: LedgerError) -> None:
        if is_negative(error):
            self._coverage.confirm(index)
        else:
            self._failures.append(f"bookie {bookie_id}: {error}")
