"""WebSocket clients with and without credentials: 401, 403, and what they may."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
import websockets
from websockets.asyncio.client import connect

from tests.integration.broker.security.secured import Secured, bearer, token_for
from tests.integration.broker.websocket.sockets import Socket, Topic, open_socket, status_of
from tests.processes import HOST


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Two tenants, each with an administrator of its name."""
    own = base64.b64encode(token_for("root").encode()).decode()
    settings = [f"broker_client_token = 'data:;base64,{own}'"]
    made = Secured(tmp_path_factory.mktemp("websocket-access") / "data", settings=settings)
    with made:
        for tenant in ("red", "blue"):
            made.make_tenant(tenant, tenant)
        yield made
        assert made.terminate() == 0
        made.assert_log_clean()
        assert "eyJ" not in made.log_text()


async def test_who_is_allowed_produces_consumes_and_reads(guarded: Secured) -> None:
    topic = Topic(guarded.http_port, "red/ns/t")
    red: dict[str, Any] = {"additional_headers": bearer(token_for("red"))}
    # Browsers cannot set headers: the token may be a parameter, with or without its prefix.
    by_query = f"token={token_for('red')}"
    prefixed = f"messageId=earliest&token=Bearer%20{token_for('red')}"
    async with (
        topic.consumer(**red) as consumer,
        topic.producer(by_query) as producer,
        topic.reader(prefixed) as reader,
    ):
        await producer.publish_ok("mine")
        assert await consumer.payload() == "mine"
        assert await reader.payload() == "mine"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer nonsense",
        f"Bearer {jwt.encode({'sub': 'red'}, b'x' * 32, 'HS256')}",
        "Basic cmVkOnJlZA==",
        "",
    ],
)
async def test_without_good_credentials_there_is_no_session(
    guarded: Secured, header: str | None
) -> None:
    topic = Topic(guarded.http_port, "red/ns/t")
    options: dict[str, Any] = (
        {} if header is None else {"additional_headers": {"Authorization": header}}
    )
    for opening in (
        topic.producer(**options),
        topic.consumer(**options),
        topic.reader(**options),
    ):
        assert await status_of(opening) == 401


async def test_a_header_counts_before_a_parameter(guarded: Secured) -> None:
    topic = Topic(guarded.http_port, "red/ns/t")
    options: dict[str, Any] = {"additional_headers": {"Authorization": "Bearer nonsense"}}
    assert await status_of(topic.producer(f"token={token_for('red')}", **options)) == 401


async def test_nobody_reaches_another_tenant_by_any_way(guarded: Secured) -> None:
    port = guarded.http_port
    own, foreign = Topic(port, "red/ns/own"), Topic(port, "blue/ns/t")
    red: dict[str, Any] = {"additional_headers": bearer(token_for("red"))}
    there = "persistent://blue/ns/"
    open_ways = (
        foreign.producer(**red),
        foreign.consumer(**red),
        foreign.reader(**red),
        open_socket(port, f"/ws/v3/consumer/s?topics={own.url},{foreign.url}", **red),
        open_socket(port, f"/ws/v3/consumer/s?topicsPattern={there}.*", **red),
        # The broker itself may write everywhere: its clients' dead letters may not.
        own.consumer(
            f"subscriptionType=Shared&maxRedeliverCount=1&deadLetterTopic={there}letters", **red
        ),
    )
    assert await asyncio.gather(*map(status_of, open_ways)) == [403] * len(open_ways)
    query = f"subscriptionType=Shared&maxRedeliverCount=1&deadLetterTopic={own.url}-letters"
    async with own.consumer(query, **red):
        pass


async def test_a_certificate_is_a_credential(guarded: Secured) -> None:
    topic = Topic(guarded.http_port, "red/ns/by-certificate")
    base = f"wss://{HOST}:{guarded.https_port}/ws/v2"
    red, blue = (guarded.client_tls(guarded.authority.issue(role)) for role in ("red", "blue"))
    async with (
        connect(f"{base}/consumer/{topic.path}/s", ssl=red) as consumer,
        connect(f"{base}/producer/{topic.path}", ssl=red) as producer,
    ):
        await Socket(producer).publish_ok("sealed")
        assert await Socket(consumer).payload() == "sealed"
    for context, status in ((blue, 403), (guarded.client_tls(), 401)):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(f"{base}/producer/{topic.path}", ssl=context)
        assert refused.value.response.status_code == status
