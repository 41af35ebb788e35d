"""Credentials that end, and rights that are taken away, while a client works by them."""

import http.client
import time
from typing import Any

import pytest

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.integration.broker.security.secured import Secured, bearer, token_for
from tests.processes import HOST

TOPIC = "persistent://acme/ns/middle"
GRANTS = "/admin/v2/namespaces/acme/ns/permissions"


def login(server: Secured, token: str, *, can_refresh: bool = False) -> RawConnection:
    connection = RawConnection(server.port)
    connect = pb.CommandConnect(
        client_version="test",
        protocol_version=20,
        auth_method_name="token",
        auth_data=token.encode(),
        feature_flags=pb.FeatureFlags(supports_auth_refresh=can_refresh),
    )
    connection.send_command(BaseCommand(type=BaseCommand.CONNECT, connect=connect))
    assert connection.receive().type == BaseCommand.CONNECTED
    return connection


def subscribe(connection: RawConnection) -> BaseCommand:
    fields: dict[str, Any] = {"topic": TOPIC, "subscription": "s", "consumer_id": 1}
    request = pb.CommandSubscribe(**fields, subType=pb.CommandSubscribe.Shared, request_id=3)
    connection.send_command(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=request))
    return connection.receive()


def test_a_producer_and_a_consumer_are_closed_when_their_rights_are_taken_away(
    server: Secured,
) -> None:
    grant = f"{GRANTS}/guest"
    assert server.as_role("acme-admin", "POST", grant, ["produce", "consume"])[0] == 204
    with (
        login(server, token_for("guest")) as guest,
        login(server, token_for("acme-admin")) as owner,
    ):
        guest.open_producer(TOPIC)
        owner.open_producer(TOPIC, producer_id=2)
        assert subscribe(guest).type == BaseCommand.SUCCESS
        guest.send(send_frame(b"while I may"))
        assert guest.receive().type == BaseCommand.SEND_RECEIPT
        assert server.as_role("acme-admin", "DELETE", grant)[0] == 204
        closed = {guest.receive().type, guest.receive().type}
        assert closed == {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}
        answers = (guest.produce(TOPIC, producer_id=5), subscribe(guest))
        for answer in answers:
            assert answer.error.error == pb.ServerError.AuthorizationError
            assert "'guest'" in answer.error.message
        owner.send(send_frame(b"still", producer_id=2))
        assert owner.receive().type == BaseCommand.SEND_RECEIPT


@pytest.mark.parametrize(
    ("can_refresh", "answer"),
    [(False, None), (True, "nonsense"), (True, "expired"), (True, "another role's")],
)
def test_credentials_that_end_end_the_connection_with_the_reason(
    server: Secured, can_refresh: bool, answer: str | None
) -> None:
    """The handshake must come first, also on a machine that is busy: the token lives 4 s."""
    with login(server, token_for("acme-admin")) as owner:
        owner.open_producer(TOPIC)  # A topic that is there has no disk to wait for.
    ends_at = int(time.time()) + 4
    with login(server, token_for("acme-admin", exp=ends_at), can_refresh=can_refresh) as client:
        client.open_producer(TOPIC)
        if can_refresh:
            challenge = client.receive()
            assert challenge.type == BaseCommand.AUTH_CHALLENGE
            assert challenge.authChallenge.challenge.auth_method_name == "token"
            assert time.time() >= ends_at
            client.send(send_frame(b"while it is asked for"))
            assert client.receive().type == BaseCommand.SEND_RECEIPT
            made = {
                "expired": token_for("acme-admin", exp=ends_at),
                "another role's": token_for("root"),
            }
            data = pb.AuthData(
                auth_method_name="token", auth_data=made.get(answer or "", answer or "").encode()
            )
            response = pb.CommandAuthResponse(client_version="test", response=data)
            command = BaseCommand(type=BaseCommand.AUTH_RESPONSE, authResponse=response)
            client.send_command(command)
        said = client.receive_until_closed()
    errors = [each.error for each in said if each.type == BaseCommand.ERROR]
    assert [each.error for each in errors] == [pb.ServerError.AuthenticationError]
    reasons = {"nonsense": "not a JSON Web Token", "another role's": "another role"}
    assert reasons.get(answer or "", "expired") in errors[0].message


def test_one_http_connection_is_judged_by_each_request(server: Secured) -> None:
    """401 once its token has ended, 403 once its grant is gone."""
    grant = f"{GRANTS}/reader"
    path = "/admin/v2/persistent/acme/ns"
    assert server.as_role("acme-admin", "POST", grant, ["consume"])[0] == 204
    ends_at = int(time.time()) + 4
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=20)

    def status(token: str) -> int:
        connection.request("GET", path, headers=bearer(token))
        response = connection.getresponse()
        response.read()
        return response.status

    short = token_for("reader", exp=ends_at)
    try:
        assert status(short) == 200
        while (found := status(short)) == 200:
            assert time.time() < ends_at + 10, "the token has ended"
        assert found == 401
        assert status(token_for("reader")) == 200
        assert server.as_role("acme-admin", "DELETE", grant)[0] == 204
        assert status(token_for("reader")) == 403
    finally:
        connection.close()
