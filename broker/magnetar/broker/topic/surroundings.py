"""Interfaces of a topic's log and of internal appends, and the oldest entry of a backlog."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.topic.positions import ListedLog
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.managed_log.log_retention import Retention
from magnetar.ledger.position import Position


class TopicLog(ListedLog, Protocol):
    """Interface of a topic's log; `ManagedLog` implements it."""

    def append(self, batch: AppendBatch, /) -> None: ...

    def prepare(self) -> None: ...

    def previous_position(self, position: Position, /) -> Position: ...

    async def rotate(self) -> None: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    async def update_properties(self, changes: Mapping[str, str | None], /) -> None: ...

    async def terminate(self) -> Position: ...

    def trim_point(
        self, consumed: Position | None, retention: Retention, *, truncates: bool = False
    ) -> Position | None: ...

    async def unlist(self, before: Position, /) -> int: ...

    async def delete_unlisted(self) -> None: ...

    @property
    def leftover_ledgers(self) -> int: ...


class InternalAppend(AppendBatch, Protocol):
    """Entries of the broker's own to be appended to the log; `Record` is one."""

    @property
    def done(self) -> asyncio.Future[Position]:
        """Completes when the outcome is known."""
        ...


@dataclass(frozen=True, slots=True)
class OldestEntry:
    """The oldest entry that a subscription has not acknowledged."""

    position: Position
    published_ms: int | None
    """Publish time by its producer's clock, ms since the epoch; None if it cannot be read."""
