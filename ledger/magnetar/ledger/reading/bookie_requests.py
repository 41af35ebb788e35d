"""Single requests to bookies, as awaitables, and the meaning of their replies.

For reads and control requests; `add_pipeline.py` sends adds.
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
    """Send one request and wait for its reply.

    Raises:
        BookieUnavailableError: there was no reply.
    """
    future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
    on_reply = partial(_settle, future)
    channels.get(bookie_id).send(
        op, (body,), on_reply, ledger_id=ledger_id, entry_id=entry_id, flags=flags
    )
    try:
        return await future
    finally:
        del future, on_reply  # The error refers to this frame: they would keep each other alive.


def _settle(future: "asyncio.Future[Frame]", reply: Frame | BookieUnavailableError) -> None:
    if future.done():
        return
    if isinstance(reply, BookieUnavailableError):
        future.set_exception(reply)
    else:
        future.set_result(reply)


def read_reply_block(frame: Frame, bookie_id: str) -> EntryBlock:
    """Return the entries of a READ reply.

    The LAC at the start of the reply is ignored, since no digest protects it. A reader that trusts
    a damaged or lying bookie could read entries that may vanish (invariant I5). That LAC is only a
    hint: a reader that wants a higher LAC requests one that is proven (`read_bound.py`).

    Raises:
        NoSuchEntryError, NoSuchLedgerOnBookieError: explicit negatives.
        UnauthorizedError: the key in the request is not the ledger's.
        BookieUnavailableError: any other status that is not OK (unknown).
        BookieProtocolError: the body is malformed.
    """
    check_status(frame, bookie_id)
    return decode_block(frame.body[_LAC_BYTES:])


def check_status(frame: Frame, bookie_id: str) -> None:
    """Raise the error that a reply's status means; return if it is OK.

    Raises:
        NoSuchEntryError, NoSuchLedgerOnBookieError: explicit negatives.
        UnauthorizedError: the key in the request is not the ledger's.
        BookieUnavailableError: any other status that is not OK (unknown).
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
