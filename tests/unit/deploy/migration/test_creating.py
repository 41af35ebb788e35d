from collections.abc import Mapping
from typing import Any, cast

import pytest

from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration.creating import Inventory, inventory
from magnetar.deploy.migration.sides import Side

TOPIC = "persistent://public/default/t"
PROPERTIES = "persistent/public/default/t/properties"


class Source:
    """A cluster with one topic."""

    server_version = "Pulsar"

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "tenants": ["public"],
            "namespaces/public": ["public/default"],
            "persistent/public/default": [TOPIC],
            PROPERTIES: {"a": "b"},
        }
        self.refused: dict[str, int] = {}
        """Statuses of refusals, by path."""
        self.reason = "refused"

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        if path in self.refused:
            raise RequestRefusedError(self.reason, self.refused[path])
        return self.answers.get(path)

    async def inventory(self) -> Inventory:
        return await inventory(cast(Side, self), ())

    async def topics(self) -> list[tuple[str, Mapping[str, str]]]:
        return [(str(each.name), each.properties) for each in (await self.inventory()).topics]


async def test_a_topic_is_found_with_its_properties() -> None:
    assert await Source().topics() == [(TOPIC, {"a": "b"})]


@pytest.mark.parametrize("status", [400, 405, 412])
async def test_a_release_without_properties_is_read_all_the_same(status: int) -> None:
    source = Source()
    source.refused[PROPERTIES] = status
    assert await source.topics() == [(TOPIC, {})]
    (note,) = (await source.inventory()).notes
    assert note == f"topic {TOPIC}: its properties are not moved: refused"
    (plan,) = (await source.inventory()).topics
    assert not plan.tells_properties


@pytest.mark.parametrize(
    ("server", "shown", "tells"),
    [("Pulsar", {}, False), ("Pulsar", {"properties": {}}, True), ("Magnetar", {}, True)],
)
async def test_absent_properties_of_a_partitioned_topic_may_be_unknown(
    server: str, shown: dict[str, Any], tells: bool
) -> None:
    source = Source()
    source.server_version = server
    source.answers["persistent/public/default/partitioned"] = [f"{BASE}parts"]
    source.answers["persistent/public/default/parts/partitions"] = {"partitions": 2, **shown}
    found = {str(each.name): each for each in (await source.inventory()).topics}
    assert found[f"{BASE}parts"].tells_properties == tells
    assert found[TOPIC].tells_properties


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_properties_that_cannot_be_read_now_are_not_taken_for_none(status: int) -> None:
    source = Source()
    source.refused[PROPERTIES] = status
    with pytest.raises(BrokerUnreachableError):
        await source.topics()


@pytest.mark.parametrize(
    "reason", ["Failed to find ownership for topic:t", "Can't find owner for topic t"]
)
async def test_properties_of_a_topic_without_an_owner_are_not_taken_for_none(reason: str) -> None:
    """Pulsar answers 412 while no broker has the topic."""
    source = Source()
    source.refused[PROPERTIES] = 412
    source.reason = reason
    with pytest.raises(BrokerUnreachableError):
        await source.topics()


BASE = "persistent://public/default/"
OF_THE_CLUSTER = "names that begin with __ are for topics of the cluster itself"


async def test_every_topic_that_is_left_out_is_a_note() -> None:
    source = Source()
    source.answers["persistent/public/default/partitioned"] = [
        f"{BASE}{name}" for name in ("parts", "__parts", "bad\nname")
    ]
    source.answers["persistent/public/default/parts/partitions"] = {"partitions": 2}
    source.answers["persistent/public/default"] += [
        f"{BASE}{name}"
        for name in (
            *("__mine", "__change_events", "parts-partition-0", "parts-partition-1"),
            *("__parts-partition-0", "__parts-partition-1", "bad\nname-partition-0"),
            "parts-partition-2",
        )
    ]
    source.answers["non-persistent/public/default/partitioned"] = [f"non-{BASE}__parts"]
    assert [each for each, _ in await source.topics()] == [f"{BASE}parts", TOPIC]
    assert (await source.inventory()).notes == [
        f"topic {BASE}__parts is not moved: {OF_THE_CLUSTER}",
        f"topic {BASE}bad\nname is not moved: '{BASE}bad\\nname': the topic's own name is blank or "
        "not printable",
        f"topic {BASE}parts-partition-2 is not moved: {BASE}parts has 2 partitions only",
        f"topic {BASE}__mine is not moved: {OF_THE_CLUSTER}",
        f"topic non-{BASE}__parts is not moved: {OF_THE_CLUSTER}",
    ]


async def test_a_partitioned_topic_that_is_deleted_meanwhile_does_not_become_a_plain_one() -> None:
    source = Source()
    source.answers["persistent/public/default/partitioned"] = [f"{BASE}parts"]
    assert [each for each, _ in await source.topics()] == [TOPIC]
    assert (await source.inventory()).notes == [
        f"topic {BASE}parts is not moved: the source lists it as partitioned, but does not know "
        "its partitions"
    ]


async def test_scalable_topics_are_notes() -> None:
    source = Source()
    source.answers["scalable/public/default"] = ["topic://public/default/s"]
    (note,) = (await source.inventory()).notes
    assert note == "topic topic://public/default/s is not moved: it is scalable"
    source.refused["scalable/public/default"] = 412  # a release that has none
    assert (await source.inventory()).notes == []


async def test_namespaces_of_an_obsolete_form_are_notes() -> None:
    source = Source()
    source.answers["namespaces/public"] += ["public/east/old", "public/v:2"]
    found = await source.inventory()
    assert list(found.namespaces) == ["public/default", "public/v:2"]
    assert found.notes == [
        "namespace public/east/old is not moved: the form tenant/cluster/namespace is obsolete"
    ]


async def test_tenants_without_namespaces_are_found_if_everything_is_moved() -> None:
    source = Source()
    source.answers["tenants"] = ["empty", "public", "pulsar"]
    source.answers["tenants/empty"] = {"adminRoles": ["boss"]}
    assert (await source.inventory()).tenants == {"empty": {"adminRoles": ["boss"]}, "public": {}}
    found = await inventory(cast(Side, source), ("public/default",))
    assert list(found.tenants) == ["public"]
