"""Readers of the drill: one per topic, from its first message to the one that ends it.

usage: python -m tests.chaos.cluster.read --url URL --directory DIR --name NAME --topic TOPIC...
"""

from functools import partial

import pulsar

from tests.chaos.cluster.player import END, RECEIVE_TIMEOUT_MS, Player, play


def read(player: Player) -> None:
    client = player.connect()
    readers = [
        player.retry("reader", partial(client.create_reader, topic, pulsar.MessageId.earliest))
        for topic in player.topics
    ]
    player.run(
        [
            partial(read_on, player, topic, reader)
            for topic, reader in zip(player.topics, readers, strict=True)
        ]
    )
    client.close()


def read_on(player: Player, topic: str, reader: pulsar.Reader) -> None:
    """Read until the end; a wish to stop counts only when nothing comes any more."""
    while True:
        try:
            message = reader.read_next(timeout_millis=RECEIVE_TIMEOUT_MS)
        except pulsar.Timeout:
            if player.stop.is_set():
                return
            continue
        taken = player.take(message)
        if taken is None:
            continue
        player.recorder.read(topic, player.name, *taken)
        if taken[0].producer == END:
            return


if __name__ == "__main__":
    play(read)
