"""Taskiq's tasks in a topic of a real server, with Taskiq's own receiver and worker processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path

import pytest
from taskiq import AckableMessage, BrokerMessage
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError

from magnetar.sdk import Client, ConsumerSettings, InitialPosition, SubscriptionType
from magnetar.sdk.taskiq import SUBSCRIPTION, TopicBroker
from magnetar.testing import Broker
from tests.processes import ServerProcess, descendants_of, magnetar_environment
from tests.waiting import until

_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@asynccontextmanager
async def started(server: Broker, topic: str) -> AsyncIterator[TopicBroker]:
    broker = TopicBroker(server.service_url, topic)
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: TopicBroker) -> AsyncIterator[None]:
    """A worker in this process, by Taskiq's public interface."""
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def unacknowledged(server: Broker, topic: str) -> int:
    """How many tasks the subscription still has to give, read by another consumer."""
    settings = ConsumerSettings(
        subscription_type=SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST
    )
    found = 0
    async with Client(server.service_url) as client:
        consumer = await client.consumer(topic, SUBSCRIPTION, settings)
        while await consumer.receive_many(100, timeout_s=1):
            found += 1
    return found


async def test_tasks_are_carried_out_in_a_worker_that_comes_later(server: Broker) -> None:
    found: asyncio.Queue[int] = asyncio.Queue()
    async with started(server, "later") as broker:

        @broker.task(task_name="add")
        async def add(left: int, right: int) -> None:
            found.put_nowait(left + right)

        for number in range(20):
            await add.kiq(number, 1)
        async with working(broker), asyncio.timeout(_WITHIN_S):
            assert sorted([await found.get() for _ in range(20)]) == list(range(1, 21))


async def test_a_task_that_was_carried_out_does_not_come_again_even_if_it_failed(
    server: Broker,
) -> None:
    ran = asyncio.Event()
    async with started(server, "done") as broker:

        @broker.task(task_name="fail")
        async def fail() -> None:
            ran.set()
            raise ValueError("as it should")

        await fail.kiq()
        async with working(broker):
            await asyncio.wait_for(ran.wait(), _WITHIN_S)
    assert await unacknowledged(server, "done") == 0


async def test_a_task_that_was_taken_and_not_acknowledged_comes_again(server: Broker) -> None:
    async with started(server, "taken") as broker:
        await broker.kick(BrokerMessage(task_id="1", task_name="t", message=b"work", labels={}))
        tasks = broker.listen()
        taken = await asyncio.wait_for(anext(tasks), _WITHIN_S)
        assert isinstance(taken, AckableMessage)
        await tasks.aclose()
    async with started(server, "taken") as broker:
        tasks = broker.listen()
        again = await asyncio.wait_for(anext(tasks), _WITHIN_S)
        assert again.data == taken.data == b"work"
        # A worker is told to end while the task runs: it is acknowledged after the last was taken.
        await tasks.aclose()
        again.ack()
    assert await unacknowledged(server, "taken") == 0


async def test_a_task_has_its_key_and_comes_when_its_delay_is_over(server: Broker) -> None:
    async with started(server, "labels") as broker, Client(server.service_url) as client:
        reader = await client.consumer(
            "labels",
            "look",
            ConsumerSettings(
                initial_position=InitialPosition.EARLIEST,
                subscription_type=SubscriptionType.SHARED,
            ),
        )
        for name, labels in (("late", {"delay": 1.5}), ("keyed", {"key": "k"})):
            await broker.kick(
                BrokerMessage(
                    task_id=f"id-{name}", task_name=name, message=name.encode(), labels=labels
                )
            )
        first = await reader.receive(timeout_s=_WITHIN_S)
        second = await reader.receive(timeout_s=_WITHIN_S)
    assert (first.data, first.key) == (b"keyed", "k")
    assert first.properties == {"task_id": "id-keyed", "task_name": "keyed"}
    assert second.data == b"late"


@pytest.mark.parametrize("delay", ["soon", -1, float("inf"), float("nan")])
async def test_a_delay_that_is_none_is_refused(server: Broker, delay: str | float) -> None:
    async with started(server, "refused") as broker:

        @broker.task(task_name="t")
        async def task() -> None: ...

        with pytest.raises(SendTaskError) as caught:
            await task.kicker().with_labels(delay=delay).kiq()
        assert "the label delay of task t is" in str(caught.value.__cause__)


async def test_nothing_goes_before_startup(server: Broker) -> None:
    broker = TopicBroker(server.service_url, "early")
    message = BrokerMessage(task_id="1", task_name="t", message=b"", labels={})
    with pytest.raises(RuntimeError, match=r"before broker\.startup"):
        await broker.kick(message)
    with pytest.raises(RuntimeError, match=r"before broker\.startup"):
        await anext(broker.listen())


_WORKER = """
import os
from magnetar.sdk.taskiq import TopicBroker
broker = TopicBroker(os.environ["SERVER"], "killed")

@broker.task(task_name="work")
def work(name: str) -> None:
    with open(os.environ["STARTED"], "a") as started:
        started.write(f"{name}\\n")
    open(os.environ["HOLD"]).close()  # a pipe: until its other end is opened
    with open(os.environ["ENDED"], "a") as ended:
        ended.write(f"{name}\\n")
"""


async def test_a_task_of_a_worker_that_is_killed_is_carried_out_by_another(
    server: Broker, tmp_path: Path
) -> None:
    (tmp_path / "killed_jobs.py").write_text(_WORKER)
    paths = {name: tmp_path / name.lower() for name in ("STARTED", "ENDED", "HOLD")}
    os.mkfifo(paths["HOLD"])
    environment = {
        **magnetar_environment(),
        **{name: str(path) for name, path in paths.items()},
        "SERVER": server.service_url,
    }
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"

    # By `env`: as users start it, and not as a fork of this process's command server.
    command = ["env", sys.executable, "-m", "taskiq", "worker", "--workers", "1"]
    async with started(server, "killed") as broker:
        task = broker.register_task(lambda name: None, task_name="work")
        await task.kiq("job")
        manager = ServerProcess(
            [*command, "killed_jobs:broker"],
            log_path=tmp_path / "worker.log",
            is_ready=lambda _: False,
            environment=environment,
        )
        try:
            await _has(paths["STARTED"], ["job"])
            for pid in descendants_of(manager.pid):
                os.kill(pid, signal.SIGKILL)
            # Taskiq starts another worker.
            await _has(paths["STARTED"], ["job", "job"])
            with _opened(paths["HOLD"]):
                await _has(paths["ENDED"], ["job"])
        finally:
            with _opened(paths["HOLD"]):
                manager.terminate()
    assert await unacknowledged(server, "killed") == 0


def _opened(pipe: Path) -> FileIO:
    """Both ends, so that nobody waits."""
    return pipe.open("r+b", buffering=0)


async def _has(path: Path, lines: list[str]) -> None:
    await until(
        lambda: path.exists() and path.read_text().split() == lines, path.name, within_s=_WITHIN_S
    )
