"""Starts a server on a metadata store, and retries if the store goes away meanwhile.

A start takes many steps on the store: registration, layouts, election. A start that ended at the
first unanswered step would fail most often when a whole cluster starts at once. Opening the store
has a time limit of its own.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import structlog

from magnetar.deploy.options import Sources
from magnetar.ledger.errors import (
    MetadataUnavailableError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store

_log = structlog.get_logger(__name__)

STARTS_MAX = 5
"""Most starts that are tried, each on its own session."""

_PASSING = (MetadataUnavailableError, SessionExpiredError, UnknownOutcomeError)


async def metadata_store(url: str, sources: Sources) -> MetadataStore:
    """Open the metadata store of a server.

    Raises:
        MetadataError
    """
    return await open_store(url, settings=sources.component(MetadataSettings, "metadata"))


async def start_on(
    open_its_store: Callable[[], Awaitable[MetadataStore]],
    start: Callable[[MetadataStore, AsyncExitStack], Awaitable[None]],
) -> AsyncExitStack:
    """Open the store and start on it. Return the stack of what is open, the store first.

    `start` puts what it opens on the stack, which is closed if the start fails.

    Raises:
        MetadataError: the store cannot be opened, or went away in each of `STARTS_MAX` starts.
    """
    tries = 1
    while True:
        async with AsyncExitStack() as opened:
            store = await open_its_store()
            opened.push_async_callback(store.close)
            try:
                await start(store, opened)
            except _PASSING as error:
                if tries == STARTS_MAX:
                    raise
                _log.warning("start_tried_again", tries=tries, error=str(error))
                tries += 1
                continue
            return opened.pop_all()
