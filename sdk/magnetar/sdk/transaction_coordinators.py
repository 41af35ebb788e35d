"""The coordinators of transactions: where they are, and requests to them.

A coordinator is asked again, after a new lookup, until the operation timeout, when its broker is
gone or has lost it. Asking twice is harmless: a transaction that was begun twice is one that
nobody uses, and everything else says the same once more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import OperationTimeoutError, SdkError, service_error
from magnetar.sdk.ports import Clock
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.errors import NotAllowedError
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand
from magnetar.sdk.wire.topic_name import TopicName

ASSIGNMENT_TOPIC = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Who owns partition n of it is coordinator n."""


class TransactionCoordinators:
    """Of one client."""

    def __init__(
        self,
        *,
        count: Callable[[str], Awaitable[int]],
        find: Callable[[TopicName], Awaitable[Connection]],
        settings: ClientSettings,
        clock: Clock,
    ) -> None:
        """`count`: partitions of a topic. `find`: a connection to the owner of one."""
        self._count, self._find = count, find
        self._settings = settings
        self._clock = clock
        self._coordinators = 0
        self._next = 0
        self._connected: dict[int, Connection] = {}
        """Where each of them was last."""

    async def begin(self, timeout_ms: int) -> tuple[int, int]:
        """A new transaction; coordinators take turns."""

        def command(number: int, request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.NEW_TXN,
                newTxn=pb.CommandNewTxn(
                    request_id=request_id, txn_ttl_millis=timeout_ms, tc_id=number
                ),
            )

        if not self._coordinators:
            self._coordinators = await self._count(str(ASSIGNMENT_TOPIC))
            if not self._coordinators:
                raise NotAllowedError("the broker has no coordinators of transactions")
        number, self._next = self._next % self._coordinators, self._next + 1
        answer = (await self._ask(number, command)).newTxnResponse
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def join_topic(self, most: int, least: int, topic: str) -> None:
        """The transaction is to have messages on a topic."""
        await self._ask(
            most,
            lambda _, request_id: BaseCommand(
                type=BaseCommand.ADD_PARTITION_TO_TXN,
                addPartitionToTxn=pb.CommandAddPartitionToTxn(
                    request_id=request_id,
                    txnid_most_bits=most,
                    txnid_least_bits=least,
                    partitions=[topic],
                ),
            ),
        )

    async def join_subscription(self, most: int, least: int, topic: str, subscription: str) -> None:
        """The transaction is to acknowledge on a subscription."""
        await self._ask(
            most,
            lambda _, request_id: BaseCommand(
                type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
                addSubscriptionToTxn=pb.CommandAddSubscriptionToTxn(
                    request_id=request_id,
                    txnid_most_bits=most,
                    txnid_least_bits=least,
                    subscription=[pb.Subscription(topic=topic, subscription=subscription)],
                ),
            ),
        )

    async def end(self, most: int, least: int, *, commits: bool) -> None:
        """Commit or abort."""
        await self._ask(
            most,
            lambda _, request_id: BaseCommand(
                type=BaseCommand.END_TXN,
                endTxn=pb.CommandEndTxn(
                    request_id=request_id,
                    txnid_most_bits=most,
                    txnid_least_bits=least,
                    txn_action=pb.COMMIT if commits else pb.ABORT,
                ),
            ),
        )

    async def _ask(self, number: int, command: Callable[[int, int], BaseCommand]) -> BaseCommand:
        """
        Raises:
            ServiceError: the coordinator refused.
            OperationTimeoutError: it did not answer in time; the outcome is unknown.
        """
        settings = self._settings
        deadline_s = self._clock.monotonic_s() + settings.operation_timeout_ms / 1000
        pause_s = settings.reconnect_delay_min_ms / 1000
        while True:
            try:
                connection = await self._connection(number)
                return await self._request(connection, number, command)
            except SdkError as error:
                if not error.retryable:
                    raise
                self._connected.pop(number, None)
                if self._clock.monotonic_s() + pause_s >= deadline_s:
                    raise OperationTimeoutError(
                        f"coordinator {number} of transactions did not answer within "
                        f"{settings.operation_timeout_ms} ms; last: {error}"
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, settings.reconnect_delay_max_ms / 1000)

    async def _connection(self, number: int) -> Connection:
        connection = self._connected.get(number)
        if connection is not None and connection.is_open:
            return connection
        connection = await self._find(ASSIGNMENT_TOPIC.partition(number))

        def command(number: int, request_id: int) -> BaseCommand:
            return BaseCommand(
                type=BaseCommand.TC_CLIENT_CONNECT_REQUEST,
                tcClientConnectRequest=pb.CommandTcClientConnectRequest(
                    request_id=request_id, tc_id=number
                ),
            )

        await self._request(connection, number, command)
        self._connected[number] = connection
        return connection

    async def _request(
        self, connection: Connection, number: int, command: Callable[[int, int], BaseCommand]
    ) -> BaseCommand:
        request_id = connection.next_request_id()
        answer = await connection.request(request_id, command(number, request_id))
        response: Any
        for field, response in answer.ListFields():
            if field.name.endswith("Response") and response.HasField("error"):
                raise service_error(response.error, str(response.message))
        return answer
