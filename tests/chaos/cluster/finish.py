"""The last client of the drill: what do the topics hold, and what do the subscriptions still have?

It publishes one more message to each topic, by which whoever gets it knows that it has all; reads
each topic from its beginning; and takes what is left of both subscriptions.

usage: python -m tests.chaos.cluster.finish --url URL --directory DIR --name NAME --topic TOPIC...
"""

from functools import partial

import pulsar

from tests.chaos.cluster.checker import Message
from tests.chaos.cluster.consume import next_message, subscribe
from tests.chaos.cluster.player import END, SHARED, SINGLE, Player, play, position_of
from tests.chaos.cluster.read import read_on
from tests.chaos.cluster.records import key_of, payload_of


def finish(player: Player) -> None:
    client = player.connect()
    for topic in player.topics:
        player.retry("last message", partial(_end_topic, player, client, topic))
    player.run([partial(_take_all, player, client, topic) for topic in player.topics])
    client.close()


def _end_topic(player: Player, client: pulsar.Client, topic: str) -> None:
    last = Message(END, 0)
    producer = client.create_producer(topic, producer_name=END)
    player.recorder.sending(topic, last)
    key = key_of(last) if player.has_keys else None
    position = position_of(producer.send(payload_of(last), partition_key=key))
    player.recorder.acknowledged(topic, last, position)
    producer.close()


def _take_all(player: Player, client: pulsar.Client, topic: str) -> None:
    reader = player.retry("reader", lambda: client.create_reader(topic, pulsar.MessageId.earliest))
    read_on(player, topic, reader)
    for subscription in (SHARED, SINGLE):
        consumer = subscribe(player, client, topic, subscription)
        while (message := next_message(player, consumer)) is not None:
            taken = player.take(message)
            if taken is None:
                continue
            player.recorder.delivered(topic, subscription, *taken)
            if taken[0].producer == END:
                break


if __name__ == "__main__":
    play(finish)
