"""Adds of the bookie to itself: restored entries are stored like those of any add.

They are handled as recovery adds: the same checks, storage and journal, and a reply when they are
durable. Only the reply goes to this class instead of a socket.
"""

import asyncio
from collections.abc import Sequence

from magnetar.bookie.errors import OwnAddError
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.ledger.wire import (
    PACKET_HEADER,
    Flag,
    Frame,
    FrameDecoder,
    Op,
    Status,
    encode_block,
)


class OwnRequests:
    """A connection to the request handler without a socket. One add at a time."""

    def __init__(self, handler: RequestHandler) -> None:
        self.reads_bytes = 0
        self.is_congested = False
        self._handler = handler
        self._decoder = FrameDecoder()
        self._turn = asyncio.Lock()
        self._may_try_again = asyncio.Event()
        self._replied: asyncio.Future[Frame] | None = None
        self._next_request_id = 0

    async def add(self, ledger_id: int, master_key: bytes, packets: Sequence[bytes]) -> None:
        """Store packets of a ledger, ascending by entry id; durable on return.

        Raises:
            OwnAddError: the bookie refused: read-only, full, or another key.
        """
        first = PACKET_HEADER.unpack_from(packets[0])[1]
        async with self._turn:
            self._next_request_id += 1
            body = master_key + encode_block(packets).data
            request_id = self._next_request_id
            frame = Frame(Op.ADD, False, Flag.RECOVERY, 0, request_id, ledger_id, first, body)
            replied: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
            self._replied = replied
            try:
                await self._offer(frame)
                reply = await replied
            finally:
                self._replied = None
        if reply.status != Status.OK:
            text = reply.body.decode("utf-8", "replace")
            raise OwnAddError(
                f"ledger {ledger_id}, entries from {first} on: {Status(reply.status).name} {text}"
            )

    async def _offer(self, frame: Frame) -> None:
        """Offer the frame until the handler takes it; the handler refuses adds that wait too
        long."""
        while True:
            self._may_try_again.clear()
            if self._handler.handle(self, (frame,)) == 1:
                return
            await self._may_try_again.wait()

    def close(self) -> None:
        """Close the connection: no more replies. Call it when no add is in progress."""
        self._handler.forget(self)

    # Connection interface, for the handler

    def send(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            replied = self._replied
            is_current = frame.request_id == self._next_request_id
            if replied is not None and is_current and not replied.done():
                replied.set_result(frame)

    def try_again(self) -> None:
        self._may_try_again.set()
