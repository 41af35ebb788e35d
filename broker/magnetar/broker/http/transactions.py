"""Transactions over HTTP. Source: HTTP sheet, section 11.

Each coordinator is at the owner of its partition. A request about one coordinator is redirected to
its owner; a request about all combines the answers of their owners.
"""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote_plus

from fastapi import APIRouter, Body, Request, Response
from pydantic import JsonValue

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NotThereError
from magnetar.broker.base.json_values import WholeNumber
from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.features.transactions.coordinator_state import Transaction
from magnetar.broker.features.transactions.errors import (
    CoordinatorNotFoundError,
    InvalidTransactionStatusError,
    TransactionNotFoundError,
)
from magnetar.broker.features.transactions.ids import COORDINATORS, TransactionId, coordinator_topic
from magnetar.broker.features.transactions.pending_acks import PendingAckState
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions, state_of
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import ask_elsewhere, value_in
from magnetar.broker.http.internal_stats import topic_internal_stats
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import ElsewhereError, HttpRefusal
from magnetar.broker.security import Action, Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import operating
from magnetar.ledger.position import Position

_PREFIX = "/admin/v3/transactions"


class _Transactions:
    """Routes of transactions."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._coordinators = context.coordinators

    def _check_on(self) -> None:
        if not self._coordinators.is_enabled:
            raise HttpRefusal(
                503, "This Broker is not configured with transactionCoordinatorEnabled=true."
            )

    async def _coordinator(self, number: int) -> Coordinator:
        self._check_on()
        if not 0 <= number < await self._coordinators.prepare():
            raise HttpRefusal(404, f"there is no transaction coordinator {number}")
        await self._context.check_owner(coordinator_topic(number))
        try:
            return await self._coordinators.get(number)
        except CoordinatorNotFoundError as error:
            raise HttpRefusal(503, str(error)) from error

    async def _of_all(self, path: str) -> list[tuple[int, JsonValue]]:
        """Return the answers of the owners of all coordinators to `path`, by number; `path`
        contains the number."""

        async def one(number: int) -> tuple[int, JsonValue]:
            where = path.format(number=number)
            try:
                found = await self._coordinator(number)
            except ElsewhereError as elsewhere:
                answer = await ask_elsewhere(
                    self._context.admin, elsewhere, "GET", f"{_PREFIX}/{where}"
                )
                return number, value_in(answer, dict, f"the broker of coordinator {number}")
            if where.startswith("slow"):
                return number, self._slow(found, int(where.split("/")[1].split("?")[0]))
            return number, _stats(found)

        self._check_on()
        return list(await asyncio.gather(*map(one, range(await self._coordinators.prepare()))))

    def _slow(self, found: Coordinator, timeout_ms: int) -> dict[str, Any]:
        now_ms = self._context.wall_ms()
        return {
            str(each.id): _metadata(each)
            for each in found.state.transactions.values()
            if now_ms - each.begun_ms >= timeout_ms
        }

    async def list_coordinators(self) -> list[dict[str, Any]]:
        """Return the coordinators, and the addresses of their brokers."""
        self._check_on()
        found: list[dict[str, Any]] = []
        for number in range(await self._coordinators.prepare()):
            owner = await self._context.admin.owner_of(
                coordinator_topic(number), is_authoritative=False, listener=""
            )
            found.append({"id": number, "brokerServiceUrl": owner.service_url})
        return found

    async def coordinator_stats(self, coordinatorId: int | None = None) -> dict[str, Any]:
        """Return the statistics of a coordinator; without a number, of all."""
        if coordinatorId is not None:
            return _stats(await self._coordinator(coordinatorId))
        stats = await self._of_all("coordinatorStats?coordinatorId={number}")
        return {str(number): each for number, each in stats}

    async def scale(self, replicas: Annotated[WholeNumber, Body()]) -> Response:
        """Add coordinators; they are never removed. 406 if there are as many already."""
        self._check_on()
        before = await self._coordinators.prepare()
        if replicas <= before:
            raise HttpRefusal(
                406, f"there are already {before} coordinators: give a number above {before}"
            )
        await self._context.topics.partitioned.grow(COORDINATORS, replicas, is_forced=True)
        return Response(status_code=204)

    async def coordinator_internal_stats(self, number: int) -> dict[str, Any]:
        """Return how the log of a coordinator is stored."""
        await self._coordinator(number)
        name = coordinator_topic(number)
        stored = topic_internal_stats(await self._context.served(name))
        log = f"{name.namespace_name}/{name.domain}/{quote_plus(name.local_name)}"
        return {
            "transactionLogStats": {
                "managedLedgerName": log,
                "managedLedgerInternalStats": stored,
            }
        }

    async def transaction_metadata(self, most: int, least: int, request: Request) -> dict[str, Any]:
        """Return a transaction that has not ended everywhere. Any client may ask; owner and topics
        are shown only to roles that may look these topics up."""
        txn = TransactionId(most, least)
        found = (await self._coordinator(most)).state.transactions.get(least)
        if found is None:
            raise NotThereError(f"there is no transaction {txn}, or it has ended")
        return await self._seen(found, request)

    async def _seen(self, found: Transaction, request: Request) -> dict[str, Any]:
        identity, authorizer = request.state.identity, self._context.authorizer
        whole = _metadata(found)
        if authorizer.is_super_user(identity) or found.owner == identity.role:
            return whole

        async def may_see(topic: str) -> bool:
            return await authorizer.may(identity, Action.LOOKUP, Topic(naming.topic_of(topic)))

        for part in ("producedPartitions", "ackedPartitions"):
            whole[part] = {
                topic: each for topic, each in whole[part].items() if await may_see(topic)
            }
        return whole | {"owner": ""}

    async def slow_transactions(
        self, timeout: int, coordinatorId: int | None = None
    ) -> dict[str, Any]:
        """Return transactions that have been open for at least the given ms."""
        if coordinatorId is not None:
            return self._slow(await self._coordinator(coordinatorId), timeout)
        slow: dict[str, Any] = {}
        path = f"slowTransactions/{timeout}?coordinatorId={{number}}"
        for _, each in await self._of_all(path):
            if isinstance(each, Mapping):
                slow.update(each)
        return slow

    async def abort(self, most: int, least: int) -> Response:
        """Abort a transaction. 404 if there is none, 409 if it is already ending."""
        try:
            await (await self._coordinator(most)).end(TransactionId(most, least), commits=False)
        except TransactionNotFoundError as error:
            raise HttpRefusal(404, str(error)) from error
        except InvalidTransactionStatusError as error:
            raise HttpRefusal(409, str(error)) from error
        except CoordinatorNotFoundError as error:
            raise HttpRefusal(503, str(error)) from error
        return Response(status_code=204)

    async def buffer_stats(self, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Return the state of transactions on a topic."""
        self._check_on()
        there = await self._context.served(
            await self._context.topic("persistent", tenant, namespace, topic)
        )
        buffer, visible = state_of(there), there.visibility.last
        return {
            "state": "Ready" if buffer is not None else "NoSnapshot",
            "maxReadPosition": f"{visible.ledger_id}:{visible.entry_id}",
            "ongoingTxnSize": len(buffer.open) if buffer is not None else 0,
            "totalAbortedTransactions": buffer.aborted_count if buffer is not None else 0,
            "abortedEntries": len(buffer.aborted) if buffer is not None else 0,
            "ongoingTransactions": [
                {"id": str(txn), "firstPosition": f"{each.first.ledger_id}:{each.first.entry_id}"}
                for txn, each in (buffer.open.items() if buffer is not None else ())
            ],
        }

    async def _pending_of(
        self, tenant: str, namespace: str, topic: str, subscription: str
    ) -> tuple[Subscription, PendingAckState | None]:
        """Return a subscription, and its acknowledgements in open transactions."""
        self._check_on()
        there = await self._context.served(
            await self._context.topic("persistent", tenant, namespace, topic)
        )
        found = operating.subscription_of(there, subscription)
        transactions = there.find(TopicTransactions)
        if transactions is None:
            return found, None
        return found, transactions.acks.pending.get(subscription)

    async def in_buffer_stats(
        self, tenant: str, namespace: str, topic: str, most: int, least: int
    ) -> dict[str, Any]:
        """Return the first message of a transaction in a topic; null if it has none there, or has
        ended."""
        self._check_on()
        there = await self._context.served(
            await self._context.topic("persistent", tenant, namespace, topic)
        )
        buffer, txn = state_of(there), TransactionId(most, least)
        found = buffer.open.get(txn) if buffer is not None else None
        first = f"{found.first.ledger_id}:{found.first.entry_id}" if found is not None else None
        is_aborted = buffer is not None and buffer.ended.was_committed(txn) is False
        return {"startPosition": first, "aborted": is_aborted}

    async def in_pending_ack_stats(
        self, tenant: str, namespace: str, topic: str, subscription: str, most: int, least: int
    ) -> dict[str, Any]:
        """Return the cumulative acknowledgement of a transaction on a subscription; null if it has
        none."""
        _, pending = await self._pending_of(tenant, namespace, topic, subscription)
        acks = pending.transactions.get(TransactionId(most, least)) if pending is not None else None
        through = acks.cumulative.position if acks is not None and acks.cumulative else None
        text = f"{through.ledger_id}:{through.entry_id}" if through is not None else None
        return {"cumulativeAckPosition": text}

    async def position_in_pending_ack(
        self, tenant: str, namespace: str, topic: str, subscription: str, ledger: int, entry: int
    ) -> dict[str, str]:
        """Return whether a message is acknowledged, pending in an open transaction, or neither."""
        found, pending = await self._pending_of(tenant, namespace, topic, subscription)
        position = Position(ledger, entry)
        if found.cursor.is_acked(position):
            return {"state": "MarkDelete"}
        held = pending is not None and any(
            position in acks.individual
            or (acks.cumulative is not None and position <= acks.cumulative.position)
            for acks in pending.transactions.values()
        )
        return {"state": "PendingAck" if held else "NotInPendingAck"}

    async def buffer_internal_stats(self, tenant: str, namespace: str, topic: str) -> None:
        """Answer 404: a topic stores nothing about transactions in ledgers of its own."""
        self._check_on()
        name = await self._context.topic("persistent", tenant, namespace, topic)
        await self._context.served(name)
        raise HttpRefusal(
            404,
            f"{name} keeps no snapshots of transactions in ledgers: their messages are in the "
            "topic, and transactionBufferStats tells of them",
        )

    async def pending_ack_internal_stats(
        self, tenant: str, namespace: str, topic: str, subscription: str
    ) -> None:
        """Answer 404: no subscription has a log of its own for acknowledgements in transactions."""
        self._check_on()
        name = await self._context.topic("persistent", tenant, namespace, topic)
        operating.subscription_of(await self._context.served(name), subscription)
        raise HttpRefusal(
            404,
            f"subscription {subscription} of {name} has no pending-ack log: one log per topic "
            "holds the acknowledgements of all transactions. Use pendingAckStats",
        )

    async def pending_ack_stats(
        self, tenant: str, namespace: str, topic: str, subscription: str
    ) -> dict[str, Any]:
        """Return the number of transactions that hold acknowledgements of a subscription."""
        self._check_on()
        there = await self._context.served(
            await self._context.topic("persistent", tenant, namespace, topic)
        )
        if subscription not in there.subscriptions:
            raise NotThereError(f"{there.name} has no subscription {subscription}")
        transactions = there.find(TopicTransactions)
        pending = transactions.acks.pending.get(subscription) if transactions is not None else None
        return {
            "state": "Ready" if pending is not None else "None",
            "ongoingTxnSize": len(pending.transactions) if pending is not None else 0,
            "pendingAcks": len(pending) if pending is not None else 0,
        }


def transactions_router(context: HttpContext) -> APIRouter:
    """Return the routes of transactions. Nearly all are for super users (`rights.py`). All answer
    503 while transactions are off."""
    router = late_router(tags=["transactions"], prefix=_PREFIX)
    routes = _Transactions(context)
    router.get("/coordinators")(routes.list_coordinators)
    router.get("/coordinatorStats")(routes.coordinator_stats)
    router.post("/transactionCoordinator/replicas", status_code=204)(routes.scale)
    router.get("/coordinatorInternalStats/{number}")(routes.coordinator_internal_stats)
    router.get("/transactionMetadata/{most}/{least}")(routes.transaction_metadata)
    router.get("/slowTransactions/{timeout}")(routes.slow_transactions)
    router.post("/abortTransaction/{most}/{least}", status_code=204)(routes.abort)
    router.get("/transactionBufferStats/{tenant}/{namespace}/{topic}")(routes.buffer_stats)
    router.get("/transactionInBufferStats/{tenant}/{namespace}/{topic}/{most}/{least}")(
        routes.in_buffer_stats
    )
    router.get(
        "/transactionInPendingAckStats/{tenant}/{namespace}/{topic}/{subscription}/{most}/{least}"
    )(routes.in_pending_ack_stats)
    router.get(
        "/positionStatsInPendingAck/{tenant}/{namespace}/{topic}/{subscription}/{ledger}/{entry}"
    )(routes.position_in_pending_ack)
    router.get("/transactionBufferInternalStats/{tenant}/{namespace}/{topic}")(
        routes.buffer_internal_stats
    )
    router.get("/pendingAckInternalStats/{tenant}/{namespace}/{topic}/{subscription}")(
        routes.pending_ack_internal_stats
    )
    router.get("/pendingAckStats/{tenant}/{namespace}/{topic}/{subscription}")(
        routes.pending_ack_stats
    )
    return router


def _stats(found: Coordinator) -> dict[str, Any]:
    state = found.state
    return {
        "state": "Ready",
        "leastSigBits": state.next_least - 1,
        "lowWaterMark": state.low_watermark,
        "ongoingTxnSize": len(state.transactions),
        "recoverStartTime": 0,
        "recoverEndTime": 0,
    }


def _metadata(found: Transaction) -> dict[str, Any]:
    return {
        "txnId": str(found.id),
        "openTimestamp": found.begun_ms,
        "timeoutAt": found.timeout_ms,
        "status": str(found.status).upper(),
        "owner": found.owner,
        "producedPartitions": {topic: {} for topic in found.topics},
        "ackedPartitions": _by_topic(found),
    }


def _by_topic(found: Transaction) -> dict[str, dict[str, dict[str, str]]]:
    topics: dict[str, dict[str, dict[str, str]]] = {}
    for topic, subscription in found.subscriptions:
        topics.setdefault(topic, {})[subscription] = {}
    return topics
