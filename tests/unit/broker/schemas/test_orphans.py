"""Ledgers of schemas that are named, as the orphan sweep asks."""

from typing import cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.model import DEFAULTS
from magnetar.broker.schemas import SchemaData, SchemaType
from magnetar.broker.schemas.ledgers import schema_refers
from magnetar.broker.schemas.record import COMPONENT
from magnetar.ledger.errors import OwnerUnclearError
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import parse_topic_name
from tests.unit.broker.schemas.memory_schemas import MemoryNodes, memory_schemas

PATH = "/schemas/public/default/topic"


def ledger(ledger_id: int, **custom: str) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        last_entry_id=0,
        length=1,
        ensembles=(Fragment(0, ("b",)),),
        digest_type=DigestType.CRC32C,
        password=b"",
        created_ms=0,
        custom_metadata={"component": COMPONENT, **custom},
        creation_token=1,
    )


async def test_a_ledger_is_in_use_while_the_record_names_it_deleted_or_not() -> None:
    nodes = MemoryNodes()
    registry = memory_schemas(BrokerSettings(), nodes)
    topic = parse_topic_name("topic")
    await registry.put(topic, SchemaData(SchemaType.STRING), DEFAULTS)
    is_referred = schema_refers(cast(MetadataStore, nodes))
    assert await is_referred(ledger(1, schema=PATH))
    assert not await is_referred(ledger(2, schema=PATH))
    await registry.delete(topic)
    assert await is_referred(ledger(1, schema=PATH))
    await registry.remove(topic)
    assert not await is_referred(ledger(1, schema=PATH))


async def test_a_ledger_whose_record_was_lost_is_kept() -> None:
    nodes = MemoryNodes()
    nodes.lost.add(PATH)
    with pytest.raises(OwnerUnclearError, match="bring it back from a backup"):
        await schema_refers(cast(MetadataStore, nodes))(ledger(1, schema=PATH))


async def test_what_cannot_be_understood_is_kept() -> None:
    nodes = MemoryNodes()
    is_referred = schema_refers(cast(MetadataStore, nodes))
    with pytest.raises(OwnerUnclearError):
        await is_referred(ledger(1))
    await nodes.create(PATH, b'{"format": 2}')
    with pytest.raises(OwnerUnclearError):
        await is_referred(ledger(1, schema=PATH))
