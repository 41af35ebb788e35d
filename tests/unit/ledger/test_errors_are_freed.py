"""An error that is caught is freed at once: it keeps nothing until a collection of cycles.

What does not exist is asked for all the time; each such error would keep its frames, and what these
hold, for minutes.
"""

import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from magnetar.bookie.engine.read_lanes import CallBatches
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import ThreadWorker
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    await opened.create("/there", b"")
    yield opened
    await opened.close()


@pytest.fixture
async def worker() -> AsyncIterator[ThreadWorker]:
    made = ThreadWorker("test")
    yield made
    made.close()


async def is_freed(call: Callable[[], Awaitable[object]]) -> None:
    """The error of a call goes with the handler that caught it."""
    caught: list[weakref.ref[BaseException]] = []
    try:
        await call()
    except Exception as error:  # noqa: BLE001  # any
        caught.append(weakref.ref(error))
    await until(lambda: caught[0]() is None, "it is freed")  # its thread may still hold it


class Missing(LookupError):
    pass


def fail() -> None:
    raise Missing


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("/not/there"),
        lambda store: store.children("/not/there"),
        lambda store: store.create("/there", b""),
        lambda store: store.create("/there", b"", ephemeral=True),
        lambda store: store.set("/there", b"", version=7),
        lambda store: store.delete("/not/there"),
    ],
)
async def test_errors_of_the_metadata_store_are_freed(
    store: MetadataStore, call: Callable[[MetadataStore], Awaitable[object]]
) -> None:
    await is_freed(lambda: call(store))


async def test_errors_of_a_worker_are_freed(worker: ThreadWorker) -> None:
    await is_freed(lambda: worker.run(fail))


async def test_errors_of_calls_in_batches_are_freed(worker: ThreadWorker) -> None:
    batches = CallBatches(calls_max=3)
    await is_freed(lambda: batches.run(worker, fail))
