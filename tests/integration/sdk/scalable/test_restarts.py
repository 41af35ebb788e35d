"""Scalable topics over a server that is killed and comes back."""

import asyncio
from pathlib import Path

from magnetar.sdk import Checkpoint, Client, ClientSettings, ConsumerSettings, InitialPosition
from tests.integration.sdk.scalable.scene import RECEIVE_S, Layouts, Load, Received, consume
from tests.standalone import Standalone
from tests.waiting import until

_EARLIEST = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
_TOPIC = "topic://public/default/restarted"
_PATIENT = ClientSettings(reconnect_delay_min_ms=20, reconnect_delay_max_ms=500)


async def test_a_kill_between_splits_loses_nothing_and_keeps_order(tmp_path: Path) -> None:
    settings = {"SCALABLE_AUTO_SCALE": "false"}
    with Standalone(tmp_path / "data", settings=settings) as server:
        stream, queue, read = Received(), Received(), Received()
        async with (
            Client(server.url, _PATIENT) as client,
            client.producer(_TOPIC) as producer,
            client.stream_consumer(_TOPIC, "s", _EARLIEST) as one,
            client.queue_consumer(_TOPIC, "q", _EARLIEST) as other,
            client.checkpoint_consumer(_TOPIC) as reader,
            asyncio.TaskGroup() as group,
        ):
            load, layouts = Load(producer), Layouts(server, _TOPIC)
            sending = group.create_task(load.run())
            tasks = [
                group.create_task(consume(one, stream)),
                group.create_task(consume(other, queue)),
            ]
            await layouts.split(0)
            read.add_all(await reader.read_many(100, timeout_s=RECEIVE_S))
            server.kill()
            await asyncio.to_thread(server.start)
            await layouts.split(1)
            await layouts.merge(0)
            load.stop()
            await sending
            await until(lambda: stream.distinct == queue.distinct == load.total, within_s=RECEIVE_S)
            kept = Checkpoint.from_bytes(reader.checkpoint().to_bytes())
            await reader.close()
            async with client.checkpoint_consumer(_TOPIC, kept) as again:
                while await again.has_message_available():
                    read.add_all(await again.read_many(500, timeout_s=RECEIVE_S))
            for task in tasks:
                task.cancel()
        # A message whose receipt the kill took away may be stored twice.
        stream.assert_in_order(load.sent)
        read.assert_in_order(load.sent)
        server.assert_log_clean()
