"""WebSocket clients with and without credentials: 401, 403, and what they may."""

import asyncio
import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
import websockets
from websockets.asyncio.client import connect

from magnetar.sdk import ClientSettings
from magnetar.sdk.errors import OperationTimeoutError
from magnetar.sdk.web_socket import WebSocketClient
from magnetar.sdk.wire.errors import AuthenticationError, AuthorizationError
from tests.integration.broker.broker_on_bookies import broker_on
from tests.integration.broker.security.secured import Secured, bearer, token_for
from tests.integration.broker.websocket.sockets import Socket, Topic, open_socket, status_of
from tests.integration.ledger.cluster import cluster_of
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
    # Who may publish to a topic may not make subscriptions of it for that.
    sender: dict[str, Any] = {"additional_headers": bearer(token_for("sender"))}
    path = "/admin/v2/namespaces/red/ns/permissions/sender"
    assert guarded.as_role("red", "POST", path, ["produce"])[0] == 204
    path = "/admin/v2/persistent/red/ns/own/permissions/sender"
    assert guarded.as_role("red", "POST", path, ["consume"])[0] == 204
    letters = f"subscriptionType=Shared&maxRedeliverCount=1&deadLetterTopic={own.url}-letters"
    async with own.consumer(letters, **sender):
        pass
    letters += "&deadLetterInitialSubscription=morgue"
    assert await status_of(own.consumer(letters, **sender)) == 403
    assert await asyncio.gather(*map(status_of, open_ways)) == [403] * len(open_ways)
    query = f"subscriptionType=Shared&maxRedeliverCount=1&deadLetterTopic={own.url}-letters"
    async with own.consumer(query, **red):
        pass


async def test_a_session_ends_when_its_right_is_taken_away(guarded: Secured) -> None:
    port, path = guarded.http_port, "/admin/v2/namespaces/red/ns/permissions/guest"
    topic, other = Topic(port, "red/ns/lent"), Topic(port, "red/ns/own")
    guest: dict[str, Any] = {"additional_headers": bearer(token_for("guest"))}
    red: dict[str, Any] = {"additional_headers": bearer(token_for("red"))}
    assert guarded.as_role("red", "POST", path, ["produce", "consume"])[0] == 204
    async with (
        topic.producer(**guest) as producer,
        topic.consumer(**guest) as consumer,
        topic.reader(**guest) as reader,
        open_socket(
            port, "/ws/v3/consumer/all?topicsPattern=persistent://red/ns/l.*", **guest
        ) as pattern,
        other.producer(**red) as kept,
    ):
        await producer.publish_ok("while I may")
        assert await consumer.payload() == "while I may"
        assert guarded.as_role("red", "DELETE", path)[0] == 204
        ended = [each.closed() for each in (producer, consumer, reader, pattern)]
        assert await asyncio.gather(*ended) == [1008] * 4
        assert "guest" in (producer.connection.close_reason or "")
        await kept.publish_ok("still")
    openings = (topic.producer(**guest), topic.consumer(**guest), topic.reader(**guest))
    assert await asyncio.gather(*map(status_of, openings)) == [403] * 3


async def test_a_session_ends_with_its_credentials(guarded: Secured) -> None:
    topic = Topic(guarded.http_port, "red/ns/t")
    async with topic.producer(additional_headers=bearer(token_for("red"))):
        pass  # A topic that is there has no disk to wait for.
    # Longer than the handshakes take on a machine that is busy.
    ends_at = int(time.time()) + 4
    short: dict[str, Any] = {"additional_headers": bearer(token_for("red", exp=ends_at))}
    async with topic.producer(**short) as producer, topic.reader(**short) as reader:
        assert await producer.closed() == await reader.closed() == 1008
        assert time.time() >= ends_at
        assert producer.connection.close_reason == "the credentials have expired"
    assert await status_of(topic.producer(**short)) == 401


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


async def test_the_sdk_over_web_sockets_with_tls_and_a_token(guarded: Secured) -> None:
    url = f"wss://{HOST}:{guarded.https_port}"
    name = "persistent://red/ns/by-sdk"
    settings = ClientSettings(
        auth_method_name="token",
        auth_data=token_for("red").encode(),
        tls_trust_file=str(guarded.authority.path),
    )
    async with WebSocketClient(url, settings) as web:
        async with await web.producer(name) as producer:
            await producer.send(b"hello")
        async with await web.reader(name) as reader:
            assert (await reader.read_next(timeout_s=30)).data == b"hello"
    for data, refusal in (
        (token_for("blue").encode(), AuthorizationError),
        (b"nonsense", AuthenticationError),
    ):
        async with WebSocketClient(url, replace(settings, auth_data=data)) as web:
            with pytest.raises(refusal, match=r"HTTP 40[13]"):
                await web.producer(name)
    untrusting = ClientSettings(operation_timeout_ms=50)
    with pytest.raises(OperationTimeoutError, match="CERTIFICATE_VERIFY_FAILED"):
        await WebSocketClient(url, untrusting).producer(name)


async def test_the_plain_ports_of_an_address_of_their_own_serve_sessions(tmp_path: Path) -> None:
    """A session reaches its own broker there, too: nothing listens on `host`."""
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, host="127.0.0.2", plain_host="127.0.0.1") as broker,
    ):
        topic = Topic(broker.http_port, "public/default/plain")
        async with topic.consumer() as consumer, topic.producer() as producer:
            await producer.publish_ok("mine")
            assert await consumer.payload() == "mine"
