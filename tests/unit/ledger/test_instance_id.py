"""The id of a cluster is made by its first bookie, on a store that may lose connections."""

from typing import Any, cast

import pytest

from magnetar.ledger.errors import UnknownOutcomeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.registration import BookieRegistry
from tests.dictionary_store import DictionaryStore


class LosingStore(DictionaryStore):
    """Loses the connection while the first node is made; `keeps`: when it is there already."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self._keeps = keeps
        self._is_lost = False

    async def create(self, *arguments: Any, **settings: Any) -> Any:
        if self._is_lost:
            return await super().create(*arguments, **settings)
        self._is_lost = True
        if self._keeps:
            await super().create(*arguments, **settings)
        raise UnknownOutcomeError("the connection was lost")


async def test_an_id_that_was_made_though_nobody_said_so_is_the_clusters() -> None:
    registry = BookieRegistry(cast(MetadataStore, LosingStore(keeps=True)))
    made = await registry.instance_id()
    assert await registry.find_instance_id() == made


async def test_an_id_that_may_have_been_made_and_is_not_there_can_be_asked_for_again() -> None:
    registry = BookieRegistry(cast(MetadataStore, LosingStore(keeps=False)))
    with pytest.raises(UnknownOutcomeError) as raised:
        await registry.instance_id()
    assert raised.value.retryable
    made = await registry.instance_id()
    assert await registry.find_instance_id() == made
