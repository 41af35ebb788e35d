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
