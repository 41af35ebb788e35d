"""Consumers of the drill: two subscriptions per topic.

`shared` has two consumers on connections of their own, which acknowledge one by one. They leave
every eleventh message until it comes again, as it does when its topic has moved: there are always
holes to keep, and never more of them than a cursor's record has room for. `single` has one that
acknowledges cumulatively.

usage: python -m tests.chaos.cluster.consume --url URL --directory DIR --name NAME --topic TOPIC...
"""

from collections.abc import Callable
from functools import partial

import pulsar

from tests.chaos.cluster.checker import Position
from tests.chaos.cluster.player import RECEIVE_TIMEOUT_MS, SHARED, SINGLE, Player, play

LEFT_EVERY = 11
CUMULATIVE_EVERY = 10
QUEUE = 100


def consume(player: Player) -> None:
    clients = [player.connect(), player.connect()]
    works: list[Callable[[], None]] = []
    for topic in player.topics:
        left: set[Position] = set()
        for client in clients:
            shared = subscribe(player, client, topic, SHARED)
            works.append(partial(_take_turns, player, topic, shared, left))
        single = subscribe(player, clients[0], topic, SINGLE)
        works.append(partial(_alone, player, topic, single))
    player.run(works)
    for client in clients:
        client.close()


def subscribe(
    player: Player, client: pulsar.Client, topic: str, subscription: str
) -> pulsar.Consumer:
    if subscription == SHARED:
        kind = pulsar.ConsumerType.Shared
    else:
        alone = pulsar.ConsumerType.Exclusive
        kind = alone if player.is_exclusive else pulsar.ConsumerType.Failover
    return player.retry(
        "consumer",
        lambda: client.subscribe(
            topic,
            subscription,
            consumer_type=kind,
            receiver_queue_size=QUEUE,
            initial_position=pulsar.InitialPosition.Earliest,
            # Without it, one message that is left brings its whole batch back.
            batch_index_ack_enabled=True,
        ),
    )


def _take_turns(player: Player, topic: str, consumer: pulsar.Consumer, left: set[Position]) -> None:
    """Acknowledge one by one, what was left and came again as well.

    Args:
        left: what both consumers of the subscription have left.
    """
    recorder = player.recorder
    while (message := next_message(player, consumer)) is not None:
        taken = player.take(message)
        if taken is None:
            continue
        (_, number), position = taken
        recorder.delivered(topic, SHARED, *taken)
        if number % LEFT_EVERY == 0 and position not in left:
            left.add(position)
            continue
        try:
            consumer.acknowledge(message)
        except pulsar.PulsarException as error:
            recorder.tried_again(f"acknowledge: {type(error).__name__}")
        else:
            recorder.acked(topic, SHARED, position)
            left.discard(position)


def _alone(player: Player, topic: str, consumer: pulsar.Consumer) -> None:
    """Acknowledge all up to every tenth."""
    recorder = player.recorder
    pending: list[Position] = []
    while (message := next_message(player, consumer)) is not None:
        taken = player.take(message)
        if taken is None:
            continue
        position = taken[1]
        recorder.delivered(topic, SINGLE, *taken)
        # It came from an earlier place: what came before the fault is not covered any more.
        pending = [each for each in pending if each < position]
        pending.append(position)
        if len(pending) < CUMULATIVE_EVERY:
            continue
        try:
            consumer.acknowledge_cumulative(message)
        except pulsar.PulsarException as error:
            recorder.tried_again(f"acknowledge: {type(error).__name__}")
        else:
            for each in pending:
                recorder.acked(topic, SINGLE, each)
            pending.clear()


def next_message(player: Player, consumer: pulsar.Consumer) -> pulsar.Message | None:
    """The next one; None when none comes any more after the wish to stop."""
    while True:
        try:
            return consumer.receive(timeout_millis=RECEIVE_TIMEOUT_MS)
        except pulsar.Timeout:
            if player.stop.is_set():
                return None


if __name__ == "__main__":
    play(consume)
