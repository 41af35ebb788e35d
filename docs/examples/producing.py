"""Send and read values of a dataclass without an event loop; batched by key and compressed."""

import sys
from dataclasses import dataclass

from magnetar.sdk import Compression, ProducerSettings
from magnetar.sdk.blocking import Client
from magnetar.sdk.schemas import JsonSchema


@dataclass
class Order:
    number: int
    note: str | None = None


def main(url: str) -> None:
    settings = ProducerSettings(compression=Compression.ZSTD, batch_by_key=True)
    with Client(url) as client:
        with client.producer("typed-orders", settings, schema=JsonSchema(Order)) as producer:
            for number in range(4):
                producer.send_nowait(Order(number), key=f"customer {number % 2}")
            producer.flush()
            print("stored", producer.stats().messages_stored)
        reader = client.reader("typed-orders", schema=JsonSchema(Order))
        for message in reader.read_many(4, timeout_s=30):
            print(message.key, message.value().number)


main(sys.argv[1] if len(sys.argv) > 1 else "pulsar://127.0.0.1:6650")
