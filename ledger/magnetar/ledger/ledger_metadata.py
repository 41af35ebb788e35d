"""Ledger metadata: the immutable value that says where a ledger's entries are and where it ends.

```
             writer close (CAS)
   OPEN ------------------------------> CLOSED
    |                                     ^
    | recoverer (CAS)                     | recoverer close (CAS)
    v                                     |
 IN_RECOVERY ---------------------------->+
```

The state table is `TRANSITIONS`; a missing pair is an error by design. CLOSED is terminal: after it
only the bookies inside a fragment may be replaced. A change is computed here as a new value and
written by compare-and-set on the version that it was computed from (`ledger_manager.py`); nothing
here does I/O. Every value that exists has passed the checks of rule 2.5: an invalid one is refused,
never repaired.

Stored as JSON, see docs/formats/ledger-metadata.md. Source: ledger protocol, section 2.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from magnetar.ledger.errors import FutureMetadataVersionError, InvalidLedgerMetadataError

FORMAT_VERSION = 1
"""Stored in every value, never renumber. A value of another version is refused."""

LEDGER_ID_MAX = (1 << 63) - 1

_INT64_MAX = (1 << 63) - 1
_BOOKIE_ID = re.compile(r"[A-Za-z0-9.:-]{1,255}")


class LedgerState(Enum):
    """State of a ledger. Stored by name, never rename."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class LedgerEvent(Enum):
    """Events that may change a ledger's metadata."""

    ENSEMBLE_CHANGED = "ensemble_changed"
    WRITER_CLOSED = "writer_closed"
    RECOVERY_STARTED = "recovery_started"
    LAST_ENTRY_AGREED = "last_entry_agreed"
    REPLICA_MOVED = "replica_moved"


class DigestType(Enum):
    """Protection of an entry packet. Stored by name, never rename."""

    CRC32 = "CRC32"
    HMAC = "HMAC"
    CRC32C = "CRC32C"
    DUMMY = "DUMMY"


TRANSITIONS: Mapping[tuple[LedgerState, LedgerEvent], LedgerState] = {
    (LedgerState.OPEN, LedgerEvent.ENSEMBLE_CHANGED): LedgerState.OPEN,
    (LedgerState.OPEN, LedgerEvent.WRITER_CLOSED): LedgerState.CLOSED,
    (LedgerState.OPEN, LedgerEvent.RECOVERY_STARTED): LedgerState.IN_RECOVERY,
    (LedgerState.OPEN, LedgerEvent.REPLICA_MOVED): LedgerState.OPEN,
    # A second recoverer may take over from one that died.
    (LedgerState.IN_RECOVERY, LedgerEvent.RECOVERY_STARTED): LedgerState.IN_RECOVERY,
    (LedgerState.IN_RECOVERY, LedgerEvent.LAST_ENTRY_AGREED): LedgerState.CLOSED,
    (LedgerState.IN_RECOVERY, LedgerEvent.REPLICA_MOVED): LedgerState.IN_RECOVERY,
    (LedgerState.CLOSED, LedgerEvent.REPLICA_MOVED): LedgerState.CLOSED,
}


def next_state(state: LedgerState, event: LedgerEvent) -> LedgerState:
    """Return the state after an event.

    Raises:
        InvalidLedgerMetadataError: the event is not allowed in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidLedgerMetadataError(
            f"{event.value} may not happen to a ledger that is {state.value}"
        ) from None


class Fragment(NamedTuple):
    """Entries from `first_entry_id` up to the next fragment, and the bookies that hold them."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """Metadata of one ledger. See docs/formats/ledger-metadata.md for the meaning of each field.

    `last_entry_id` and `length` (sum of the payload bytes up to the last entry) are meaningful only
    when the ledger is CLOSED; before, they are -1 and 0. `created_ms` is wall clock time.

    Raises:
        InvalidLedgerMetadataError: when made with values that break rule 2.5.
    """

    # An unknown field is refused: writing the value back would drop it.
    __pydantic_config__ = ConfigDict(
        strict=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    state: LedgerState
    last_entry_id: int
    length: int
    ensembles: tuple[Fragment, ...]
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    created_ms: int
    custom_metadata: dict[str, str] = field(default_factory=dict)
    creation_token: int
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        problem = (
            _problem_with_numbers(self)
            or _problem_with_ensembles(self.ensembles, self.ensemble_size)
            or _problem_with_end(self)
        )
        if problem is not None:
            raise InvalidLedgerMetadataError(f"metadata of ledger {self.ledger_id}: {problem}")

    @property
    def last_fragment(self) -> Fragment:
        return self.ensembles[-1]

    def fragment_for(self, entry_id: int) -> Fragment:
        """Return the fragment that holds the entry; for ids beyond the end, the last one."""
        assert entry_id >= 0, entry_id
        if entry_id >= self.ensembles[-1].first_entry_id:  # nearly always
            return self.ensembles[-1]
        at = bisect_right(self.ensembles, entry_id, key=lambda fragment: fragment.first_entry_id)
        return self.ensembles[at - 1]

    def fragment_end(self, entry_id: int) -> int:
        """Return the last entry id of the entry's fragment; for the last one, the largest id."""
        at = bisect_right(self.ensembles, entry_id, key=lambda fragment: fragment.first_entry_id)
        return self.ensembles[at].first_entry_id - 1 if at < len(self.ensembles) else _INT64_MAX

    def ensemble_for(self, entry_id: int) -> tuple[str, ...]:
        """Return the bookies of the fragment that holds the entry."""
        return self.fragment_for(entry_id).bookies

    def with_state(self, event: LedgerEvent) -> "LedgerMetadata":
        """Return the value after an event that changes only the state.

        Raises:
            InvalidLedgerMetadataError: the event is not allowed in this state.
        """
        return replace(self, state=next_state(self.state, event))

    def in_recovery(self) -> "LedgerMetadata":
        """Return the value that a recoverer writes before it sends any request to a bookie.

        Raises:
            InvalidLedgerMetadataError: the ledger is closed.
        """
        return self.with_state(LedgerEvent.RECOVERY_STARTED)

    def closed(
        self, *, last_entry_id: int, length: int, tail: Sequence[Fragment] = ()
    ) -> "LedgerMetadata":
        """Return the value that ends the ledger: by the writer if OPEN, else by the recoverer.

        `tail` holds the ensemble changes of a recovery. They become binding together with the end
        of the ledger, not before (D3).

        Raises:
            InvalidLedgerMetadataError: the ledger is closed already, or cannot end there.
        """
        by_writer = self.state is LedgerState.OPEN
        event = LedgerEvent.WRITER_CLOSED if by_writer else LedgerEvent.LAST_ENTRY_AGREED
        state = next_state(self.state, event)
        ensembles = self.ensembles
        for fragment in tail:
            ensembles = merge_fragment(ensembles, fragment)
        return replace(
            self, state=state, last_entry_id=last_entry_id, length=length, ensembles=ensembles
        )

    def with_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> "LedgerMetadata":
        """Return the value after an ensemble change: append a fragment, or replace the last one.

        Raises:
            InvalidLedgerMetadataError: the ledger is not OPEN, or `first_entry_id` lies before the
                last fragment.
        """
        state = next_state(self.state, LedgerEvent.ENSEMBLE_CHANGED)
        ensembles = merge_fragment(self.ensembles, Fragment(first_entry_id, bookies))
        return replace(self, state=state, ensembles=ensembles)

    def to_json(self) -> bytes:
        """Encode the value as it is stored; bytes fields are URL-safe base64."""
        return _ADAPTER.dump_json(self)

    @classmethod
    def from_json(cls, data: bytes, *, where: str = "a value") -> "LedgerMetadata":
        """Decode and check a stored value; `where` names it in errors.

        Raises:
            FutureMetadataVersionError: a newer release wrote it.
            InvalidLedgerMetadataError: it is not JSON, has missing, unknown or wrongly typed
                fields, or has values that break rule 2.5.
        """
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise _refused(where, f"it is no JSON ({type(exc).__name__})") from None
        if not isinstance(found, dict):
            raise _refused(where, "it is no JSON object")
        version = found.get("format_version")
        if type(version) is int and version > FORMAT_VERSION:
            # Check this first: a newer format may have other fields.
            raise FutureMetadataVersionError(
                f"{where} is ledger metadata of format version {version}; this release reads "
                f"version {FORMAT_VERSION}: upgrade it before it uses the ledger"
            )
        # Defaults are for making a new value. A default in place of a stored value would be a
        # guess.
        if missing := _FIELD_NAMES - found.keys():
            raise _refused(where, f"{', '.join(sorted(missing))}: missing")
        try:
            return _ADAPTER.validate_json(data)
        except ValidationError as exc:
            # The input is left out: it holds the password.
            reasons = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}"
                for each in exc.errors(include_input=False, include_url=False)[:5]
            )
            raise _refused(where, reasons) from None
        except InvalidLedgerMetadataError as exc:
            raise _refused(where, str(exc)) from None


def _refused(where: str, reasons: str) -> InvalidLedgerMetadataError:
    return InvalidLedgerMetadataError(
        f"{where} is no ledger metadata: {reasons}. Nothing was changed: bring the value back from "
        f"a backup of the metadata store, or delete the node if the ledger is not needed any more"
    )


_ADAPTER = TypeAdapter(LedgerMetadata)
_FIELD_NAMES = frozenset(each.name for each in fields(LedgerMetadata))


def merge_fragment(ensembles: tuple[Fragment, ...], fragment: Fragment) -> tuple[Fragment, ...]:
    """Return the fragments with `fragment` added; it replaces a last one that begins alike.

    A fragment that begins earlier is a bug; the check when the metadata is made refuses it.
    """
    if ensembles and fragment.first_entry_id == ensembles[-1].first_entry_id:
        ensembles = ensembles[:-1]
    return (*ensembles, fragment)


def is_bookie_id(text: str) -> bool:
    """Return whether the text is a valid bookie id: 1 to 255 letters, digits, "-", "." and ":"."""
    return _BOOKIE_ID.fullmatch(text) is not None


def _problem_with_numbers(metadata: LedgerMetadata) -> str | None:
    if metadata.format_version != FORMAT_VERSION:
        return f"format version {metadata.format_version}, expected {FORMAT_VERSION}"
    if not 0 <= metadata.ledger_id <= LEDGER_ID_MAX:
        return "the ledger id is not an int64 from 0"
    if not 1 <= metadata.ack_quorum <= metadata.write_quorum <= metadata.ensemble_size:
        return (
            f"expected 1 <= ack quorum <= write quorum <= ensemble size, got "
            f"{metadata.ack_quorum}, {metadata.write_quorum}, {metadata.ensemble_size}"
        )
    if metadata.created_ms < 0:
        return f"created at {metadata.created_ms} ms"
    if not 0 <= metadata.creation_token <= _INT64_MAX:
        return "the creation token is not an int64 from 0"
    return None


def _problem_with_ensembles(ensembles: tuple[Fragment, ...], ensemble_size: int) -> str | None:
    if not ensembles or ensembles[0].first_entry_id != 0:
        return "the first fragment must start at entry 0"
    previous = -1
    for first_entry_id, bookies in ensembles:
        if not previous < first_entry_id <= _INT64_MAX:
            return f"fragment starts must increase, got {first_entry_id} after {previous}"
        if len(bookies) != ensemble_size or len(set(bookies)) != ensemble_size:
            return (
                f"the fragment from entry {first_entry_id} needs {ensemble_size} "
                f"distinct bookies, got {list(bookies)}"
            )
        for bookie_id in bookies:
            if not is_bookie_id(bookie_id):
                return f"the fragment from entry {first_entry_id} names bookie {bookie_id!r}"
        previous = first_entry_id
    return None


def _problem_with_end(metadata: LedgerMetadata) -> str | None:
    last, length = metadata.last_entry_id, metadata.length
    if metadata.state is not LedgerState.CLOSED:
        if (last, length) == (-1, 0):
            return None
        return f"{metadata.state.value}, but has last entry {last} and length {length}"
    if not metadata.last_fragment.first_entry_id - 1 <= last <= _INT64_MAX:
        return (
            f"closed at entry {last}, but its last fragment starts at "
            f"{metadata.last_fragment.first_entry_id}"
        )
    if not 0 <= length <= _INT64_MAX or (last == -1 and length != 0):
        return f"closed at entry {last} with length {length}"
    return None
