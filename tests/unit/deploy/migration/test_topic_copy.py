import asyncio
from typing import cast

import pytest

from magnetar.deploy.errors import DataDirectoryError
from magnetar.deploy.migration.entries import source_of
from magnetar.deploy.migration.positions import PositionMap
from magnetar.deploy.migration.schema_copies import SchemaCopies
from magnetar.deploy.migration.sides import Side
from magnetar.deploy.migration.topic_copy import TopicCopy
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName

TOPIC = TopicName.parse("persistent://public/default/t")


def test_runs_that_could_not_be_saved_are_saved_the_next_time() -> None:
    copied = PositionMap()
    copied.add(Position(5, 0), Position(90, 0), 1)
    copy = TopicCopy(
        TOPIC,
        cast(Side, None),
        cast(Side, None),
        source_of("east"),
        cast(SchemaCopies, None),
        copied,
        bytes_max=1,
        attaching=asyncio.Semaphore(),
    )

    def fail(lines: str) -> None:
        raise DataDirectoryError("full")

    with pytest.raises(DataDirectoryError):
        copy.save(fail)
    written: list[str] = []
    copy.save(written.append)
    copy.save(written.append)
    assert written == ["5 0 90 0 1 1\n"]
