"""One read, asked of one replica after another until one has a good answer.

A replica that fails makes way for the next one at once; one that does not answer within the
speculative time stays in the race, and the next one is asked too. The first good answer wins. What
comes later is counted and dropped. No task and no lock: replies arrive as callbacks.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from magnetar.ledger.errors import BookieUnavailableError, LedgerError
from magnetar.ledger.reading.read_errors import READ_ERRORS, worst_error
from magnetar.ledger.wire import Frame

T = TypeVar("T")

OnReply = Callable[[Frame | BookieUnavailableError], None]


@dataclass(slots=True)
class ReadCounts:
    """What happened to the reads of a client. They only grow."""

    speculative_reads: int = 0
    """Requests to another replica because one was slow."""
    late_replies: int = 0
    """Replies that came after the read was done."""


class ReplicaRead(Generic[T]):
    """Use once: `await run()`."""

    def __init__(
        self,
        bookies: Sequence[str],
        *,
        ledger_id: int,
        entry_id: int,
        send: Callable[[str, OnReply], None],
        judge: Callable[[str, Frame], T],
        on_failed: Callable[[str, LedgerError | None], None],
        counts: ReadCounts,
        speculative_s: float,
    ) -> None:
        """
        Args:
            bookies: whom to ask, in this order.
            send: sends the request to a bookie.
            judge: makes the result of a reply, or raises one of `READ_ERRORS`.
            on_failed: a bookie failed, or was slow (None).
            speculative_s: how long to wait for one before the next one is asked too; 0: for ever.
        """
        self._bookies = bookies
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._send = send
        self._judge = judge
        self._on_failed = on_failed
        self._counts = counts
        self._speculative_s = speculative_s
        self._asked = 0
        self._outstanding = 0
        self._errors: list[LedgerError] = []
        self._future: asyncio.Future[tuple[str, T]] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> tuple[str, T]:
        """The bookie that had a good answer, and the answer.

        Raises:
            NoSuchEntryError: every replica is certain not to have it.
            BookieUnavailableError, DigestMismatchError, BookieProtocolError: as in `worst_error`.
        """
        self._ask_next()
        try:
            return await self._future
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _ask_next(self) -> None:
        bookie_id = self._bookies[self._asked]
        self._asked += 1
        self._outstanding += 1

        def on_reply(reply: Frame | BookieUnavailableError) -> None:
            self._on_reply(bookie_id, reply)

        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._speculative_s and self._asked < len(self._bookies):
            self._timer = asyncio.get_running_loop().call_later(
                self._speculative_s, self._on_slow, bookie_id
            )
        self._send(bookie_id, on_reply)

    def _on_slow(self, bookie_id: str) -> None:
        self._timer = None
        if self._future.done():
            return
        self._counts.speculative_reads += 1
        self._on_failed(bookie_id, None)
        self._ask_next()

    def _on_reply(self, bookie_id: str, reply: Frame | BookieUnavailableError) -> None:
        self._outstanding -= 1
        if self._future.done():
            self._counts.late_replies += 1
            return
        try:
            if isinstance(reply, BookieUnavailableError):
                raise reply
            result = self._judge(bookie_id, reply)
        except READ_ERRORS as error:
            self._errors.append(error)
            self._on_failed(bookie_id, error)
            if self._asked < len(self._bookies):
                self._ask_next()
            elif self._outstanding == 0:
                self._future.set_exception(
                    worst_error(self._errors, self._ledger_id, self._entry_id)
                )
        except Exception as error:  # noqa: BLE001  # a bug: for the caller, who would wait for ever
            self._future.set_exception(error)
        else:
            self._future.set_result((bookie_id, result))
