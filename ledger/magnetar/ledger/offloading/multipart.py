"""One object that is uploaded to a bucket in parts, while its pieces are made.

obstore asks for the pieces in tasks of its own. The pieces are nevertheless made in the caller's
task: an iterator may hold timeouts and task groups across its yields, and those belong to one task.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import obstore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

PARTS_IN_FLIGHT_MAX = 4


class Upload:
    """A multipart upload that is under way.

    It holds at most `PARTS_IN_FLIGHT_MAX` parts that are being sent, one that is being filled, and
    two pieces.
    """

    def __init__(self, bucket: "Bucket", path: str, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._handover = _Handover()
        self._upload = asyncio.ensure_future(
            obstore.put_async(
                bucket,
                path,
                self._handover,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=PARTS_IN_FLIGHT_MAX,
            )
        )
        self._upload.add_done_callback(lambda _: self._handover.close())

    async def give_all(self, first: Sequence[bytes], rest: AsyncIterator[bytes]) -> int:
        """Hand over all pieces, unless the upload fails before. Return the number of bytes handed
        over.

        Raises:
            Every error of the iterator; the caller must then abandon the upload.
        """
        given_bytes = 0
        for piece in first:
            given_bytes += await self._give(piece)
        async for piece in rest:
            given_bytes += await self._give(piece)
            if self._upload.done():
                break
        await self._handover.give(None)
        return given_bytes

    async def wait_end(self) -> BaseException | None:
        """Wait until the object exists; return obstore's error if the upload fails."""
        # Not awaited directly: cancelling the caller would cancel the upload, and leave its parts.
        await asyncio.wait({self._upload})
        return self._upload.exception()

    async def abandon(self, timeout_s: float) -> None:
        """Make the store drop the parts that it has. After the timeout they stay there, invisible,
        until the bucket's lifecycle rule removes them."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._handover.give(_AbandonedError())
                await asyncio.wait({self._upload})
        except TimeoutError:
            self._upload.cancel()
            return
        if not self._upload.cancelled():
            self._upload.exception()  # retrieved, so that asyncio does not log it

    async def _give(self, piece: bytes) -> int:
        # obstore counts the parts in flight once per piece, so no piece is larger than a part.
        if len(piece) <= self._part_bytes:
            await self._handover.give(piece)
        else:
            for at in range(0, len(piece), self._part_bytes):
                await self._handover.give(memoryview(piece)[at : at + self._part_bytes])
        return len(piece)


class _AbandonedError(Exception):
    """Passed to obstore in place of a piece: it aborts the upload."""


class _Handover:
    """Asynchronous iterator of pieces that are handed over one at a time."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._is_closed = False
        self._answer: asyncio.Future[bytes | memoryview | None] | None = None

    def __aiter__(self) -> "_Handover":
        return self

    async def __anext__(self) -> bytes | memoryview:
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.set()
        piece = await self._answer
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def give(self, what: bytes | memoryview | Exception | None) -> None:
        """Hand over a piece, an error, or None for the end, once obstore asks for it; do nothing if
        the upload has ended."""
        await self._asked.wait()
        if self._is_closed or self._answer is None or self._answer.done():
            return
        self._asked.clear()
        if isinstance(what, Exception):
            self._answer.set_exception(what)
        else:
            self._answer.set_result(what)

    def close(self) -> None:
        """End the iterator: the upload has ended, and asks for no more pieces."""
        self._is_closed = True
        self._asked.set()
        if self._answer is not None:
            self._answer.cancel()  # obstore may still wait for it if the upload was cancelled
