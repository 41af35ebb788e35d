from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

import pytest

from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration.creating import Inventory
from magnetar.deploy.migration.moving_policies import PolicyMove
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.selection import Clusters, TopicPlan
from magnetar.deploy.migration.sides import Side
from magnetar.sdk.wire import TopicName

TOPIC = TopicName.parse("persistent://public/default/t")
MAX_PRODUCERS = "persistent/public/default/t/maxProducers"
PROPERTIES = "persistent/public/default/t/properties"
PARTITIONS = "persistent/public/default/t/partitions"
NAMESPACE = "namespaces/public/default"
REPLICATION = "persistent/public/default/t/replication"
CLUSTERS = Clusters("east", "west", frozenset({"west", "south"}))


class Cluster:
    """A cluster with one topic, and the policies that are set on it."""

    def __init__(self) -> None:
        self.policies: dict[str, Any] = {}
        self.refused: dict[str, int] = {}
        """Statuses of refusals, by path."""
        self.reason = "refused"

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        if path in self.refused:
            raise RequestRefusedError(self.reason, self.refused[path])
        return self.policies.get(path)

    async def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> None:
        if path in self.refused:
            raise RequestRefusedError(self.reason, self.refused[path])
        if method == "DELETE":
            self._remove_property(path, (query or {}).get("key", ""))
            return
        if method == "PUT" and path.endswith("/properties"):
            whole = self.policies.get(path.replace("/properties", "/partitions"))
            if whole is not None:
                whole["properties"] = whole.get("properties", {}) | body
                return
            body = self.policies.get(path, {}) | body
        self.policies[path] = body

    def _remove_property(self, path: str, key: str) -> None:
        base, _, name = path.rpartition("/property/")
        if base:
            del self.policies[base]["properties"][unquote(name)]
            return
        whole = self.policies.get(path.replace("/properties", "/partitions"))
        del (self.policies[path] if whole is None else whole["properties"])[key]


async def move(source: Cluster, target: Cluster, *plans: TopicPlan) -> Report:
    report = Report()
    mover = PolicyMove(cast(Side, source), cast(Side, target), CLUSTERS, report)
    await mover.move(Inventory(topics=list(plans) or [TopicPlan(TOPIC)]))
    return report


async def test_the_policies_of_a_topic_are_set_at_the_target() -> None:
    source, target = Cluster(), Cluster()
    source.policies[MAX_PRODUCERS] = 5
    report = await move(source, target)
    assert target.policies == {MAX_PRODUCERS: 5}
    assert not report.differs()


@pytest.mark.parametrize("status", [400, 412])
async def test_a_policy_that_the_source_does_not_know_is_a_note(status: int) -> None:
    """One for each policy, however many topics there are."""
    source, target = Cluster(), Cluster()
    other = TopicPlan(TopicName.parse("u"))
    source.refused[MAX_PRODUCERS] = source.refused[MAX_PRODUCERS.replace("/t/", "/u/")] = status
    report = await move(source, target, TopicPlan(TOPIC), other)
    assert not report.differs()
    assert target.policies == {}
    assert report.notes == ["maxProducers of topics is not moved, the source refuses it: refused"]


@pytest.mark.parametrize(
    "reason", ["Failed to find ownership for topic:t", "Can't find owner for topic t"]
)
async def test_a_policy_of_a_topic_without_an_owner_is_not_taken_for_one_that_is_not_set(
    reason: str,
) -> None:
    """Pulsar answers 412 while no broker has the topic."""
    source = Cluster()
    source.refused[MAX_PRODUCERS] = 412
    source.reason = reason
    with pytest.raises(BrokerUnreachableError):  # the cut-over begins again
        await move(source, Cluster())


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_a_policy_that_cannot_be_read_now_is_not_taken_for_one_that_is_not_set(
    status: int,
) -> None:
    source = Cluster()
    source.refused[MAX_PRODUCERS] = status
    with pytest.raises(BrokerUnreachableError):  # the cut-over begins again
        await move(source, Cluster())


async def test_switched_off_policies_of_topics_are_a_note() -> None:
    source = Cluster()
    source.refused[MAX_PRODUCERS] = 405
    report = await move(source, Cluster())
    assert report.notes == ["the source has policies of topics switched off"]


RATE = "persistent/public/default/t/s/dispatchRate"


def subscription_mover(source: Cluster, report: Report) -> PolicyMove:
    return PolicyMove(cast(Side, source), cast(Side, Cluster()), CLUSTERS, report)


async def test_switched_off_policies_of_topics_do_not_end_the_move_of_subscriptions() -> None:
    source, report = Cluster(), Report()
    source.refused = {RATE: 405, MAX_PRODUCERS: 405}
    mover = subscription_mover(source, report)
    await mover.move_subscription_rate(TopicPlan(TOPIC), "s")
    await mover.move(Inventory(topics=[TopicPlan(TOPIC)]))
    assert report.notes == ["the source has policies of topics switched off"]
    assert not report.differs()


async def test_a_rate_of_subscriptions_that_the_source_does_not_know_is_a_note_of_its_own() -> None:
    source, report = Cluster(), Report()
    source.refused = {RATE: 412, RATE.replace("/s/", "/u/"): 412, RATE.replace("/s/", "/"): 412}
    mover = subscription_mover(source, report)
    for subscription in "su":
        await mover.move_subscription_rate(TopicPlan(TOPIC), subscription)
    await mover.move(Inventory(topics=[TopicPlan(TOPIC)]))
    assert report.notes == [
        "dispatchRate of subscriptions is not moved, the source refuses it: refused",
        "dispatchRate of topics is not moved, the source refuses it: refused",
    ]


async def test_properties_that_changed_at_the_source_meanwhile_are_set_at_the_target() -> None:
    target = Cluster()
    target.policies[PROPERTIES] = {"owner": "sales", "kept": "yes"}
    wanted = {"owner": "billing", "kept": "yes", "new": ""}
    report = await move(Cluster(), target, TopicPlan(TOPIC, 0, wanted))
    assert target.policies[PROPERTIES] == wanted
    assert (report.counts["properties"], report.differs()) == (1, False)


async def test_the_properties_of_a_partitioned_topic_are_set_and_compared() -> None:
    target = Cluster()
    target.policies[PARTITIONS] = {"partitions": 2}
    report = await move(Cluster(), target, TopicPlan(TOPIC, 2, {"owner": "sales"}))
    assert target.policies[PARTITIONS]["properties"] == {"owner": "sales"}
    assert not report.differs()


@pytest.mark.parametrize("partitions", [0, 2])
async def test_properties_that_the_source_has_dropped_are_removed_at_the_target(
    partitions: int,
) -> None:
    """The properties may have been set at the creation of the topic."""
    target = Cluster()
    there = {"owner": "sales", "a/b": ""}
    if partitions:
        target.policies[PARTITIONS] = {"partitions": partitions, "properties": there}
    else:
        target.policies[PROPERTIES] = there
    report = await move(Cluster(), target, TopicPlan(TOPIC, partitions, {"owner": "sales"}))
    whole = target.policies.get(PARTITIONS, {}).get("properties")
    assert (whole if partitions else target.policies[PROPERTIES]) == {"owner": "sales"}
    assert not report.differs()
    assert report.notes == [f"{TOPIC}: property a/b = '' is removed: the source has none"]


async def test_properties_that_the_source_does_not_tell_are_not_removed_at_the_target() -> None:
    target = Cluster()
    target.policies[PROPERTIES] = {"owner": "sales"}
    target.policies[NAMESPACE] = {"properties": {"owner": "sales"}}
    plan = TopicPlan(TOPIC, tells_properties=False)
    report = Report()
    mover = PolicyMove(cast(Side, Cluster()), cast(Side, target), CLUSTERS, report)
    await mover.move(Inventory(namespaces={"public/default": {}}, topics=[plan]))
    assert [(each.name, each.source, each.target) for each in report.differences] == [
        ("public/default", {}, {"owner": "sales"}),
        (str(TOPIC), {}, {"owner": "sales"}),
    ]


async def test_properties_that_cannot_be_removed_at_the_target_are_a_difference() -> None:
    target = Cluster()
    target.refused = {PROPERTIES: 500}
    target.reason = "no"
    target.policies[PARTITIONS] = {"partitions": 2, "properties": {"owner": "sales"}}
    report = await move(Cluster(), target, TopicPlan(TOPIC, 2))
    (found,) = report.differences
    assert (found.kind, found.name, found.detail) == ("properties", str(TOPIC), "no")
    assert (found.source, found.target) == ({}, {"owner": "sales"})
    assert report.notes == []


async def test_properties_that_the_target_refuses_are_a_difference() -> None:
    target = Cluster()
    target.reason = "no such path"
    topic = TopicName.parse("non-persistent://public/default/t")
    target.refused = {f"non-{PROPERTIES}": 404}
    plan = TopicPlan(topic, 2, {"owner": "sales"})
    (found,) = (await move(Cluster(), target, plan)).differences
    assert (found.kind, found.detail) == ("properties", "no such path")


async def test_the_properties_of_a_namespace_are_set_and_removed() -> None:
    """The namespace may have existed at the target, or its properties changed at the source."""
    target, report = Cluster(), Report()
    target.policies[NAMESPACE] = {"properties": {"a b?": "x", "owner": "sales"}}
    mover = PolicyMove(cast(Side, Cluster()), cast(Side, target), CLUSTERS, report)
    document = {"properties": {"owner": "sales"}}
    await mover.move(Inventory(namespaces={"public/default": document}))
    assert target.policies[f"{NAMESPACE}/properties"] == {"owner": "sales"}
    assert target.policies[NAMESPACE]["properties"] == {"owner": "sales"}
    assert not report.differs()
    assert report.notes == ["public/default: property a b? = 'x' is removed: the source has none"]


async def move_clusters(target: Cluster, **document: list[str]) -> Report:
    """Move a namespace with lists of clusters."""
    report = Report()
    mover = PolicyMove(cast(Side, Cluster()), cast(Side, target), CLUSTERS, report)
    await mover.move(Inventory(namespaces={"public/default": document}))
    return report


@pytest.mark.parametrize("key", ["replication_clusters", "allowed_clusters"])
async def test_the_clusters_of_a_namespace_are_compared_by_their_names_at_the_target(
    key: str,
) -> None:
    target = Cluster()
    target.policies[NAMESPACE] = {key: ["south", "west"]}
    report = await move_clusters(target, **{key: ["east", "south", "north"]})
    assert not report.differs()
    assert [each for each in report.notes if "north" in each]
    target.policies[NAMESPACE] = {key: ["west"]}
    report = await move_clusters(target, **{key: ["east", "south"]})
    (found,) = report.differences
    assert (found.name, found.source) == (f"public/default {key}", ["west", "south"])


async def test_clusters_that_the_target_refuses_are_a_difference() -> None:
    target = Cluster()
    target.refused[f"{NAMESPACE}/replication"] = 412
    target.policies[NAMESPACE] = {"replication_clusters": ["west"]}
    report = await move_clusters(target, replication_clusters=["east", "south"])
    (found,) = report.differences
    assert (found.name, found.detail) == ("public/default replication_clusters", "refused")


async def test_a_namespace_that_is_copied_only_at_the_target_is_a_difference() -> None:
    target = Cluster()
    target.policies[NAMESPACE] = {"replication_clusters": ["west", "south"]}
    report = await move_clusters(target, replication_clusters=["east"])
    assert [each.name for each in report.differences] == ["public/default replication_clusters"]


async def test_a_cluster_that_is_left_out_of_a_topics_replication_is_a_note() -> None:
    source, target = Cluster(), Cluster()
    source.policies[REPLICATION] = ["east", "south", "north"]
    report = await move(source, target)
    assert target.policies == {REPLICATION: ["west", "south"]}
    assert report.notes == [
        f"{TOPIC} replication: cluster north is left out: the target does not know it"
    ]
    assert not report.differs()
