"""What brokers ask each other about segments, without HTTP: a way there, the real handler, a way
back.

A way that is blocked takes as long as that; a broker that is gone refuses the connection. The
asking broker gives up in time, and then nobody knows whether it was done: the other one goes on.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from starlette.responses import Response

from magnetar.broker.base.errors import BrokerMetadataError, RequestError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.ownership import Owner, Ownership
from magnetar.broker.http import refusals, scalable
from magnetar.broker.http.admin import Admin
from magnetar.broker.http.context import IS_AUTHORITATIVE, HttpContext
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.wire import TopicName

if TYPE_CHECKING:
    from tests.simulation.scalable.world import ScalableCluster

_Handler = Callable[..., Awaitable[object]]
_FIRST_PART = 4
"""Of a path like /admin/v2/segments/public/default/t/0000-7fff-1/terminate: the tenant."""


class SimAsks:
    """In the place of `HttpOrders`: how one broker asks the others."""

    def __init__(self, cluster: "ScalableCluster", name: str, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._name = name
        self._timeout_s = timeout_s

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        """What the broker at `http_url` answers.

        Raises:
            BrokerMetadataError: nothing; it may be done all the same.
        """
        there = urlsplit(http_url).hostname or ""
        front = self._cluster.front
        try:
            async with asyncio.timeout(self._timeout_s):
                await front._wait_way(self._name, there)
                machine = self._cluster.brokers[there]
                if machine.process is None or machine.broker is None:
                    raise BrokerMetadataError(f"cannot reach {http_url}: nobody listens there")
                work = machine.process.spawn(_answer(machine.broker, method, path), "asked")
                await asyncio.wait([work])
                if work.cancelled():
                    raise BrokerMetadataError(f"{http_url} has ended before it answered")
                answer = work.result()
                await front._wait_way(there, self._name)
                return answer
        except TimeoutError as error:
            raise BrokerMetadataError(f"cannot reach {http_url}: no answer in time") from error


class _Owners:
    """What handlers ask of the broker's administration."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool, listener: str) -> Owner:
        return await self._ownership.owner_of(
            topic, is_authoritative=is_authoritative, listener=listener
        )


async def _answer(broker: Broker, method: str, path: str) -> Answer:
    """Answer a request as the HTTP service does."""
    parts = urlsplit(path)
    query = dict(parse_qsl(parts.query))
    IS_AUTHORITATIVE.set(query.pop("authoritative", "false") == "true")
    owners = cast(Admin, _Owners(broker.services.ownership))
    context = HttpContext(lambda: owners, broker.services, broker._store, version="")
    names = [unquote(each) for each in parts.path.split("/")[_FIRST_PART:]]
    try:
        result = await _call(scalable._Segments(context), method, names, query)
    except refusals.ElsewhereError as error:
        query["authoritative"] = str(error.is_authoritative).lower()
        location = f"{error.http_url}{parts.path}?{urlencode(query)}"
        return Answer(307, b"", {"location": location})
    except refusals.HttpRefusal as error:
        return _refusal(error.status, error)
    except RequestError as error:
        return _refusal(refusals._status_of_request(error), error)
    except (LedgerError, CursorError) as error:
        return _refusal(503, error)
    if isinstance(result, Response):
        return Answer(result.status_code, b"")
    return Answer(200, json.dumps(result).encode())


def _refusal(status: int, error: Exception) -> Answer:
    return Answer(status, json.dumps({"reason": str(error)}).encode())


async def _call(
    segments: "scalable._Segments", method: str, names: list[str], query: Mapping[str, str]
) -> object:
    tenant, namespace, topic, descriptor, *rest = names
    whole = (tenant, namespace, topic)
    if descriptor == "held":
        return await segments.hold_back(*whole, query["subscription"])
    of_subscription = rest[:1] == ["subscription"]
    what = (method, *(rest[2:] if of_subscription else rest))
    if not of_subscription:
        handlers: dict[tuple[str, ...], _Handler] = {
            ("POST", "terminate"): segments.seal,
            ("PUT", "ahead"): segments.open_ahead,
            ("DELETE",): segments.delete,
            ("GET", "used-up"): segments.used_up,
            ("GET", "clients"): segments.clients,
        }
        return await handlers[what](*whole, descriptor)
    arguments = (*whole, descriptor, rest[1])
    match what:
        case ("DELETE",):
            is_forced = query.get("force") == "true"
            return await segments.unsubscribe(*arguments, force=is_forced)
        case ("POST", "seek"):
            at = query.get("timestamp")
            return await segments.seek(*arguments, timestamp=None if at is None else int(at))
        case ("PUT",):
            return await segments.subscribe(*arguments)
        case _:
            assert what == ("GET", "backlog"), what
            return await segments.backlog(*arguments)
