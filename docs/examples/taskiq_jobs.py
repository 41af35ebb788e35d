"""Send tasks of Taskiq through a topic, and execute them.

As a program, this file does both: python docs/examples/taskiq_jobs.py pulsar://127.0.0.1:6650

In production, run workers as separate processes. In the folder of this file:

    MAGNETAR_URL=pulsar://127.0.0.1:6650 taskiq worker taskiq_jobs:broker
"""

import asyncio
import logging
import os
import sys

from taskiq import AcknowledgeType
from taskiq.api import run_receiver_task

from magnetar.sdk.taskiq import TopicBroker

url = sys.argv[1] if __name__ == "__main__" else os.environ["MAGNETAR_URL"]
broker = TopicBroker(url, "jobs")
done = asyncio.Event()


@broker.task(task_name="add")
async def add(left: int, right: int) -> int:
    print(f"{left} + {right} = {left + right}")
    return left + right


@broker.task(task_name="last")
async def last() -> None:
    print("that was all")
    done.set()


async def main() -> None:
    logging.basicConfig(level=logging.ERROR)  # Taskiq warns about a cancelled worker.
    await broker.startup()
    await add.kiq(1, 2)  # The task is stored when this returns.
    await add.kicker().with_labels(key="sums").kiq(3, 4)
    await last.kicker().with_labels(delay=0.5).kiq()

    worker = asyncio.create_task(
        run_receiver_task(broker, ack_time=AcknowledgeType.WHEN_EXECUTED, max_async_tasks=1)
    )
    await done.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
