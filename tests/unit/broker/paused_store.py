"""A metadata store that stands still before one of its calls, for stories about two requests."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from magnetar.ledger.metadata.store import MetadataStore


class PausedStore:
    """A handle on a store whose call number `at` waits until the test lets it go on."""

    def __init__(self, store: MetadataStore, at: int) -> None:
        self._store = store
        self._left = at
        self.is_waiting = asyncio.Event()
        self.may_go_on = asyncio.Event()

    @property
    def store(self) -> MetadataStore:
        """Return the store under the type of the metadata store that it replaces."""
        return cast(MetadataStore, self)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        return partial(self._called, call) if asyncio.iscoroutinefunction(call) else call

    async def _called(self, call: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            self.is_waiting.set()
            await self.may_go_on.wait()
        return await call(*args, **named)

    async def waits_in(self, request: "asyncio.Task[Any]") -> bool:
        """Wait until a request has come to the call, or has ended; return whether it waits now."""
        waiting = asyncio.ensure_future(self.is_waiting.wait())
        await asyncio.wait([waiting, request], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self.is_waiting.is_set() and not request.done()
