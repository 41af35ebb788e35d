"""Single requests to bookies: awaited, and what their replies mean.

For reads and control requests; adds go through `add_pipeline.py`.
"""

import asyncio
from functools import partial

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.errors import (
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    UnauthorizedError,
)
from magnetar.ledger.wire import EntryBlock, Frame, Status, decode_block

_LAC_BYTES = 8


async def ask(
    channels: ChannelPool,
    bookie_id: str,
    op: int,
    body: bytes,
    *,
    ledger_id: int,
    entry_id: int = -1,
    flags: int = 0,
) -> Frame:
    """One request, awaited.

    Raises:
        BookieUnavailableError: no reply.
    """
    future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
    on_reply = partial(_settle, future)
    channels.get(bookie_id).send(
        op, (body,), on_reply, ledger_id=ledger_id, entry_id=entry_id, flags=flags
    )
    try:
        return await future
    finally:
        del future, on_reply  # Its error knows this frame: they would keep each other.


def _settle(future: "asyncio.Future[Frame]", reply: Frame | BookieUnavailableError) -> None:
    if future.done():
        return
    if isinstance(reply, BookieUnavailableError):
        future.set_exception(reply)
    else:
        future.set_result(reply)


def read_reply_block(frame: Frame, bookie_id: str) -> EntryBlock:
    """The entries of a READ reply.

    The LAC that the reply begins with is left alone. No digest protects it, and who reads up to it
    because a damaged or lying bookie says so sees entries that may vanish (invariant I5). So it is
    a hint at most, and whoever wants a higher LAC asks for one that is proven (`read_bound.py`).

    Raises:
        NoSuchEntryError, NoSuchLedgerOnBookieError: explicit negatives.
        UnauthorizedError: the key that was shown is not the ledger's.
        BookieUnavailableError: anything else that is not OK (unknown).
        BookieProtocolError: the body is malformed.
    """
    check_status(frame, bookie_id)
    return decode_block(frame.body[_LAC_BYTES:])


def check_status(frame: Frame, bookie_id: str) -> None:
    """
    Raises:
        NoSuchEntryError, NoSuchLedgerOnBookieError: explicit negatives.
        UnauthorizedError: the key that was shown is not the ledger's.
        BookieUnavailableError: anything else that is not OK (unknown).
    """
    if frame.status == Status.OK:
        return
    where = f"bookie {bookie_id}: ledger {frame.ledger_id}, entry {frame.entry_id}"
    if frame.status == Status.NO_SUCH_ENTRY:
        raise NoSuchEntryError(f"{where}: no such entry")
    if frame.status == Status.NO_SUCH_LEDGER:
        raise NoSuchLedgerOnBookieError(f"{where}: no such ledger")
    text = frame.body.decode("utf-8", "replace")
    if frame.status == Status.UNAUTHORIZED:
        raise UnauthorizedError(f"{where}: the ledger's password does not fit: {text}")
    raise BookieUnavailableError(f"{where}: status {frame.status} {text}")
