"""The asyncio client of Magnetar and of Pulsar-compatible brokers, on `magnetar.sdk.wire`."""

from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.client import Client
from magnetar.sdk.compression import Compression
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer
from magnetar.sdk.reader import Reader
from magnetar.sdk.settings import (
    AccessMode,
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)

__all__ = [
    "AccessMode",
    "Client",
    "ClientSettings",
    "Compression",
    "Consumer",
    "ConsumerSettings",
    "InitialPosition",
    "Message",
    "MessageBatch",
    "MessageId",
    "Producer",
    "ProducerSettings",
    "Reader",
    "ReaderSettings",
    "SdkError",
    "SubscriptionType",
]
