"""Tasks that wait for one event go on some at a time."""

import asyncio

from magnetar.broker.base.turn_gate import TurnGate


async def test_of_many_tasks_a_few_go_on_in_each_turn_in_their_order() -> None:
    gate = TurnGate(tasks_per_turn=3)
    event = asyncio.Event()
    gone: list[int] = []

    async def task(number: int) -> None:
        await event.wait()
        await gate.enter()
        gone.append(number)

    tasks = [asyncio.create_task(task(number)) for number in range(10)]
    await asyncio.sleep(0)
    event.set()
    grown = []
    while len(gone) < 10:
        before = len(gone)
        await asyncio.sleep(0)
        grown.append(len(gone) - before)
    await asyncio.gather(*tasks)
    assert gone == list(range(10))
    assert max(grown) == 3


async def test_a_task_that_is_cancelled_at_the_gate_takes_nobodys_place() -> None:
    gate = TurnGate(tasks_per_turn=1)
    tasks = [asyncio.create_task(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [False, True, False]


async def test_whoever_comes_alone_does_not_wait() -> None:
    gate = TurnGate(tasks_per_turn=1)
    for _ in range(3):
        await asyncio.wait_for(gate.enter(), 30)
        await asyncio.sleep(0)
