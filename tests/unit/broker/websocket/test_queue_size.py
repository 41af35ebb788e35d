"""How many messages are sent ahead for a session."""

import random

from magnetar.broker.websocket.consumer_core import FIRST, QueueSize

MIB = 1 << 20


def test_it_begins_small_and_doubles_with_each_window_that_was_taken() -> None:
    queue = QueueSize(messages_max=1000, bytes_max=8 * MIB)
    seen = [queue.messages]
    while queue.messages < 1000:
        assert not queue.took(queue.messages - 1, queue.messages * 100)
        assert queue.took(1, 100)
        seen.append(queue.messages)
    assert seen == [FIRST, 16, 32, 64, 128, 256, 512, 1000]
    assert not queue.took(5000, 5000)


def test_large_messages_make_it_small_at_once_and_are_remembered() -> None:
    queue = QueueSize(messages_max=1000, bytes_max=8 * MIB)
    while queue.messages < 1000:
        queue.took(queue.messages, queue.messages)
    assert queue.took(1, 4 * MIB)
    assert queue.messages == 2
    queue.took(2, 2)
    assert queue.messages <= 4


def test_what_it_lets_come_fits_the_bytes_once_the_size_is_known() -> None:
    rng = random.Random(7)
    for _ in range(200):
        size, most = rng.randint(1, 5 * MIB), rng.randint(1, 1000)
        queue = QueueSize(messages_max=most, bytes_max=8 * MIB)
        for _ in range(30):
            queue.took(1, size)
            assert 1 <= queue.messages <= most
            assert queue.messages * size <= max(8 * MIB, size)


def test_a_queue_of_one_stays_one() -> None:
    queue = QueueSize(messages_max=1, bytes_max=1, first=0)
    assert (queue.messages, queue.took(1, 100), queue.messages) == (1, False, 1)
