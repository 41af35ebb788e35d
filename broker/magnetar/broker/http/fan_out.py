"""Carry out a request about a topic, or about each of its partitions, at the owner: here or
elsewhere."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

from pydantic import JsonValue

from magnetar.broker.base.errors import BrokerMetadataError, TopicNotFoundError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.http.admin import Admin
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.refusals import ElsewhereError, HttpRefusal
from magnetar.broker.topic import Topic
from magnetar.sdk.wire import TopicName

_AT_ONCE = 16
_HOPS_MAX = 4
"""Redirects to follow: to the leader, to the broker that it chooses, and more if that just
changed."""

T = TypeVar("T")


async def on_each(
    admin: Admin,
    topics: Sequence[TopicName],
    work: Callable[[TopicName], Awaitable[T]],
    method: str,
    action: str,
    *,
    may_be_missing: bool = False,
    completes: bool = False,
    body: JsonValue = None,
    root: str = "/admin/v2",
) -> list[T | JsonValue]:
    """Do `work` on the topics of this broker, and send the request for the others to their owners.

    Args:
        work: raises ElsewhereError if another broker owns the topic.
        action: the part of the path after the topic, without a leading slash, perhaps with a query;
            may be empty.
        may_be_missing: a topic that does not exist counts as done.
        completes: a conflict (409) counts as done, unless all topics have one: an earlier attempt
            was left unfinished.
        body: body of the request; None for none.
        root: the part of the path before the topic.

    Returns the results in the order of the topics: those of `work`, JSON values from other brokers,
    and None for topics that count as done.

    Raises:
        RequestError, HttpRefusal: the first failure, after all topics were tried.
    """
    limit = asyncio.Semaphore(_AT_ONCE)
    content = b"" if body is None else json.dumps(body).encode()

    async def one(topic: TopicName) -> T | JsonValue:
        async with limit:
            try:
                return await work(topic)
            except TopicNotFoundError:
                if may_be_missing:
                    return None
                raise
            except ElsewhereError as elsewhere:
                path = _path_of(topic, action, root)
                answer = await ask_elsewhere(admin, elsewhere, method, path, content)
            if may_be_missing and answer.status == 404:
                return None
            return _value_of(answer.status, answer.body)

    results = await asyncio.gather(*map(one, topics), return_exceptions=True)
    spares_conflicts = completes and not all(map(_is_conflict, results))
    found: list[T | JsonValue] = []
    for result in results:
        if spares_conflicts and _is_conflict(result):
            found.append(None)
        elif isinstance(result, BaseException):
            raise result
        else:
            found.append(result)
    return found


def _is_conflict(result: object) -> bool:
    return isinstance(result, HttpRefusal) and result.status == 409


async def ask_elsewhere(
    admin: Admin, elsewhere: ElsewhereError, method: str, path: str, body: bytes = b""
) -> Answer:
    """Send a request to the responsible broker, follow redirects, and return the answer. The leader
    first assigns a topic without an owner, perhaps to this broker.

    Raises:
        BrokerMetadataError: no answer came, or the brokers redirect each other.
    """
    separator = "&" if "?" in path else "?"
    flag = str(elsewhere.is_authoritative).lower()
    url = f"{elsewhere.http_url}{path}{separator}authoritative={flag}"
    for _ in range(_HOPS_MAX):
        answer = await admin.ask(url, method, "", body)
        if answer.status != 307:
            return answer
        url = answer.headers.get("location", "")
    raise BrokerMetadataError(f"the brokers redirect each other for the owner of {path}: try again")


def value_in(answer: Answer, kind: type[T], who: str) -> T:
    """Return the JSON value in the answer of another broker.

    Args:
        kind: type that the value must have.
        who: names the broker in the error.

    Raises:
        BrokerMetadataError: the answer is a refusal, or has no such value.
    """
    if not answer.is_success:
        raise BrokerMetadataError(f"{who} answered {answer.status}")
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise BrokerMetadataError(f"{who} did not answer in JSON: {error}") from error
    if not isinstance(value, kind):
        raise BrokerMetadataError(f"{who} answered {type(value).__name__}, not {kind.__name__}")
    return value


def _path_of(topic: TopicName, action: str, root: str) -> str:
    path = f"{root}/{topic.domain}/{topic.namespace_name}/{quote(topic.local_name, safe='')}"
    if not action:
        return path
    return path + action if action.startswith("?") else f"{path}/{action}"


def _value_of(status: int, body: bytes) -> JsonValue:
    value: JsonValue = None
    try:
        value = json.loads(body) if body else None
    except (ValueError, RecursionError):
        pass
    if 200 <= status < 300:
        return value
    told = value if isinstance(value, dict) else {}
    reason = str(told.get("reason") or f"its owner said {status}")
    raise HttpRefusal(status if status >= 400 else 503, reason, str(told.get("detail") or ""))


class TopicWork:
    """Operations on topics that several routers share."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    async def each(
        self,
        name: TopicName,
        method: str,
        action: str,
        work: Callable[[Topic], Awaitable[T]],
        body: JsonValue = None,
        *,
        creates: bool = False,
    ) -> list[T | JsonValue]:
        """Do `work` on a topic, or on each of its partitions at its owner.

        Args:
            method, action, body: the request that makes another broker do it; see `on_each`.
            creates: the topic may be created, if its namespace allows that; and some partitions may
                already have what `work` creates.

        Raises:
            ElsewhereError: the topic is not partitioned, and another broker owns it.
            TopicNotFoundError, RequestError
        """
        context = self._context

        async def one(of: TopicName) -> T:
            try:
                there = await context.served(of)
            except TopicNotFoundError:
                if not creates:
                    raise
                there = await context.topics.get(of)
            return await work(there)

        every = await self.partitions(name)
        if every is None:
            return [await one(name)]
        return await on_each(
            context.admin, every, one, method, action, completes=creates, body=body
        )

    async def partitions(self, name: TopicName) -> list[TopicName] | None:
        """Return the partitions of a partitioned topic; None if the topic is not partitioned.

        Raises:
            BrokerMetadataError
        """
        record = await self._context.topics.partitioned.find(name)
        if record is None:
            return None
        return [name.partition(index) for index in range(record.partitions)]

    async def single(
        self, tenant: str, namespace: str, topic: str, what: str, domain: str = "persistent"
    ) -> Topic:
        """Return a topic of this broker that is not partitioned. `what` names the operation, as in
        "a reset".

        Raises:
            HttpRefusal: 405, the topic is partitioned.
            ElsewhereError, TopicNotFoundError, RequestError
        """
        name = await self._context.topic(domain, tenant, namespace, topic)
        if await self.partitions(name) is not None:
            raise HttpRefusal(405, f"{what} is for a single partition; {name} has several")
        return await self._context.served(name)
