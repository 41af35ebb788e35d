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

        Raises:
            InvalidLedgerMetadataError: not ours, of a future format, or with a ledger twice.
        """
        try:
            data = json.loads(value)
            version = data["format"]
            if version != FORMAT_VERSION:
                raise InvalidLedgerMetadataError(
                    f"{path}: format {version}; this version reads format {FORMAT_VERSION}"
                )
            ledgers = tuple(
                LogLedger(
                    int(item["id"]),
                    int(item["entries"]),
                    int(item["bytes"]),
                    int(item["closed_ms"]),
                )
                for item in data["ledgers"]
            )
            properties = {str(key): str(text) for key, text in data["properties"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidLedgerMetadataError(f"{path}: no managed log: {error!r}") from error
        ids = [ledger.ledger_id for ledger in ledgers]
        if len(set(ids)) != len(ids):
            raise InvalidLedgerMetadataError(f"{path}: a ledger is listed twice: {ids}")
        if any(not ledger.is_closed for ledger in ledgers[:-1]):
            raise InvalidLedgerMetadataError(f"{path}: a ledger before the last is not closed")
        return LogMetadata(ledgers, properties)
