"""Watches of Pulsar 5: scalable topics of a namespace, and where transaction coordinators are."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.broker.cluster.ownership.sole_owner import SoleOwner
from magnetar.broker.features.transactions.coordinator_places import CoordinatorPlaces
from magnetar.broker.protocol.revoking import Revoking
from magnetar.broker.topics.followed_lists import FollowedLists
from magnetar.broker.topics.topic_lists import topics_hash
from magnetar.sdk.wire import BaseCommand, TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import SERVICE_URL, Client, Harness
from tests.unit.broker.scalable.v5_scene import is_alive
from tests.unit.broker.security.test_login import Secured
from tests.waiting import settle, until

_COORDINATORS = 4


def _watch_topics(client: Client, **fields: Any) -> None:
    known = {"watch_id": 3, "namespace": "public/default", **fields}
    client.send(
        BaseCommand.WATCH_SCALABLE_TOPICS,
        watchScalableTopics=pb.CommandWatchScalableTopics(**known),
    )


async def test_a_namespace_has_no_scalable_topics() -> None:
    client = Harness().client()
    _watch_topics(client)
    update = (await client.next(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)).watchScalableTopicsUpdate
    assert (update.watch_id, update.HasField("snapshot"), update.HasField("error")) == (
        3,
        True,
        False,
    )
    assert not update.snapshot.topics


async def test_who_knows_that_there_are_none_is_told_nothing() -> None:
    client = Harness().client()
    _watch_topics(client, current_hash=topics_hash([]))
    await settle()
    assert client.commands() == []


async def test_a_watch_of_no_namespace_is_refused_and_the_connection_lives_on() -> None:
    client = Harness().client()
    _watch_topics(client, namespace="public")
    update = (await client.next()).watchScalableTopicsUpdate
    assert (update.watch_id, update.error) == (3, pb.ServerError.TopicNotFound)
    assert "tenant/namespace" in update.message
    assert await is_alive(client)


async def test_a_stranger_may_not_watch_a_namespace() -> None:
    harness = Secured()
    client, _ = await harness.login(harness.token("stranger"))
    _watch_topics(client)
    update = (await client.next()).watchScalableTopicsUpdate
    assert update.error == pb.ServerError.AuthorizationError


async def test_a_right_that_is_taken_away_while_a_list_is_read_is_gone() -> None:
    harness = Secured()
    gate = asyncio.Event()

    async def list_names(namespace: str) -> list[str]:
        await gate.wait()
        return ["topic://public/default/t"]

    lists = FollowedLists(harness.store, list_names, harness.clock, pause_ms=0)
    harness.services = replace(harness.services, scalable_lists=lists)
    harness.grant(reader=("consume",))
    client, _ = await harness.login(harness.token("reader"))
    _watch_topics(client)
    await settle()
    harness.grant()
    revoking = Revoking(lambda: [client.connection])
    revoking.changed("public/default")
    await settle()
    gate.set()
    update = (await client.next(BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)).watchScalableTopicsUpdate
    assert update.error == pb.ServerError.AuthorizationError
    await settle()
    assert client.commands() == []
    assert len(lists) == 0


async def test_the_end_of_a_watch_has_no_answer() -> None:
    client = Harness().client()
    client.send(
        BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE,
        watchScalableTopicsClose=pb.CommandWatchScalableTopicsClose(watch_id=3),
    )
    assert await is_alive(client)


# Coordinators of transactions


class _Owners(SoleOwner):
    """Says what a test says about the owner of each coordinator."""

    def __init__(self) -> None:
        super().__init__(lambda: SERVICE_URL)
        self.urls: dict[int, str] = {}
        self.looks = 0
        self.listeners_gone = False

    async def owner_of(
        self, topic: TopicName, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        self.looks += 1
        if listener and self.listeners_gone:
            raise NotAllowedError(f"there is no advertised listener {listener!r}")
        url = self.urls.get(topic.partition_index, SERVICE_URL)
        return Owner(url, is_self=url == SERVICE_URL)


class _Scene:
    def __init__(self, **settings: Any) -> None:
        self.harness = Harness(**settings)
        self.owners = _Owners()
        services = self.harness.services
        self.places = CoordinatorPlaces(services.coordinators, self.owners, interval_ms=1)
        self.harness.services = replace(services, coordinator_places=self.places)


def _watch_coordinators(client: Client, watch_id: int = 1) -> None:
    client.send(
        BaseCommand.WATCH_TC_ASSIGNMENTS,
        watchTcAssignments=pb.CommandWatchTcAssignments(watch_id=watch_id),
    )


def _close_watch(client: Client, watch_id: int = 1) -> None:
    client.send(
        BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE,
        watchTcAssignmentsClose=pb.CommandWatchTcAssignmentsClose(watch_id=watch_id),
    )


async def _next_places(client: Client) -> pb.CommandWatchTcAssignmentsUpdate:
    return (await client.next(BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE)).watchTcAssignmentsUpdate


def _urls(update: pb.CommandWatchTcAssignmentsUpdate) -> list[tuple[int, str]]:
    return [(each.tc_id, each.broker_service_url) for each in update.snapshot.assignments]


async def test_a_client_is_told_where_all_coordinators_are() -> None:
    client = _Scene(transaction_coordinators=_COORDINATORS).harness.client()
    _watch_coordinators(client, 8)
    update = await _next_places(client)
    assert (update.watch_id, update.snapshot.parallelism) == (8, _COORDINATORS)
    assert _urls(update) == [(number, SERVICE_URL) for number in range(_COORDINATORS)]


async def test_a_coordinator_that_moves_is_told_with_all_others() -> None:
    scene = _Scene(transaction_coordinators=2)
    client = scene.harness.client()
    _watch_coordinators(client)
    await _next_places(client)
    scene.owners.urls[1] = "pulsar://other:6650"
    update = await _next_places(client)
    assert _urls(update) == [(0, SERVICE_URL), (1, "pulsar://other:6650")]
    assert client.commands() == []


async def test_nobody_looks_once_the_last_watch_is_closed_or_its_connection_lost() -> None:
    scene = _Scene()
    one, other = scene.harness.client(), scene.harness.client()
    for client in (one, other):
        _watch_coordinators(client)
        await _next_places(client)
    before = scene.owners.looks
    await until(lambda: scene.owners.looks > before, "somebody looks")
    _close_watch(one)
    other.connection.lost()
    assert scene.places._looking is None
    assert await is_alive(one)


async def test_a_client_that_does_not_read_is_told_later() -> None:
    scene = _Scene(transaction_coordinators=1)
    client = scene.harness.client()
    _watch_coordinators(client)
    await _next_places(client)
    client.connection.on_writable(False)
    scene.owners.urls[0] = "pulsar://other:6650"
    before = scene.owners.looks
    await until(lambda: scene.owners.looks > before + 1, "it was looked at twice")
    assert client.commands() == []
    client.connection.on_writable(True)
    assert _urls(await _next_places(client)) == [(0, "pulsar://other:6650")]


async def test_a_watch_by_a_listener_that_no_broker_has_is_refused_and_delays_no_other() -> None:
    scene = _Scene(transaction_coordinators=1)
    wrong, other = scene.harness.client(), scene.harness.client()
    _watch_coordinators(other)
    await _next_places(other)
    wrong.connection.link.listener = "inside"
    _watch_coordinators(wrong)
    await _next_places(wrong)
    scene.owners.listeners_gone = True
    scene.owners.urls[0] = "pulsar://other:6650"
    assert _urls(await _next_places(other)) == [(0, "pulsar://other:6650")]
    _watch_coordinators(wrong)
    refused = await _next_places(wrong)
    assert refused.error == pb.ServerError.NotAllowedError
    assert "'inside'" in refused.message
    assert await is_alive(wrong)


async def test_watches_at_the_limit_are_answered_and_one_more_is_refused() -> None:
    client = _Scene(scalable_sessions_per_connection_max=1).harness.client()
    _watch_coordinators(client, 1)
    await _next_places(client)
    _watch_coordinators(client, 2)
    refused = await _next_places(client)
    assert (refused.watch_id, refused.error) == (2, pb.ServerError.NotAllowedError)
    assert await is_alive(client)


@pytest.mark.parametrize("setting", ["scalable_topics", "transaction_coordinator_enabled"])
async def test_without_layouts_or_transactions_the_watch_is_refused(setting: str) -> None:
    client = _Scene(**{setting: False}).harness.client()
    _watch_coordinators(client)
    refused = await _next_places(client)
    assert refused.error == pb.ServerError.NotAllowedError
    assert "not enabled" in refused.message or "disabled" in refused.message
    assert await is_alive(client)
