"""Authentication of one connection: CONNECT, expiry, challenges, rights that are taken away."""

import asyncio
import base64
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest

from magnetar.broker.policies.model import TenantRecord, tenant_path
from magnetar.broker.protocol import revoking as revoking_module
from magnetar.broker.protocol.connection import Connection
from magnetar.broker.protocol.revoking import IsConcerned, Revoking
from magnetar.broker.security import Action, Resource
from magnetar.broker.security.identity import Identity
from magnetar.broker.topic.subscription import Subscription
from magnetar.sdk.wire import PING_FRAME, BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.waiting import settle

SECRET = b"s" * 32
KEY = f"data:;base64,{base64.b64encode(SECRET).decode()}"


class Secured(Harness):
    """With tokens and authorization; `admin` administers the tenant of the topic."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            token_secret_key=KEY, authorization=True, super_users=("root",), **settings
        )
        self.security.load()
        self.store.nodes[tenant_path("public")] = TenantRecord(admin_roles=("admin",)).encode()

    def token(self, role: str, **claims: Any) -> bytes:
        return jwt.encode({"sub": role, **claims}, SECRET, algorithm="HS256").encode()

    async def login(
        self, data: bytes, *, can_refresh: bool = True, **fields: Any
    ) -> tuple[Client, BaseCommand]:
        client = self.client(connect=False)
        client.send(
            BaseCommand.CONNECT,
            connect=pb.CommandConnect(
                client_version="test",
                protocol_version=20,
                auth_method_name="token",
                auth_data=data,
                feature_flags=pb.FeatureFlags(supports_auth_refresh=can_refresh),
                **fields,
            ),
        )
        return client, await client.next()

    def grant(self, **permissions: tuple[str, ...]) -> None:
        namespaces = self.policies.namespaces
        changed = {"permissions": permissions}
        namespaces["public/default"] = namespaces["public/default"].model_copy(update=changed)


async def test_a_good_token_is_welcome_and_a_bad_one_is_told_why_and_closed() -> None:
    harness = Secured()
    client, answer = await harness.login(harness.token("admin"))
    assert answer.type == BaseCommand.CONNECTED
    assert client.connection.login.identity.role == "admin"
    client, answer = await harness.login(b"wrong")
    assert answer.error.error == pb.ServerError.AuthenticationError
    assert answer.error.request_id == (1 << 64) - 1
    assert client.io.is_closed
    assert harness.services.counters.authentications_failed == 1


async def test_nothing_is_served_before_the_proof_is_done() -> None:
    harness = Secured()
    client = harness.client(connect=False)
    client.send(
        BaseCommand.CONNECT,
        connect=pb.CommandConnect(
            client_version="test", auth_method_name="token", auth_data=harness.token("admin")
        ),
    )
    client.send_bytes(PING_FRAME)
    assert client.io.is_closed


async def test_an_expired_client_is_challenged_and_goes_on_with_a_new_token() -> None:
    harness = Secured()
    now_s = harness.services.clock.wall_ms() // 1000
    harness.clock.now_ms = now_s * 1000
    client, _ = await harness.login(harness.token("admin", exp=now_s))
    assert client.io.is_closed  # expired already
    harness.clock.now_ms = (now_s - 10) * 1000
    client, _ = await harness.login(harness.token("admin", exp=now_s - 1))
    challenge = await client.next()
    assert challenge.type == BaseCommand.AUTH_CHALLENGE
    assert challenge.authChallenge.challenge.auth_method_name == "token"
    assert challenge.authChallenge.challenge.auth_data == b"PulsarAuthRefresh"
    answer(client, harness.token("admin", exp=now_s + 1000))
    await settle()
    assert not client.io.is_closed
    assert client.connection.login.identity.expires_at_ms == (now_s + 1000) * 1000


def answer(client: Client, data: bytes) -> None:
    client.send(
        BaseCommand.AUTH_RESPONSE,
        authResponse=pb.CommandAuthResponse(
            response=pb.AuthData(auth_method_name="token", auth_data=data)
        ),
    )


@pytest.mark.parametrize("role", ["other", ""])
async def test_a_challenge_answered_by_another_role_or_wrongly_is_the_end(role: str) -> None:
    harness = Secured()
    now_s = harness.services.clock.wall_ms() // 1000
    harness.clock.now_ms = (now_s - 10) * 1000
    client, _ = await harness.login(harness.token("admin", exp=now_s - 1))
    assert (await client.next()).type == BaseCommand.AUTH_CHALLENGE
    answer(client, harness.token(role, exp=now_s + 1000) if role else b"wrong")
    refused = await client.next()
    assert refused.error.error == pb.ServerError.AuthenticationError
    assert client.io.is_closed


async def test_a_client_that_cannot_be_challenged_ends_with_its_token() -> None:
    harness = Secured()
    now_s = harness.services.clock.wall_ms() // 1000
    harness.clock.now_ms = (now_s - 10) * 1000
    client, _ = await harness.login(harness.token("admin", exp=now_s - 1), can_refresh=False)
    refused = await client.next()
    assert refused.error.message == "the credentials have expired"
    assert client.io.is_closed


async def test_a_challenge_that_nobody_answers_is_the_end() -> None:
    harness = Secured(credentials_refresh_ms=10)
    now_s = harness.services.clock.wall_ms() // 1000
    harness.clock.now_ms = (now_s - 10) * 1000
    client, _ = await harness.login(harness.token("admin", exp=now_s - 1))
    assert (await client.next()).type == BaseCommand.AUTH_CHALLENGE
    assert "sent no new ones" in (await client.next()).error.message


@pytest.mark.parametrize("is_challenged", [False, True])
async def test_a_proof_that_fails_by_a_defect_is_a_refusal_and_the_end(
    is_challenged: bool,
) -> None:
    harness = Secured()
    now_s = harness.services.clock.wall_ms() // 1000
    harness.clock.now_ms = (now_s - 10) * 1000
    may_fail = asyncio.Event()

    async def fail(*_: object, **__: object) -> Identity:
        await may_fail.wait()
        raise RuntimeError("a defect")

    if is_challenged:
        client, _ = await harness.login(harness.token("admin", exp=now_s - 1))
        assert (await client.next()).type == BaseCommand.AUTH_CHALLENGE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.services.authenticator, "authenticate", fail)
        if is_challenged:
            answer(client, harness.token("admin", exp=now_s + 1000))
            client.connection.login._on_no_answer()  # its time is over while it is being proven
            may_fail.set()
            refused = await client.next()
        else:
            may_fail.set()
            client, refused = await harness.login(harness.token("admin"))
    assert refused.error.error == pb.ServerError.AuthenticationError
    assert client.io.is_closed
    await settle()
    assert harness.services.counters.requests_failed == 1


async def test_expired_credentials_are_proven_again_however_many_requests_wait() -> None:
    harness = Secured(requests_per_connection_max=1, credentials_refresh_ms=10)
    now_s = harness.services.clock.wall_ms() // 1000
    harness.clock.now_ms = (now_s - 10) * 1000
    client, _ = await harness.login(harness.token("admin", exp=now_s - 1))
    harness.grant(admin=("consume",))
    harness.topics.gate = asyncio.Event()
    await settle()
    client.send_subscribe(1)
    assert (await client.next()).type == BaseCommand.AUTH_CHALLENGE
    answer(client, b"wrong")
    refused = await client.next()
    assert refused.error.error == pb.ServerError.AuthenticationError
    assert client.io.is_closed


async def test_rights_are_asked_for_at_each_way_into_a_topic() -> None:
    harness = Secured()
    client, _ = await harness.login(harness.token("writer"))
    refused = await client.produce()
    assert refused.error.error == pb.ServerError.AuthorizationError
    harness.grant(writer=("produce",))
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_right_that_is_taken_away_closes_who_worked_by_it() -> None:
    harness = Secured()
    harness.grant(writer=("produce",), keeper=("produce",))
    (one, _), (two, _) = [await harness.login(harness.token(r)) for r in ("writer", "keeper")]
    for client in (one, two):
        assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS
    revoking = Revoking(lambda: [one.connection, two.connection])
    harness.grant(keeper=("produce",))
    revoking.changed("public/default")
    assert (await one.next()).type == BaseCommand.CLOSE_PRODUCER
    await settle()
    assert two.received() == []


async def test_rights_are_looked_at_now_and_then_even_if_nobody_told_of_a_change() -> None:
    harness = Secured()
    harness.grant(writer=("produce",))
    client, _ = await harness.login(harness.token("writer"))
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS
    revoking = Revoking(lambda: [client.connection], recheck_interval_s=0.01)
    revoking.start()
    harness.grant()
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
    revoking.close()


async def test_an_unexpected_error_with_one_client_keeps_no_right_of_others_alive() -> None:
    harness = Secured()
    harness.grant(writer=("produce",))
    client, _ = await harness.login(harness.token("writer"))
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS
    broken = cast(Connection, SimpleNamespace())
    revoking = Revoking(lambda: [broken, client.connection])
    harness.grant()
    revoking.changed("public/default")
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER
    revoking.close()


async def test_a_record_that_cannot_be_read_keeps_no_right_of_others_alive() -> None:
    harness = Secured(namespaces=("public/default", "public/unreadable"))
    harness.grant(writer=("produce",))
    namespaces = harness.policies.namespaces
    namespaces["public/unreadable"] = namespaces["public/default"]
    (one, _), (two, _) = [await harness.login(harness.token("writer")) for _ in range(2)]
    assert (await one.produce(topic="public/unreadable/t")).type == BaseCommand.PRODUCER_SUCCESS
    assert (await one.produce(1)).type == BaseCommand.PRODUCER_SUCCESS
    assert (await two.produce()).type == BaseCommand.PRODUCER_SUCCESS
    looked_at: list[bool] = []

    async def check_sessions(is_concerned: IsConcerned) -> None:
        looked_at.append(is_concerned("public/default"))

    revoking = Revoking(lambda: [one.connection, two.connection], check_sessions)
    harness.policies.unreadable.add("public/unreadable")
    harness.grant()
    revoking.changed("public/")
    assert (await two.next()).type == BaseCommand.CLOSE_PRODUCER
    assert one.take(BaseCommand.CLOSE_PRODUCER).close_producer.producer_id == 1
    await settle()
    assert looked_at == [True]
    assert one.received() == []
    revoking.close()


async def test_a_check_that_fails_by_a_defect_spares_no_client_and_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Secured()
    harness.grant(writer=("produce",))
    (one, _), (two, _) = [await harness.login(harness.token("writer")) for _ in range(2)]
    assert (await one.produce()).type == BaseCommand.PRODUCER_SUCCESS
    assert (await two.produce()).type == BaseCommand.PRODUCER_SUCCESS
    may, sessions_fail = one.connection.login.may, [True]

    async def may_fail(action: Action, resource: Resource) -> bool:
        monkeypatch.setattr(one.connection.login, "may", may)
        raise RuntimeError("a defect")

    async def check_sessions(_: IsConcerned) -> None:
        if sessions_fail.pop():
            sessions_fail.append(False)
            raise RuntimeError("a defect")

    monkeypatch.setattr(one.connection.login, "may", may_fail)
    monkeypatch.setattr(revoking_module, "_RETRY_S", 0)
    revoking = Revoking(lambda: [one.connection, two.connection], check_sessions)
    harness.grant()
    revoking.changed("public/default")
    assert (await two.next()).type == BaseCommand.CLOSE_PRODUCER
    assert (await one.next()).type == BaseCommand.CLOSE_PRODUCER
    await settle()
    assert sessions_fail == []
    revoking.close()


async def test_a_change_that_is_told_when_a_look_has_just_ended_is_looked_at_too() -> None:
    harness = Secured()
    harness.grant(writer=("produce",))
    client, _ = await harness.login(harness.token("writer"))
    assert (await client.produce()).type == BaseCommand.PRODUCER_SUCCESS

    def change() -> None:
        harness.grant()
        revoking.changed("public/default")

    async def check_sessions(_: IsConcerned) -> None:
        if not has_ended:  # the last thing that a look does
            has_ended.append(True)
            asyncio.get_running_loop().call_soon(change)

    has_ended: list[bool] = []
    revoking = Revoking(lambda: [client.connection], check_sessions)
    revoking.changed("other/namespace")
    assert (await client.next()).type == BaseCommand.CLOSE_PRODUCER


async def test_a_right_that_is_taken_away_while_a_producer_waits_for_its_turn_is_gone() -> None:
    harness = Secured()
    harness.grant(writer=("produce",), keeper=("produce",))
    (first, _), (second, _) = [await harness.login(harness.token(r)) for r in ("keeper", "writer")]
    waits = pb.ProducerAccessMode.WaitForExclusive
    assert (await first.produce(producer_access_mode=waits)).producer_success.producer_ready
    queued = await second.produce(producer_access_mode=waits)
    assert not queued.producer_success.producer_ready
    harness.grant(keeper=("produce",))
    first.connection.lost()
    assert (await second.next()).error.error == pb.ServerError.AuthorizationError
    assert harness.topic.producers == {}
    assert harness.topic.access.holder is None


async def test_a_right_that_is_taken_away_while_a_topic_is_loaded_is_gone() -> None:
    harness = Secured()
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    harness.topics.gate = asyncio.Event()
    client.send_subscribe()
    await settle()
    harness.grant()
    harness.topics.gate.set()
    assert (await client.next()).error.error == pb.ServerError.AuthorizationError
    assert not harness.topic.subscriptions["s"].consumers


async def test_a_right_that_is_taken_away_while_replication_is_stored_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Secured()
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    gate = asyncio.Event()

    async def set_replicated(_: Subscription, __: bool) -> None:
        await gate.wait()

    monkeypatch.setattr(Subscription, "set_replicated", set_replicated)
    client.send_subscribe(replicate_subscription_state=True)
    await settle()
    harness.grant()
    revoking = Revoking(lambda: [client.connection])
    revoking.changed("public/default")
    await settle()
    gate.set()
    assert (await client.next()).error.error == pb.ServerError.AuthorizationError
    assert not harness.topic.subscriptions["s"].consumers
    revoking.close()


async def test_who_may_list_topics_no_more_is_told_of_no_further_ones() -> None:
    harness = Secured()
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    watch = pb.CommandWatchTopicList(
        request_id=1, watcher_id=1, namespace="public/default", topics_pattern=".*"
    )
    client.send(BaseCommand.WATCH_TOPIC_LIST, watchTopicList=watch)
    assert (await client.next()).type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
    assert client.connection.watchers.namespaces() == {"public/default"}
    revoking = Revoking(lambda: [client.connection])
    harness.grant()
    revoking.changed("public/")
    await settle()
    assert client.connection.watchers.namespaces() == set()


async def test_commands_beyond_the_limit_wait_and_messages_do_not_count() -> None:
    harness = Harness(commands_per_s_max=5)
    client = harness.client()
    client.send_bytes(PING_FRAME * 4)
    assert client.io.is_paused
    assert len(client.received()) == 4


async def test_a_command_that_begins_like_a_message_counts_as_what_it_is() -> None:
    """Of a field that comes twice the last one counts, of the type, too."""
    harness = Harness(commands_per_s_max=5)
    client = harness.client()
    begins_as_send = b"\x08\x06\x32\x04\x08\x01\x10\x01"
    raw = begins_as_send + PING_FRAME[8:]
    frame = (len(raw) + 4).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw
    client.send_bytes(frame * 4)
    assert client.commands() == [BaseCommand.PONG] * 4
    assert client.io.is_paused
