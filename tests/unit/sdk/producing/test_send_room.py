"""Room for more sends: who waits has it in turn."""

import asyncio

from magnetar.sdk.producing.send_room import MemoryLimit, SendRoom
from magnetar.sdk.settings import ProducerSettings
from tests.waiting import settle


class Sender:
    """Sends as a producer does, and notes what went in which order."""

    def __init__(self, settings: ProducerSettings, memory: MemoryLimit | None = None) -> None:
        self.room = SendRoom(settings, memory)
        self.sent: list[int] = []
        self.under_way: list[int] = []

    async def send(self, size: int) -> None:
        if self.room.is_waited_for or self.is_full(size):
            await self.room.wait_turn(lambda: self.is_full(size))
        self.sent.append(size)
        self.under_way.append(size)

    def is_full(self, size: int) -> bool:
        return self.room.is_full(len(self.under_way), sum(self.under_way), size)

    def confirm(self, count: int = 1) -> None:
        del self.under_way[:count]
        self.room.wake(len(self.under_way))


async def test_a_small_message_does_not_overtake_a_large_one_that_waits() -> None:
    sender = Sender(ProducerSettings(pending_bytes_max=1_000))
    tasks = [asyncio.create_task(sender.send(size)) for size in (400, 500, 900, 50)]
    await settle()
    sender.confirm()
    await settle()
    assert sender.sent == [400, 500]
    tasks.append(asyncio.create_task(sender.send(40)))
    await settle()
    sender.confirm()
    await asyncio.gather(*tasks)
    assert sender.sent == [400, 500, 900, 50, 40]


async def test_those_who_wait_keep_their_order_whatever_wakes_them() -> None:
    sender = Sender(ProducerSettings(pending_messages_max=2))
    tasks = [asyncio.create_task(sender.send(size)) for size in range(1, 9)]
    await settle()
    while len(sender.sent) < 8:
        sender.confirm()
        sender.confirm()
        await settle()
    await asyncio.gather(*tasks)
    assert sender.sent == list(range(1, 9))


async def test_one_who_gives_up_leaves_the_turn_to_the_next() -> None:
    sender = Sender(ProducerSettings(pending_messages_max=1))
    tasks = [asyncio.create_task(sender.send(size)) for size in (1, 2, 3)]
    await settle()
    sender.confirm()
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sender.sent == [1, 3]
    assert not sender.room.is_waited_for


async def test_calls_that_give_up_while_the_memory_is_full_are_forgotten() -> None:
    memory = MemoryLimit(100)
    sender = Sender(ProducerSettings(), memory)
    memory.adjust(100)  # Of another producer.
    for _ in range(3):
        tasks = [asyncio.create_task(sender.send(50)) for _ in range(2)]
        await settle()
        assert memory._waiters
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not memory._waiters
    task = asyncio.create_task(sender.send(50))
    await settle()
    memory.adjust(-100)
    await task
    assert not memory._waiters
