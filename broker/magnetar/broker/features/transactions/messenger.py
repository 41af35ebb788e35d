"""Notifies topics and subscriptions of the outcome of transactions, wherever they are served.

A topic that is loaded here is notified directly. Any other topic gets END_TXN_ON_PARTITION or
END_TXN_ON_SUBSCRIPTION over a link to its owner, which a lookup finds. Each attempt has a timeout.
It is repeated after growing pauses until it succeeds, or until the participant is gone for good:
the decision is durable, so there is no alternative.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    InvalidTopicNameError,
    NamespaceNotFoundError,
    RequestError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.transactions.ids import TransactionId, coordinator_topic
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.topics import Topics
from magnetar.cursors import CursorError
from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.errors import SdkError, service_error
from magnetar.sdk.wire import BaseCommand, TopicName
from magnetar.sdk.wire import errors as wire_errors
from magnetar.sdk.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from magnetar.sdk.connection import Connection

_log = structlog.get_logger()

_GONE = (
    TopicNotFoundError,
    NamespaceNotFoundError,
    SubscriptionNotFoundError,
    InvalidTopicNameError,
    wire_errors.TopicNotFoundError,
    wire_errors.SubscriptionNotFoundError,
    wire_errors.InvalidTopicNameError,
)
"""Errors of a participant that is gone; nothing of the transaction can be seen there any more."""

Find = Callable[[TopicName], Awaitable["Connection"]]


class Messenger:
    """Notifies participants. `find` returns a link to the broker that owns a topic."""

    def __init__(self, topics: Topics, find: Find, settings: BrokerSettings) -> None:
        self._topics = topics
        self._find = find
        self._settings = settings
        self._at_once = asyncio.Semaphore(settings.transaction_ends_at_once)
        self._at_once_on: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.attempts_failed = 0

    async def end_on_topic(
        self, topic: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        """End a transaction on a topic, here or by its owner; retry until that is durable."""

        async def here(found: TopicTransactions) -> None:
            await found.buffer.end(txn, commits=commits, low_watermark=low_watermark)

        def command(request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.END_TXN_ON_PARTITION,
                endTxnOnPartition=pb.CommandEndTxnOnPartition(
                    request_id=request_id,
                    txnid_least_bits=txn.least,
                    txnid_most_bits=txn.most,
                    topic=topic,
                    txn_action=pb.COMMIT if commits else pb.ABORT,
                    txnid_least_bits_of_low_watermark=low_watermark if low_watermark >= 0 else None,
                ),
            )

        await self._until_told(topic, here, command)

    async def end_on_subscription(
        self, topic: str, name: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        """End a transaction on a subscription, here or by its owner; retry until that is
        durable."""

        async def here(found: TopicTransactions) -> None:
            await found.acks.end(name, txn, commits=commits, low_watermark=low_watermark)

        def command(request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.END_TXN_ON_SUBSCRIPTION,
                endTxnOnSubscription=pb.CommandEndTxnOnSubscription(
                    request_id=request_id,
                    txnid_least_bits=txn.least,
                    txnid_most_bits=txn.most,
                    subscription=pb.Subscription(topic=topic, subscription=name),
                    txn_action=pb.COMMIT if commits else pb.ABORT,
                    txnid_least_bits_of_low_watermark=low_watermark if low_watermark >= 0 else None,
                ),
            )

        await self._until_told(topic, here, command)

    async def have_served(self, coordinator: int) -> None:
        """Make the owner of a coordinator's topic serve it, if possible.

        Raises:
            SdkError: no broker serves it now.
        """
        name = coordinator_topic(coordinator)
        await self._ask(
            name,
            lambda request_id: BaseCommand(
                type=BaseCommand.TC_CLIENT_CONNECT_REQUEST,
                tcClientConnectRequest=pb.CommandTcClientConnectRequest(
                    request_id=request_id, tc_id=coordinator
                ),
            ),
        )

    async def _until_told(
        self,
        topic: str,
        here: Callable[[TopicTransactions], Awaitable[None]],
        command: Callable[[int], BaseCommand],
    ) -> None:
        settings, failures = self._settings, 0
        at_once_here = self._at_once_on.get(topic)
        if at_once_here is None:
            at_once_here = asyncio.Semaphore(max(1, settings.transaction_ends_at_once // 4))
            self._at_once_on[topic] = at_once_here
        while True:
            try:
                name = naming.topic_of(topic)
                # No slot is held during a pause.
                async with (
                    at_once_here,
                    self._at_once,
                    asyncio.timeout(settings.transaction_end_timeout_ms / 1000),
                ):
                    served = self._topics.served(name)
                    found = served.find(TopicTransactions) if served is not None else None
                    if found is not None:
                        await here(found)
                    else:
                        await self._ask(name, command)
                return
            except _GONE as error:
                _log.info("transaction_participant_gone", topic=topic, error=str(error))
                return
            except (RequestError, SdkError, LedgerError, CursorError, TimeoutError) as error:
                self.attempts_failed += 1
                failures += 1
                _log.info("transaction_end_not_told", topic=topic, error=str(error))
            pause_ms = backoff(
                settings.transaction_retry_ms, failures, settings.transaction_retry_ms_max
            )
            await asyncio.sleep(pause_ms / 1000)

    async def _ask(self, name: TopicName, command: Callable[[int], BaseCommand]) -> None:
        connection = await self._find(name)
        request_id = connection.next_request_id()
        request = command(request_id)
        answer = await connection.request(
            request_id, request, timeout_ms=self._settings.transaction_end_timeout_ms
        )
        for field, response in answer.ListFields():
            if field.name.endswith("Response") and response.HasField("error"):
                raise service_error(response.error, str(response.message))
