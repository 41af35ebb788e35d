"""The ledger list of a managed log, as the metadata store has it. Pure values and their codec.

It is JSON, so that `zkCli` shows it. A ledger's counters are filled in when it is closed;
`closed_ms` 0 marks an open one. The list order is authoritative. At most the last two ledgers are
open: the one being written, and the previous one while its last appends are pending (rule 9.1).

The changes of a list are methods here. Each is idempotent: an update with an unknown outcome is
computed again from the value that is found.

Layout: docs/formats/managed-log.md. Source: managed ledger, sections 1, 8 and 9.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from magnetar.ledger.errors import FutureLogFormatError, InvalidLedgerMetadataError
from magnetar.ledger.managed_log.log_objects import (
    LedgerObject,
    ObjectBase,
    ObjectState,
    problem_with_bases,
    problem_with_object,
)
from magnetar.ledger.position import Position

FORMAT_VERSION = 2
"""Newest format that is read. Lists without any object, now or before, are written as 1."""

OPEN_LEDGERS_MAX = 2
"""Maximum number of open ledgers of a log (rule 9.1)."""

CREATED_PROPERTY = "magnetar.created_ms"
"""Property that holds when the log was created, ms since 1970. Stored, never rename."""

_FIELDS = {"format", "ledgers", "properties"}
_OPTIONAL_FIELDS = {"owner", "removed_through", "terminated", "token"}
_LEDGER_FIELDS = {"id", "entries", "bytes", "closed_ms"}
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogLedger:
    """One ledger of a log."""

    ledger_id: int
    entries: int = 0
    bytes: int = 0
    closed_ms: int = 0
    object: LedgerObject | None = None
    """The ledger's object in an object store; None if it was never copied to one."""

    @property
    def is_closed(self) -> bool:
        return self.closed_ms > 0

    @property
    def is_in_object(self) -> bool:
        """Whether its entries can be read from an object."""
        return self.object is not None and self.object.is_copied

    @property
    def is_in_object_only(self) -> bool:
        """Whether the bookies may have deleted it."""
        return self.object is not None and self.object.state is ObjectState.ONLY


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """The value of a log's node."""

    ledgers: tuple[LogLedger, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    terminated: Position | None = None
    """Last entry of a terminated log, (-1, -1) if it is empty; None while it takes appends."""
    removed_through: int = -1
    """The last ledger that a shrink removed; -1 if none did. A reader whose ledger is gone learns
    from it whether it missed entries: a ledger that was dropped because it was empty has a higher
    id."""
    creation_token: int = 0
    """Identifies the creator's node after a lost reply."""
    owner_token: int = 0
    """Token of the last owner that took the log over without a ledger of its own; 0 if none did.
    Without it, two such owners would write the same value at once, and each would take the other's
    for its own.
    """
    object_bases: tuple[ObjectBase, ...] = ()
    """Prefixes of the keys of objects. Bases are only ever added, so that old objects are still
    found after the settings name another store."""

    def with_ledgers(self, ledgers: Iterable[LogLedger]) -> "LogMetadata":
        return replace(self, ledgers=tuple(ledgers))

    def claimed(self, ledgers: Iterable[LogLedger], owner_token: int) -> "LogMetadata":
        """Return the list with these closed ledgers, and an owner without a ledger of its own."""
        return replace(self, ledgers=tuple(ledgers), owner_token=owner_token)

    def with_next(self, ledger_id: int) -> "LogMetadata":
        """Return the list with an open ledger behind all others."""
        if any(ledger.ledger_id == ledger_id for ledger in self.ledgers):
            return self
        return self.with_ledgers([*self.ledgers, LogLedger(ledger_id)])

    def with_closed(self, closed: LogLedger) -> "LogMetadata":
        """Return the list with the counters of a closed ledger, or without it if it is empty."""
        if closed.entries == 0:
            return self.without(closed.ledger_id)
        return self.with_ledgers(
            closed if ledger.ledger_id == closed.ledger_id and not ledger.is_closed else ledger
            for ledger in self.ledgers
        )

    def without(self, ledger_id: int) -> "LogMetadata":
        """Return the list without an open ledger of which nothing was ever reported or readable."""
        return self.with_ledgers(
            ledger for ledger in self.ledgers if ledger.ledger_id != ledger_id or ledger.is_closed
        )

    def shrunk(self, before: Position) -> "LogMetadata":
        """Return the list without the ledgers at the front that end before the position.

        The last ledger stays, and so does every ledger that is open or follows an open one.
        """
        at = 0
        while at < len(self.ledgers) - 1:
            ledger = self.ledgers[at]
            if not ledger.is_closed or (ledger.ledger_id, ledger.entries - 1) >= before:
                break
            at += 1
        if at == 0:
            return self
        removed_through = max(self.removed_through, self.ledgers[at - 1].ledger_id)
        return replace(self, ledgers=self.ledgers[at:], removed_through=removed_through)

    def with_copy_begun(self, ledger_id: int, attempt: str, base: ObjectBase) -> "LogMetadata":
        """Return the list with a new attempt to copy a ledger, which replaces an unfinished one."""
        bases = self.object_bases if base in self.object_bases else (*self.object_bases, base)
        begun = LedgerObject(ObjectState.COPYING, attempt, bases.index(base))

        def begin(ledger: LogLedger) -> LogLedger:
            may_begin = ledger.object is None or ledger.object.state is ObjectState.COPYING
            return replace(ledger, object=begun) if ledger.is_closed and may_begin else ledger

        changed = self._with_ledger(ledger_id, begin)
        return self if changed == self else replace(changed, object_bases=bases)

    def with_copied(
        self, ledger_id: int, attempt: str, *, size_bytes: int, check: int, at_ms: int
    ) -> "LogMetadata":
        """Return the list with a complete object of that attempt, a first copy or a replacement."""

        def complete(ledger: LogLedger) -> LogLedger:
            found = ledger.object
            if found is None:
                return ledger
            if found.state is ObjectState.COPYING and found.attempt == attempt:
                state = ObjectState.COPIED
            elif found.next == attempt:
                state = found.state
            else:
                return ledger
            copied = LedgerObject(state, attempt, found.base, size_bytes, check, at_ms)
            return replace(ledger, object=copied)

        return self._with_ledger(ledger_id, complete)

    def with_copy_replaced(self, ledger_id: int, attempt: str, by: str) -> "LogMetadata":
        """Return the list with an attempt to replace the damaged object of another attempt."""

        def begin(ledger: LogLedger) -> LogLedger:
            found = ledger.object
            if found is None or not found.is_copied or found.attempt != attempt:
                return ledger
            return replace(ledger, object=replace(found, next=by))

        return self._with_ledger(ledger_id, begin)

    def with_object_only(self, ledger_id: int, attempt: str) -> "LogMetadata":
        """Return the list with a ledger that bookies may delete: its object was fully read back."""

        def forget(ledger: LogLedger) -> LogLedger:
            found = ledger.object
            if found is None or found.attempt != attempt or found.state is not ObjectState.COPIED:
                return ledger
            return replace(ledger, object=replace(found, state=ObjectState.ONLY, next=""))

        return self._with_ledger(ledger_id, forget)

    def _with_ledger(
        self, ledger_id: int, change: Callable[[LogLedger], LogLedger]
    ) -> "LogMetadata":
        return self.with_ledgers(
            change(ledger) if ledger.ledger_id == ledger_id else ledger for ledger in self.ledgers
        )

    def with_properties(self, changes: Mapping[str, str | None]) -> "LogMetadata":
        """Return the list with these properties set, and without those that are None."""
        properties = {**self.properties, **changes}
        kept = {name: value for name, value in properties.items() if value is not None}
        return replace(self, properties=kept)

    def ended(self) -> "LogMetadata":
        """Return the list terminated behind its last entry. All its ledgers must be closed."""
        if self.terminated is not None:
            return self
        return replace(self, terminated=self.last_listed)

    @property
    def created_ms(self) -> int:
        """When the log was created, ms since 1970; 0 if it does not say so."""
        text = self.properties.get(CREATED_PROPERTY, "")
        return int(text) if text.isdecimal() and text.isascii() else 0

    @property
    def last_listed(self) -> Position:
        """The last entry of the closed ledgers; (-1, -1) if they hold none."""
        for ledger in reversed(self.ledgers):
            if ledger.entries:
                return Position(ledger.ledger_id, ledger.entries - 1)
        return Position(-1, -1)

    @property
    def problem(self) -> str | None:
        """Why this list is invalid, and could not be read again; None if it is valid."""
        return _problem_with_list(self)

    def to_json(self) -> bytes:
        fields: dict[str, object] = {
            # Older releases can read logs whose ledgers never went to an object store.
            "format": FORMAT_VERSION if self.object_bases else 1,
            "ledgers": [_fields_of(ledger) for ledger in self.ledgers],
            "properties": self.properties,
        }
        if self.terminated is not None:
            fields["terminated"] = list(self.terminated)
        if self.removed_through >= 0:
            fields["removed_through"] = self.removed_through
        if self.creation_token:
            fields["token"] = self.creation_token
        if self.owner_token:
            fields["owner"] = self.owner_token
        if self.object_bases:
            fields["object_bases"] = [base._asdict() for base in self.object_bases]
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def from_json(value: bytes, *, path: str) -> "LogMetadata":
        """Decode and check a node's value.

        A field that is unknown, missing or of another type is refused: writing the value back would
        drop or change it.

        Raises:
            FutureLogFormatError: a newer release wrote it.
            InvalidLedgerMetadataError: it is not a ledger list, or an invalid one.
        """
        try:
            data = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _refused(path, f"no managed log: {error!r}") from error
        version = data.get("format") if isinstance(data, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            raise FutureLogFormatError(
                f"{path}: format {version}; this release reads format {FORMAT_VERSION}: upgrade it "
                f"before it uses this log"
            )
        if type(version) is not int or version < 1:
            raise InvalidLedgerMetadataError(
                f"{path}: format {version!r}; this release reads formats 1 to {FORMAT_VERSION}"
            )
        problem = _problem_with_fields(data)
        if problem is not None:
            raise _refused(path, f"no managed log: {problem}")
        terminated = data.get("terminated")
        metadata = LogMetadata(
            tuple(_ledger_of(item) for item in data["ledgers"]),
            data["properties"],
            terminated=None if terminated is None else Position(*terminated),
            removed_through=data.get("removed_through", -1),
            creation_token=data.get("token", 0),
            owner_token=data.get("owner", 0),
            object_bases=tuple(ObjectBase(**base) for base in data.get("object_bases", ())),
        )
        if metadata.problem is not None:
            raise _refused(path, metadata.problem)
        return metadata


def _fields_of(ledger: LogLedger) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": ledger.ledger_id,
        "entries": ledger.entries,
        "bytes": ledger.bytes,
        "closed_ms": ledger.closed_ms,
    }
    if ledger.object is not None:
        fields["object"] = ledger.object.to_fields()
    return fields


def _ledger_of(item: Mapping[str, Any]) -> LogLedger:
    found = item.get("object")
    return LogLedger(
        item["id"],
        item["entries"],
        item["bytes"],
        item["closed_ms"],
        None if found is None else LedgerObject.from_fields(found),
    )


def _refused(path: str, problem: str) -> InvalidLedgerMetadataError:
    return InvalidLedgerMetadataError(
        f"{path}: {problem}. Nothing was changed: bring the value back from a backup of the "
        f"metadata store"
    )


def _problem_with_fields(data: dict[str, object]) -> str | None:
    """Check the set of fields and the type of each value. A bool does not count as a number."""
    fields = _FIELDS if data["format"] == 1 else _FIELDS | {"object_bases"}
    if data.keys() - _OPTIONAL_FIELDS != fields:
        return f"expected the fields {sorted(fields)}, got {sorted(data)}"
    ledgers, properties = data["ledgers"], data["properties"]
    if not isinstance(ledgers, list) or not isinstance(properties, dict):
        return "its ledgers are no list, or its properties no object"
    if "object_bases" in data:
        problem = problem_with_bases(data["object_bases"])
        if problem is not None:
            return problem
    bases = data.get("object_bases", [])
    assert isinstance(bases, list)
    for at, item in enumerate(ledgers):
        problem = _problem_with_ledger(item, len(bases))
        if problem is not None:
            return f"ledger {at} of the list: {problem}"
    if not all(isinstance(text, str) for text in properties.values()):
        return "a property is no text"
    if not _is_int64(data.get("removed_through", 0)):
        return "removed_through is no int64 from 0"
    for name in ("token", "owner"):
        token = data.get(name, 1)
        if not _is_int64(token) or token == 0:
            return f"{name} is no int64 from 1"
    if "terminated" in data:
        terminated = data["terminated"]
        if not isinstance(terminated, list) or len(terminated) != 2:
            return "terminated is no position"
        are_int64 = all(_is_int64(number) for number in terminated)
        if not are_int64 and json.dumps(terminated) != "[-1, -1]":
            return "terminated is no position"
    return None


def _problem_with_ledger(item: object, bases: int) -> str | None:
    has_object = isinstance(item, dict) and bases > 0 and "object" in item
    expected = _LEDGER_FIELDS | ({"object"} if has_object else set())
    if not isinstance(item, dict) or item.keys() != expected:
        return f"it does not have the fields {sorted(expected)}"
    for name in sorted(_LEDGER_FIELDS):
        if not _is_int64(item[name]):
            return f"{name} is no int64 from 0"
    if not has_object:
        return None
    if item["closed_ms"] == 0:
        return "it is open, and has an object"
    return problem_with_object(item["object"], bases)


def _is_int64(number: object) -> bool:
    return type(number) is int and 0 <= number <= _INT64_MAX


def _problem_with_list(metadata: LogMetadata) -> str | None:
    ledgers = metadata.ledgers
    ids = [ledger.ledger_id for ledger in ledgers]
    if len(set(ids)) != len(ids):
        return f"a ledger is listed twice: {ids}"
    is_open = [not ledger.is_closed for ledger in ledgers]
    if any(is_open[:-OPEN_LEDGERS_MAX]) or is_open[-OPEN_LEDGERS_MAX:] == [True, False]:
        return "a ledger is open that is not among the last two, or is followed by a closed one"
    if metadata.terminated is not None:
        if any(is_open):
            return "the log is terminated and has an open ledger"
        if metadata.last_listed > metadata.terminated:
            return f"the log is terminated at {metadata.terminated} and goes on behind it"
    return None
