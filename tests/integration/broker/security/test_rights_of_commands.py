"""Every command of the binary protocol that reaches a topic, and WebSockets, asked by strangers."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection
from tests.integration.broker.security.secured import PASSWORD, Secured, bearer, token_for
from tests.processes import HOST

TOPIC = "persistent://acme/ns/commands"
SCHEMA = pb.Schema(name="s", schema_data=b'{"type":"string"}', type=pb.Schema.Avro)

COMMANDS: dict[str, dict[str, Any]] = {
    "producer": {"topic": TOPIC, "producer_id": 1},
    "subscribe": {
        "topic": TOPIC,
        "subscription": "s",
        "subType": pb.CommandSubscribe.Shared,
        "consumer_id": 1,
    },
    "lookupTopic": {"topic": TOPIC},
    "partitionMetadata": {"topic": TOPIC},
    "getTopicsOfNamespace": {"namespace": "acme/ns"},
    "getSchema": {"topic": TOPIC},
    "getOrCreateSchema": {"topic": TOPIC, "schema": SCHEMA},
    "watchTopicList": {"watcher_id": 1, "namespace": "acme/ns", "topics_pattern": ".*"},
    "scalableTopicLookup": {"session_id": 1, "topic": TOPIC},
    "scalableTopicSubscribe": {
        "topic": TOPIC,
        "subscription": "s",
        "consumer_name": "c",
        "consumer_id": 1,
        "consumer_type": pb.STREAM,
    },
    "watchScalableTopics": {"watch_id": 1, "namespace": "acme/ns"},
}
ANSWERS = {
    "lookupTopic": "lookupTopicResponse",
    "partitionMetadata": "partitionMetadataResponse",
    "getSchema": "getSchemaResponse",
    "getOrCreateSchema": "getOrCreateSchemaResponse",
    "scalableTopicLookup": "scalableTopicUpdate",
    "scalableTopicSubscribe": "scalableTopicSubscribeResponse",
    "watchScalableTopics": "watchScalableTopicsUpdate",
}
TYPES = {
    "producer": BaseCommand.PRODUCER,
    "subscribe": BaseCommand.SUBSCRIBE,
    "lookupTopic": BaseCommand.LOOKUP,
    "partitionMetadata": BaseCommand.PARTITIONED_METADATA,
    "getTopicsOfNamespace": BaseCommand.GET_TOPICS_OF_NAMESPACE,
    "getSchema": BaseCommand.GET_SCHEMA,
    "getOrCreateSchema": BaseCommand.GET_OR_CREATE_SCHEMA,
    "watchTopicList": BaseCommand.WATCH_TOPIC_LIST,
    "scalableTopicLookup": BaseCommand.SCALABLE_TOPIC_LOOKUP,
    "scalableTopicSubscribe": BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
    "watchScalableTopics": BaseCommand.WATCH_SCALABLE_TOPICS,
}


def login(server: Secured, method: str, data: bytes, **fields: Any) -> tuple[RawConnection, Any]:
    """A connection, and the answer to its CONNECT."""
    connection = RawConnection(server.port)
    connection.send_command(
        BaseCommand(
            type=BaseCommand.CONNECT,
            connect=pb.CommandConnect(
                client_version="test",
                protocol_version=21,
                auth_method_name=method,
                auth_data=data,
                **fields,
            ),
        )
    )
    return connection, connection.receive()


def ask(
    connection: RawConnection, kind: str, fields: Mapping[str, Any] | None = None
) -> int | None:
    """Send a command, with its usual fields or others; the code of its refusal."""
    command = BaseCommand(type=TYPES[kind])
    request = type(getattr(command, kind))(**(fields or COMMANDS[kind]))
    if "request_id" in request.DESCRIPTOR.fields_by_name:
        request.request_id = 7
    getattr(command, kind).MergeFrom(request)
    connection.send_command(command)
    answer = connection.receive()
    if answer.type == BaseCommand.ERROR:
        return answer.error.error
    part = getattr(answer, ANSWERS.get(kind, ""), None)
    for field in ("error", "error_code"):
        if part is not None and field in part.DESCRIPTOR.fields_by_name and part.HasField(field):
            code: int = getattr(part, field)
            return code
    return None


@pytest.fixture(scope="module")
def stranger(server: Secured) -> Iterator[RawConnection]:
    connection, answer = login(server, "token", token_for("other-admin").encode())
    assert answer.type == BaseCommand.CONNECTED
    with connection:
        yield connection


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_stranger_gets_authorization_error_from_every_command(
    stranger: RawConnection, kind: str
) -> None:
    assert ask(stranger, kind) == pb.ServerError.AuthorizationError


def test_the_tenants_own_people_get_none(server: Secured) -> None:
    connection, _ = login(server, "token", token_for("acme-admin").encode())
    with connection:
        refused = {kind: ask(connection, kind) for kind in COMMANDS}
    assert pb.ServerError.AuthorizationError not in refused.values()
    assert refused["producer"] is None
    assert refused["lookupTopic"] is None


@pytest.mark.parametrize(
    ("role", "refusal"),
    [
        ("ingest", pb.ServerError.AuthorizationError),
        ("acme-admin", None),
        ("root", None),
    ],
)
def test_copies_of_other_clusters_are_brought_by_administrators_alone(
    server: Secured, role: str, refusal: int | None
) -> None:
    """Copies say themselves who published them, and when."""
    permissions = "/admin/v2/namespaces/acme/ns/permissions/ingest"
    assert server.as_role("acme-admin", "POST", permissions, ["produce"])[0] == 204
    connection, _ = login(server, "token", token_for(role).encode())
    with connection:
        producer = {**COMMANDS["producer"], "producer_name": "pulsar.repl.elsewhere"}
        assert ask(connection, "producer", producer) == refusal


@pytest.mark.parametrize(
    ("method", "data", "reason"),
    [
        ("none", "", "credentials are required: accepted: basic, tls, token"),
        ("", "", "credentials are required"),
        ("token", "", "the token is empty"),
        ("token", "nonsense", "not a JSON Web Token"),
        ("token", "expired", "the token has expired"),
        ("token", "proxy", "must give the original principal"),
        ("basic", "basil:wrong", "wrong user or password"),
        ("basic", "nobody:wrong", "wrong user or password"),
        ("basic", "basil", "user:password"),
        ("tls", "", "credentials are required"),
        ("sasl", "x", "'sasl' is not accepted"),
    ],
)
def test_credentials_that_prove_nothing_get_authentication_error_at_connect(
    server: Secured, method: str, data: str, reason: str
) -> None:
    made = {
        "expired": token_for("root", exp=int(time.time()) - 1),
        "proxy": token_for("proxy"),
    }
    connection, answer = login(server, method, made.get(data, data).encode())
    with connection:
        assert answer.type == BaseCommand.ERROR
        assert answer.error.error == pb.ServerError.AuthenticationError
        assert reason in answer.error.message


def test_a_role_that_is_no_proxy_cannot_name_another_principal(server: Secured) -> None:
    token = token_for("other-admin").encode()
    connection, answer = login(server, "token", token, original_principal="root")
    with connection:
        assert answer.error.error == pb.ServerError.AuthenticationError
    connection, answer = login(server, "token", token)
    with connection:
        command = BaseCommand(
            type=BaseCommand.LOOKUP,
            lookupTopic=pb.CommandLookupTopic(topic=TOPIC, request_id=1, original_principal="root"),
        )
        connection.send_command(command)
        failed = connection.receive().lookupTopicResponse
        assert failed.error == pb.ServerError.AuthenticationError


# WebSocket

SOCKETS = (
    "/ws/v2/producer/persistent/acme/ns/commands",
    "/ws/v2/consumer/persistent/acme/ns/commands/s",
    "/ws/v2/reader/persistent/acme/ns/commands",
    "/ws/v3/consumer/s?topics=persistent://acme/ns/commands",
)


def refusal(server: Secured, path: str, headers: dict[str, str]) -> int:
    url = f"ws://{HOST}:{server.http_port}{path}"
    with pytest.raises(InvalidStatus) as caught:
        websockets.sync.client.connect(url, additional_headers=headers, open_timeout=30)
    return int(caught.value.response.status_code)


@pytest.mark.parametrize("path", SOCKETS)
def test_websockets_ask_who_it_is_and_what_it_may(server: Secured, path: str) -> None:
    assert refusal(server, path, {}) == 401
    assert refusal(server, path, bearer("wrong")) == 401
    assert refusal(server, path, bearer(token_for("other-admin"))) == 403


def test_a_password_opens_no_door_that_its_role_may_not(server: Secured) -> None:
    connection, answer = login(server, "basic", f"basil:{PASSWORD}".encode())
    with connection:
        assert answer.type == BaseCommand.CONNECTED
        command = BaseCommand(
            type=BaseCommand.LOOKUP,
            lookupTopic=pb.CommandLookupTopic(topic="persistent://other/ns/x", request_id=1),
        )
        connection.send_command(command)
        failed = connection.receive().lookupTopicResponse
        assert failed.error == pb.ServerError.AuthorizationError
