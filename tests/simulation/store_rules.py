"""What a test or a plan does to single metadata operations: hold them, lose their outcome."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Handle(Protocol):
    """The handle that an operation was called on; see `store.py`."""

    def go_on(self, operation: "Operation") -> None: ...

    def lose(self, operation: "Operation") -> None: ...


class Operation:
    __slots__ = (
        "apply",
        "arrives_s",
        "future",
        "held_by",
        "kind",
        "ledger_id",
        "path",
        "reply",
        "session",
    )

    def __init__(
        self, kind: str, path: str, ledger_id: int | None, apply: Callable[[], object]
    ) -> None:
        self.kind = kind
        self.path = path
        self.ledger_id = ledger_id
        self.apply = apply
        self.future: asyncio.Future[object]
        self.arrives_s = 0.0
        self.held_by: StoreHold | None = None
        self.reply: tuple[object, BaseException | None] | None = None
        self.session = -1
        """In which it was asked for."""


class OperationMatch(NamedTuple):
    client: str | None
    kind: str | None
    ledger_id: int | None
    path: str | None

    def fits(self, client: str, operation: Operation) -> bool:
        return (
            (self.client is None or self.client == client)
            and (self.kind is None or self.kind == operation.kind)
            and (self.ledger_id is None or self.ledger_id == operation.ledger_id)
            and (self.path is None or operation.path.startswith(self.path))
        )


class StoreHold:
    """Operations (or their replies) that wait for `release`, with all that their handles ask."""

    def __init__(self, holds: "list[StoreHold]", match: OperationMatch, *, reply: bool) -> None:
        self._holds = holds
        self.match = match
        self.reply = reply
        self.operations: list[tuple[Handle, Operation]] = []

    def release(self) -> None:
        """Let everything go on, and hold no more."""
        self._holds.remove(self)
        for handle, operation in self.operations:
            operation.held_by = None
            handle.go_on(operation)
        self.operations = []

    def drop(self) -> None:
        """The requests were never received; whoever asked hears that the outcome is unknown."""
        assert not self.reply, "what is done is done"
        self._holds.remove(self)
        for handle, operation in self.operations:
            operation.held_by = None
            handle.lose(operation)
        self.operations = []


class Accident:
    """What happens to the next `count` matching operations, after `skip` of them."""

    def __init__(self, match: OperationMatch, what: str, count: int, skip: int = 0) -> None:
        self.match = match
        self.what = what
        self.count = count
        self.skip = skip
