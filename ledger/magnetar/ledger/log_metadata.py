"""The ledger list of a managed log, as it lies in the metadata store. Pure values and their codec.

JSON so that `zkCli` shows it: format, ledgers in log order, properties. A ledger's counters are
filled in when it is closed; `closed_ms` 0 marks the one that is being written. The list order is
authoritative. Source: managed ledger, section 1.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from magnetar.ledger.errors import InvalidLedgerMetadataError

FORMAT_VERSION = 1

_FIELDS = {"format", "ledgers", "properties"}
_LEDGER_FIELDS = {"id", "entries", "bytes", "closed_ms"}
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogLedger:
    """One ledger of a log."""

    ledger_id: int
    entries: int = 0
    bytes: int = 0
    closed_ms: int = 0

    @property
    def is_closed(self) -> bool:
        return self.closed_ms > 0


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """The value of a log's node."""

    ledgers: tuple[LogLedger, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)

    def with_ledgers(self, ledgers: Iterable[LogLedger]) -> "LogMetadata":
        return replace(self, ledgers=tuple(ledgers))

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "ledgers": [
                    {
                        "id": ledger.ledger_id,
                        "entries": ledger.entries,
                        "bytes": ledger.bytes,
                        "closed_ms": ledger.closed_ms,
                    }
                    for ledger in self.ledgers
                ],
                "properties": self.properties,
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def from_json(value: bytes, *, path: str) -> "LogMetadata":
        """Decode and check a node's value.

        A field that is unknown, missing or of another type is refused: writing the value back would
        drop or change it.

        Raises:
            InvalidLedgerMetadataError: not ours, of a future format, or with a ledger twice.
        """
        try:
            data = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidLedgerMetadataError(f"{path}: no managed log: {error!r}") from error
        version = data.get("format") if isinstance(data, dict) else None
        if version != FORMAT_VERSION:
            raise InvalidLedgerMetadataError(
                f"{path}: format {version!r}; this version reads format {FORMAT_VERSION}"
            )
        problem = _problem_with_fields(data)
        if problem is not None:
            raise InvalidLedgerMetadataError(f"{path}: no managed log: {problem}")
        ledgers = tuple(
            LogLedger(item["id"], item["entries"], item["bytes"], item["closed_ms"])
            for item in data["ledgers"]
        )
        ids = [ledger.ledger_id for ledger in ledgers]
        if len(set(ids)) != len(ids):
            raise InvalidLedgerMetadataError(f"{path}: a ledger is listed twice: {ids}")
        if any(not ledger.is_closed for ledger in ledgers[:-1]):
            raise InvalidLedgerMetadataError(f"{path}: a ledger before the last is not closed")
        return LogMetadata(ledgers, data["properties"])


def _problem_with_fields(data: dict[str, object]) -> str | None:
    """Exactly our fields, and in each what belongs there. A bool is no number."""
    if data.keys() != _FIELDS or type(data["format"]) is not int:
        return f"expected the fields {sorted(_FIELDS)}, got {sorted(data)}"
    ledgers, properties = data["ledgers"], data["properties"]
    if not isinstance(ledgers, list) or not isinstance(properties, dict):
        return "its ledgers are no list, or its properties no object"
    for at, item in enumerate(ledgers):
        if not isinstance(item, dict) or item.keys() != _LEDGER_FIELDS:
            return f"ledger {at} of the list does not have the fields {sorted(_LEDGER_FIELDS)}"
        for name, number in item.items():
            if type(number) is not int or not 0 <= number <= _INT64_MAX:
                return f"ledger {at} of the list: {name} is no int64 from 0"
    if not all(isinstance(text, str) for text in properties.values()):
        return "a property is no text"
    return None
