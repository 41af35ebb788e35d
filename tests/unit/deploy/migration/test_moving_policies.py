from collections.abc import Mapping
from typing import Any, cast

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
CLUSTERS = Clusters("east", "west", frozenset({"west"}))


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
        self.policies[path] = body


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
