"""What tests of consumers with a scripted broker have in common: its topic and its messages."""

from magnetar.sdk import Client, Consumer, ConsumerSettings, Message, ProducerSettings

SOON = ConsumerSettings(ack_group_ms=0, nack_delay_ms=0)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % at for at in range(start, start + count)]


async def publish(client: Client, payloads: list[bytes], *, batch: int = 0) -> None:
    settings = ProducerSettings(batching=batch > 0, batch_messages_max=max(1, batch))
    async with await client.producer("t", settings) as producer:
        await producer.send_many(payloads)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_s=10) for _ in range(count)]


def data(messages: list[Message]) -> list[bytes]:
    return [message.data for message in messages]
