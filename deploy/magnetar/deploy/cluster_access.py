"""Access of tools to a cluster: its metadata store and its bookies, open while a tool works."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.deploy.links import link_network
from magnetar.deploy.options import Sources
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock


@asynccontextmanager
async def opened_store(url: str, sources: Sources) -> AsyncIterator[MetadataStore]:
    """Open the metadata store of a cluster.

    Raises:
        MetadataError
    """
    store = await open_store(url, settings=sources.component(MetadataSettings, "metadata"))
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def started_client(
    store: MetadataStore, sources: Sources, *, root: str
) -> AsyncIterator[LedgerClient]:
    """Start a client of a cluster's bookies.

    Args:
        root: path of the cluster in the metadata store; the client follows its layout.

    Raises:
        LedgerError, MetadataError
    """
    settings = sources.component(LedgerSettings, "ledger", {})
    client = LedgerClient(
        store,
        network=link_network(settings),
        clock=SystemClock(),
        random=random.SystemRandom(),
        settings=settings,
        root=root,
        follows_root=True,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()
