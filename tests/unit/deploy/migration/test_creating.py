from collections.abc import Mapping
from typing import Any, cast

import pytest

from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration.creating import inventory
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

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        if path in self.refused:
            raise RequestRefusedError("refused", self.refused[path])
        return self.answers.get(path)

    async def topics(self) -> list[tuple[str, Mapping[str, str]]]:
        found = await inventory(cast(Side, self), ())
        return [(str(each.name), each.properties) for each in found.topics]


async def test_a_topic_is_found_with_its_properties() -> None:
    assert await Source().topics() == [(TOPIC, {"a": "b"})]


@pytest.mark.parametrize("status", [400, 405, 412])
async def test_a_release_without_properties_is_read_all_the_same(status: int) -> None:
    source = Source()
    source.refused[PROPERTIES] = status
    assert await source.topics() == [(TOPIC, {})]


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_properties_that_cannot_be_read_now_are_not_taken_for_none(status: int) -> None:
    source = Source()
    source.refused[PROPERTIES] = status
    with pytest.raises(BrokerUnreachableError):
        await source.topics()
