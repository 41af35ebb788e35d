"""Waiting until something has changed that may be anything."""

import asyncio


class Changes:
    """Tells everybody who waits. Take a `ticket` before looking, and `wait` with it after."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def ticket(self) -> "asyncio.Future[None]":
        """Stands for the next change after this call."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def tell(self) -> None:
        """Something has changed."""
        changed, self._next = self._next, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def wait(self, ticket: "asyncio.Future[None]", timeout_s: float) -> None:
        """Return after the change that the ticket stands for, or when the time is over."""
        await asyncio.wait([ticket], timeout=max(0.0, timeout_s))
