"""One request about a topic or each of its partitions: at the owner of each, here or elsewhere."""

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
"""To the leader, to the broker that it chooses, and once more if that has just changed."""

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

    `work` raises ElsewhereError if the topic is another broker's. `action`: what follows the topic
    in the path, without a slash before it, perhaps with a query; "": nothing. `may_be_missing`: a
    topic that does not exist is as good as done. `completes`: so is a conflict (409), as long as
    there is none for some other topic: an earlier attempt did not come to its end. `body`: of the
    request; None: it has none. `root`: what comes before the topic in the path. Returns what each
    has answered, in the order of the topics; the JSON value from other brokers, and None of those
    that are as good as done.

    Raises:
        RequestError, HttpRefusal: all were tried; this is the first that failed.
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
    """What the broker that has to be asked answers; what nobody has yet, the leader gives away
    first, and it may be anybody's then.

    Raises:
        BrokerMetadataError: nothing, or they send each other on.
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


def _path_of(topic: TopicName, action: str, root: str) -> str:
    path = f"{root}/{topic.domain}/{topic.namespace_name}/{quote(topic.local_name, safe='')}"
    if not action:
        return path
    return path + action if action.startswith("?") else f"{path}/{action}"


def _value_of(status: int, body: bytes) -> JsonValue:
    value: JsonValue = None
    try:
        value = json.loads(body) if body else None
    except ValueError:
        pass
    if 200 <= status < 300:
        return value
    told = value if isinstance(value, dict) else {}
    reason = str(told.get("reason") or f"its owner said {status}")
    raise HttpRefusal(status if status >= 400 else 503, reason, str(told.get("detail") or ""))


class TopicWork:
    """What routes about the data of topics share."""

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
        """Do the work on a topic, or on each of its partitions at its owner.

        `method`, `action`, `body`: the request that has another broker do it, see `on_each`.
        `creates`: the topic may appear, if its namespace lets it; and what the work makes may be
        there in some of the partitions.

        Raises:
            ElsewhereError: it is not partitioned, and another broker has it.
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
        """Return the partitions of a partitioned topic; None: the topic is not partitioned.

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
        """A topic of this broker that is not partitioned, for `what`, as in "a reset".

        Raises:
            HttpRefusal: 405, it is partitioned.
            ElsewhereError, TopicNotFoundError, RequestError
        """
        name = await self._context.topic(domain, tenant, namespace, topic)
        if await self.partitions(name) is not None:
            raise HttpRefusal(405, f"{what} is for a single partition; {name} has several")
        return await self._context.served(name)
