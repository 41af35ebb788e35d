"""Whether a topic exists, as the metadata store says it."""

from types import SimpleNamespace
from typing import cast

from magnetar.broker.base import naming
from magnetar.broker.topics import Topics
from magnetar.broker.topics.table import TopicTable
from magnetar.sdk.wire import parse_topic_name
from tests.dictionary_store import DictionaryStore
from tests.unit.broker.memory_parts import TOPIC

NAME = parse_topic_name(TOPIC)


class LateStore(DictionaryStore):
    """What was written at another server is seen once it has caught up."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: dict[str, bytes] = {}

    async def catch_up(self) -> None:
        self.nodes.update(self.elsewhere)


async def test_a_topic_that_another_broker_has_just_made_exists() -> None:
    store = LateStore()
    topics = cast(Topics, SimpleNamespace(_table=TopicTable(), _store=store))
    assert not await Topics.exists(topics, NAME)
    store.elsewhere[naming.log_path(NAME)] = b"made"
    assert await Topics.exists(topics, NAME)
