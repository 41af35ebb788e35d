"""A client in Rust, behind a bridge: produce, consume, acknowledge. The bridge cannot seek.

`python client.py URL TOPIC first`, then `second`, which must see nothing of
what the first one has acknowledged.
"""

import sys

import mq_bridge
import mq_bridge_pulsar

COUNT = 50


def endpoint(url: str, topic: str, **more: str) -> dict[str, object]:
    return {"custom": {"name": "pulsar", "config": {"url": url, "topic": topic, **more}}}


def receive(consumer: mq_bridge.Consumer, count: int) -> list[bytes]:
    """So many messages, all acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.poll(max=count - len(found), timeout_ms=30_000)
        assert messages, f"only {len(found)} of {count}"
        found += [message.payload for message in messages]
        consumer.commit()
    return found


def main(url: str, topic: str, half: str) -> None:
    mq_bridge_pulsar.register()
    publisher = mq_bridge.Publisher.from_config(endpoint(url, topic))
    messages = [f"{half}-{number}".encode() for number in range(COUNT)]
    with mq_bridge.Consumer.from_config(endpoint(url, topic, subscription="s")) as consumer:
        publisher.send_batch(messages)
        assert receive(consumer, 20) == messages[:20]
        assert receive(consumer, 30) == messages[20:]


if __name__ == "__main__":
    main(*sys.argv[1:])
