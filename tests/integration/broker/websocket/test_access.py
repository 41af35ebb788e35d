"""WebSocket clients with and without credentials: 401, 403, and what they may."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from tests.integration.broker.websocket.sockets import Topic, open_socket, status_of
from tests.standalone import Standalone

SECRET = b"s" * 32


def token(role: str, secret: bytes = SECRET) -> str:
    return jwt.encode({"sub": role}, secret, algorithm="HS256")


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role)}"}


def data_url(data: bytes) -> str:
    return f"data:;base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Two tenants, each with an administrator of its name."""
    settings = {
        "TOKEN_SECRET_KEY": data_url(SECRET),
        "AUTHORIZATION": "true",
        "SUPER_USERS": json.dumps(["root", "broker"]),
        "BROKER_CLIENT_TOKEN": data_url(token("broker").encode()),
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in settings.items():
            environment.setenv(f"MAGNETAR_BROKER_{name}", value)
        with Standalone(tmp_path_factory.mktemp("websocket-access") / "data") as started:
            for tenant in ("red", "blue"):
                body = {"adminRoles": [tenant], "allowedClusters": ["standalone"]}
                put(started, f"tenants/{tenant}", body)
                put(started, f"namespaces/{tenant}/n", {})
            yield started
            assert started.terminate() == 0
            started.assert_log_clean()
            for role in ("root", "broker", "red", "blue"):
                assert token(role) not in started.log_text()


def put(server: Standalone, path: str, body: object) -> None:
    request = urllib.request.Request(
        f"{server.http_url}/admin/v2/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **bearer("root")},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status < 300


async def test_who_is_allowed_produces_consumes_and_reads(guarded: Standalone) -> None:
    topic = Topic(guarded.http_port, "red/n/t")
    red: dict[str, Any] = {"additional_headers": bearer("red")}
    # Browsers cannot set headers: the token may be a parameter, with or without its prefix.
    by_query = f"token={token('red')}"
    prefixed = f"messageId=earliest&token=Bearer%20{token('red')}"
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
        f"Bearer {token('red', b'x' * 32)}",
        "Basic cmVkOnJlZA==",
        "",
    ],
)
async def test_without_good_credentials_there_is_no_session(
    guarded: Standalone, header: str | None
) -> None:
    topic = Topic(guarded.http_port, "red/n/t")
    options: dict[str, Any] = (
        {} if header is None else {"additional_headers": {"Authorization": header}}
    )
    for opening in (
        topic.producer(**options),
        topic.consumer(**options),
        topic.reader(**options),
    ):
        assert await status_of(opening) == 401


async def test_a_header_counts_before_a_parameter(guarded: Standalone) -> None:
    topic = Topic(guarded.http_port, "red/n/t")
    options: dict[str, Any] = {"additional_headers": {"Authorization": "Bearer nonsense"}}
    assert await status_of(topic.producer(f"token={token('red')}", **options)) == 401


async def test_nobody_reaches_another_tenant_by_any_way(guarded: Standalone) -> None:
    port = guarded.http_port
    own, foreign = Topic(port, "red/n/own"), Topic(port, "blue/n/t")
    red: dict[str, Any] = {"additional_headers": bearer("red")}
    there = "persistent://blue/n/"
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
