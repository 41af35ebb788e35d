"""Asyncio client for Magnetar and Pulsar-compatible brokers, built on `magnetar.sdk.wire`.

The names below are loaded at first use. A broker imports `magnetar.sdk.wire` through this package,
and must not load the client and its compression libraries with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.sdk.authentication import (
        BasicAuthentication,
        OAuth2ClientCredentials,
        TokenAuthentication,
    )
    from magnetar.sdk.batch import MessageBatch
    from magnetar.sdk.client import Client
    from magnetar.sdk.consumer import Consumer
    from magnetar.sdk.consuming.running import GiveUp, RetryLater
    from magnetar.sdk.encryption import FileKeyReader
    from magnetar.sdk.errors import SdkError
    from magnetar.sdk.interceptors import ConsumerInterceptor, ProducerInterceptor
    from magnetar.sdk.message import Message
    from magnetar.sdk.message_id import MessageId
    from magnetar.sdk.producer import Producer
    from magnetar.sdk.producing.outgoing import OutgoingMessage
    from magnetar.sdk.producing.routing import Hashing, RoutingMode
    from magnetar.sdk.reader import Reader
    from magnetar.sdk.scalable.checkpoint import Checkpoint
    from magnetar.sdk.scalable.checkpoint_consumer import CheckpointConsumer
    from magnetar.sdk.settings import (
        AccessMode,
        BatchReceivePolicy,
        ClientSettings,
        ConsumerSettings,
        DeadLetterPolicy,
        InitialPosition,
        KeySharedPolicy,
        ProducerSettings,
        ReaderSettings,
        SubscriptionType,
    )
    from magnetar.sdk.table_view import TableView
    from magnetar.sdk.transaction import Transaction, TransactionState
    from magnetar.sdk.wire.compression import Compression

__all__ = [
    "AccessMode",
    "BasicAuthentication",
    "BatchReceivePolicy",
    "Checkpoint",
    "CheckpointConsumer",
    "Client",
    "ClientSettings",
    "Compression",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerSettings",
    "DeadLetterPolicy",
    "FileKeyReader",
    "GiveUp",
    "Hashing",
    "InitialPosition",
    "KeySharedPolicy",
    "Message",
    "MessageBatch",
    "MessageId",
    "OAuth2ClientCredentials",
    "OutgoingMessage",
    "Producer",
    "ProducerInterceptor",
    "ProducerSettings",
    "Reader",
    "ReaderSettings",
    "RetryLater",
    "RoutingMode",
    "SdkError",
    "SubscriptionType",
    "TableView",
    "TokenAuthentication",
    "Transaction",
    "TransactionState",
]

_HOMES = {
    "BasicAuthentication": "authentication",
    "Checkpoint": "scalable.checkpoint",
    "CheckpointConsumer": "scalable.checkpoint_consumer",
    "Client": "client",
    "Compression": "wire.compression",
    "Consumer": "consumer",
    "ConsumerInterceptor": "interceptors",
    "FileKeyReader": "encryption",
    "GiveUp": "consuming.running",
    "Hashing": "producing.routing",
    "Message": "message",
    "MessageBatch": "batch",
    "MessageId": "message_id",
    "OAuth2ClientCredentials": "authentication",
    "OutgoingMessage": "producing.outgoing",
    "Producer": "producer",
    "ProducerInterceptor": "interceptors",
    "Reader": "reader",
    "RetryLater": "consuming.running",
    "RoutingMode": "producing.routing",
    "SdkError": "errors",
    "TableView": "table_view",
    "TokenAuthentication": "authentication",
    "Transaction": "transaction",
    "TransactionState": "transaction",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'settings')}"), name)
    globals()[name] = value
    return value
