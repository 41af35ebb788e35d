"""Taskiq broker: tasks are messages of a topic, and workers share one of its subscriptions.

`TopicBroker` extends `taskiq.AsyncBroker` and needs the extra `taskiq` (`pip install
'magnetar[taskiq]'`). Nothing else of the SDK imports this module.

    broker = TopicBroker("pulsar://127.0.0.1:6650", "jobs")

    @broker.task
    async def add(left: int, right: int) -> int: ...

    await broker.startup(); await add.kiq(1, 2)     # and elsewhere: taskiq worker MODULE:broker

A task is stored when `kiq` returns. The subscription is created with the topic, so that tasks wait
for the first worker. A worker acknowledges a task when Taskiq says so: by default when its result
is saved, even if it failed. If a worker ends before that, its tasks are delivered to another one: a
task may run twice. Results are not stored here: use one of Taskiq's result backends.

Task labels that this broker supports: `delay`, in seconds, until workers get the task; `key`, the
key of the message.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import CorruptMessageError, SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.producer import Producer
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    SubscriptionType,
)

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ModuleNotFoundError as error:
    if error.name != "taskiq":
        raise
    raise ModuleNotFoundError(
        "magnetar.sdk.taskiq needs the package taskiq: pip install 'magnetar[taskiq]'",
        name="taskiq",
    ) from error

DELAY = "delay"
KEY = "key"
SUBSCRIPTION = "taskiq"
TASKS_AHEAD = 10
"""Tasks that a worker holds, including running ones. Further tasks go to other workers."""


class TopicBroker(AsyncBroker):
    """Sends tasks to a topic, and gives them to workers.

    A broker belongs to one event loop: call `startup` before the first task, `shutdown` at the end.
    """

    def __init__(
        self,
        service_url: str,
        topic: str,
        *,
        subscription: str = SUBSCRIPTION,
        client: ClientSettings | None = None,
        producer: ProducerSettings | None = None,
        consumer: ConsumerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take the topic and its settings. Connects at `startup`.

        Args:
            subscription: the subscription that workers share.
            client: credentials, TLS, time limits.
            producer: by default each task is an entry of its own, so that it is delivered and
                acknowledged alone. `initial_subscription` is always `subscription`.
            consumer: by default Shared, from the earliest task, with `TASKS_AHEAD` tasks.
            clock: gives the time from which a delay is counted.
        """
        super().__init__()
        self._topic = topic
        self._subscription = subscription
        self._url, self._settings = service_url, client
        self._producing = replace(
            producer or ProducerSettings(batching=False), initial_subscription=subscription
        )
        self._consuming = consumer or ConsumerSettings(
            subscription_type=SubscriptionType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            receiver_queue_messages=TASKS_AHEAD,
        )
        self._clock = clock or SystemClock()
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    async def startup(self) -> None:
        """Connect, then do Taskiq's own startup.

        Raises:
            SdkError: the URL or the topic cannot be used.
        """
        if self._client is None:
            self._client = Client(self._url, self._settings)
            try:
                self._producer = await self._client.producer(self._topic, self._producing)
            except BaseException:
                await self._close()
                raise
        await super().startup()

    async def shutdown(self) -> None:
        """Do Taskiq's own shutdown, then close. Unacknowledged tasks are delivered again."""
        try:
            await super().shutdown()
        finally:
            await self._close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; it is stored when this returns.

        Raises:
            ValueError: the label `delay` is not a number of seconds from 0 on.
            RuntimeError: `startup` was not called.
            SdkError: see `Producer.send`.
        """
        if self._producer is None:
            raise RuntimeError(f"no task can be sent to {self._topic} before broker.startup()")
        key = message.labels.get(KEY)
        await self._producer.send(
            message.message,
            key=None if key is None else str(key),
            properties={"task_id": message.task_id, "task_name": message.task_name},
            deliver_at_ms=self._due_ms(message),
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks, each with a function that acknowledges it.

        The consumer stays open until `shutdown`, because tasks still running at the end of a worker
        are acknowledged after the last one was taken.

        Raises:
            RuntimeError: `startup` was not called.
            CorruptMessageError: a task cannot be read; it is not acknowledged.
            SdkError: the subscription cannot be used, or is lost.
        """
        if self._client is None:
            raise RuntimeError(f"nothing can be taken from {self._topic} before broker.startup()")
        if self._consumer is None:
            self._consumer = await self._client.consumer(
                self._topic, self._subscription, self._consuming
            )
        consumer = self._consumer
        try:
            while True:
                message = await consumer.receive()
                yield AckableMessage(data=message.data, ack=_acknowledging(consumer, message))
        except CorruptMessageError:
            raise  # The consumer continues with the next message.
        except SdkError:
            self._consumer = None  # It is lost. Taskiq listens again, which subscribes anew.
            raise

    def _due_ms(self, message: BrokerMessage) -> int | None:
        delay = message.labels.get(DELAY)
        if delay is None:
            return None
        try:
            delay_s = float(delay)
        except (TypeError, ValueError):
            delay_s = -1.0
        if not 0 <= delay_s < float("inf"):
            raise ValueError(
                f"the label delay of task {message.task_name} is {delay!r}; it must be a number of "
                "seconds, 0 or more"
            )
        return self._clock.wall_ms() + int(delay_s * 1000)

    async def _close(self) -> None:
        client, self._client = self._client, None
        self._producer = self._consumer = None
        if client is not None:
            await client.close()


def _acknowledging(consumer: Consumer, message: Message) -> Callable[[], None]:
    """Return a function that acknowledges a task. The acknowledgement is sent with others, and by a
    close at the latest."""

    def acknowledge() -> None:
        consumer.acknowledge(message)

    return acknowledge
