"""Cumulative acknowledgements between chunks: nothing is lost, nothing acknowledged comes again.

A consumer of an ordered subscription takes messages, acknowledges some of them cumulatively, and is
attached again at times. Whatever is not acknowledged comes whole to the next consumer. A reader
that is attached again gets every message whole, and once.
"""

import asyncio
import random as random_module
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.message import Message
from magnetar.sdk.receiver_queue import Delivery, ReceiverQueue
from magnetar.sdk.settings import ConsumerSettings, ReaderSettings
from tests.unit.sdk.consuming.entry_scene import Scene, batch, chunk, plain

PARTS_MAX = 3


@dataclass
class Log:
    """What a topic holds, and what a subscription has acknowledged."""

    entries: list[Delivery] = field(default_factory=list)
    ends: dict[bytes, int] = field(default_factory=dict)
    """Entry in which each whole message ends, by its data."""
    acked: set[int] = field(default_factory=set)

    def add(self, delivery: Delivery, *ending: bytes) -> None:
        self.ends.update(dict.fromkeys(ending, len(self.entries)))
        self.entries.append(delivery)

    def unacknowledged(self) -> list[Delivery]:
        return [each for at, each in enumerate(self.entries) if at not in self.acked]

    def acknowledge(self, scene: Scene) -> None:
        for command in scene.acks.take(0).commands(0):
            for data in command.message_id:
                assert not data.ack_set
                through = range(data.entryId + 1) if command.ack_type else [data.entryId]
                self.acked.update(through)


def mixed(parts: list[int], random: random_module.Random) -> Log:
    """Messages of so many chunks each; 1 is a message by itself, 0 a batch of two.

    The last chunk of some message may be missing.
    """
    log = Log()
    under_way = [(at, count, 0) for at, count in enumerate(parts)]
    while under_way:
        # Few at a time, as producers send.
        at, count, sent = under_way.pop(random.randrange(min(3, len(under_way))))
        entry, name = len(log.entries), b"m%d" % at
        if count == 0:
            log.add(batch(entry, [name + b"x", name + b"y"]), name + b"x", name + b"y")
        elif count == 1:
            log.add(plain(entry, name), name)
        else:
            is_last = sent == count - 1
            if is_last and random.random() < 0.1:
                continue  # its producer is gone
            ending = [name * count] if is_last else []
            log.add(chunk(entry, str(at), sent, name, of=count), *ending)
            if not is_last:
                under_way.insert(0, (at, count, sent + 1))
    return log


@given(st.lists(st.integers(0, PARTS_MAX), max_size=12), st.integers(0, 1 << 32))
def test_what_is_not_acknowledged_comes_whole_and_nothing_else(parts: list[int], seed: int) -> None:
    random = random_module.Random(seed)

    async def story() -> None:
        log = mixed(parts, random)
        scene = Scene(ConsumerSettings())
        scene.queue.extend(log.unacknowledged())
        taken: list[Message] = []
        done: set[bytes] = set()
        for _ in range(random.randrange(20)):
            match random.randrange(5):
                case 0 | 1 | 2:
                    message = scene.queue.take()
                    taken += [] if message is None else [message]
                case 3 if taken:
                    chosen = random.choice(taken)
                    scene.acks.add_cumulative(chosen.message_id)
                    done |= passed(log, taken, chosen)
                case 4:
                    log.acknowledge(scene)
                    scene.queue.clear()
                    scene.queue.extend(log.unacknowledged())
        log.acknowledge(scene)
        scene.opening.close()
        following = Scene(ConsumerSettings())
        following.queue.extend(log.unacknowledged())
        rest: list[bytes] = []
        while (message := following.queue.take()) is not None:
            rest.append(message.data)
        following.opening.close()
        wanted = [each for each in log.ends if each not in done]
        assert [each for each in rest if not each.endswith((b"x", b"y"))] == [
            each for each in wanted if not each.endswith((b"x", b"y"))
        ]
        assert set(wanted) <= set(rest)  # the other half of a batch comes with it

    asyncio.run(story())


def passed(log: Log, taken: list[Message], last: Message) -> set[bytes]:
    """What a cumulative acknowledgement covers: all messages that end before its own, and it."""
    place = (last.entry_id, last.batch_index)
    covered = {each.data for each in taken if (each.entry_id, each.batch_index) <= place}
    return covered | {each for each, end in log.ends.items() if end < last.entry_id}


@given(st.lists(st.integers(0, PARTS_MAX), max_size=12), st.integers(0, 1 << 32))
def test_a_reader_gets_everything_once_however_often_it_attaches(
    parts: list[int], seed: int
) -> None:
    random = random_module.Random(seed)

    async def story() -> None:
        log = mixed(parts, random)
        scene = Scene(ReaderSettings().for_consumer(), is_reader=True)
        queue = scene.queue
        queue.extend(log.entries)
        taken: list[bytes] = []
        for _ in range(random.randrange(30)):
            match random.randrange(6):
                case 0 | 1 | 2:
                    message = queue.take()
                    if message is not None and random.random() < 0.2:
                        queue.put_back([message])
                    elif message is not None:
                        taken.append(message.data)
                        scene.acks.add_cumulative(message.message_id)
                case 3:
                    queue.has_message()
                case 4:
                    attach_again(queue, scene, log)
        while (message := queue.take()) is not None:
            taken.append(message.data)
        scene.opening.close()
        assert taken == list(log.ends)

    asyncio.run(story())


def attach_again(queue: ReceiverQueue, scene: Scene, log: Log) -> None:
    """Attach a reader again: the broker sends from the place to resume at."""
    last, begin = queue.last_taken, 0
    if last is not None:
        start = scene.acks.resume_id(last)
        queue.skip = (last, False)
        begin = (start.first_chunk or start).entry_id
    queue.clear()
    queue.extend(log.entries[max(0, begin) :])
