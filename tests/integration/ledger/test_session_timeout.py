"""The session timeout that counts is the one that the ZooKeeper server grants."""

from magnetar.ledger.metadata import MetadataSettings, open_store
from tests.zookeeper_fixture import ZooKeeper


async def test_a_server_that_shortens_the_timeout_is_believed(zookeeper: ZooKeeper) -> None:
    """A lease that is counted by the timeout that was asked for would outlive its session."""
    asked_ms = 1_000_000  # more than the settings let anybody ask for
    settings = MetadataSettings().model_copy(update={"session_timeout_ms": asked_ms})
    store = await open_store(f"{zookeeper.url}/granted", settings=settings)
    try:
        assert 0 < store.session_timeout_ms < asked_ms
    finally:
        await store.close()


async def test_a_server_that_lengthens_the_timeout_is_believed(zookeeper: ZooKeeper) -> None:
    store = await open_store(
        f"{zookeeper.url}/granted", settings=MetadataSettings(session_timeout_ms=300)
    )
    try:
        assert store.session_timeout_ms > 300
    finally:
        await store.close()


async def test_what_lies_between_the_servers_bounds_is_granted(zookeeper: ZooKeeper) -> None:
    store = await open_store(
        f"{zookeeper.url}/granted", settings=MetadataSettings(session_timeout_ms=5_000)
    )
    try:
        assert store.session_timeout_ms == 5_000
    finally:
        await store.close()
