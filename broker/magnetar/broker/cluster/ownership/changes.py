"""Waiting for an unspecified change."""

import asyncio


class Changes:
    """Notifies all waiters of a change. Take a `ticket` before checking, and `wait` with it
    afterwards."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def ticket(self) -> "asyncio.Future[None]":
        """Return a future for the next change after this call."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def tell(self) -> None:
        """Report a change to all waiters."""
        changed, self._next = self._next, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def wait(self, ticket: "asyncio.Future[None]", timeout_s: float) -> None:
        """Return after the change that resolves the ticket, or when the time is over."""
        await asyncio.wait([ticket], timeout=max(0.0, timeout_s))
