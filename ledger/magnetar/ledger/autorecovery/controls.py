"""Controls and notes of auto-recovery in the metadata store.

    {root}/underreplication/
        LAYOUT                    {"format": 1, "name": "BASIC", "version": 1}
        auditorelection/V_...     see metadata/election.py
        disable                   {"format": 1, "since_ms": ...}; only its existence counts
        lostBookieRecoveryDelay   {"format": 1, "delay_s": 300}; the same again requests an audit
        bookiecheckctime, checkallledgersctime, placementpolicycheckctime, replicascheckctime
                                  {"format": 1, "finished_ms": ...}: end of each check's last run

A node of another format is refused, never overwritten on a guess. Layout:
docs/formats/under-replication.md. Source: auto-recovery, sections 2 and 8.
"""

from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.ledger.errors import (
    ContendedError,
    InvalidLedgerMetadataError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.cell import GONE, Cell, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore, Versioned, Watch, WatchEvent
from magnetar.ledger.validation import first_problem

_WRITES_MAX = 20
"""Most attempts at a write while others write as well, or replies are lost."""

DELAY_S_MAX = 30 * 86_400.0


class Check(Enum):
    """The periodic checks. Values are names of nodes, never rename."""

    BOOKIES = "bookiecheckctime"
    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1


class _LayoutRecord(_Record):
    name: Literal["BASIC"] = "BASIC"
    version: Literal[1] = 1


class _DisableRecord(_Record):
    since_ms: int = Field(ge=0)


class _DelayRecord(_Record):
    delay_s: float | None = Field(ge=0, le=DELAY_S_MAX, allow_inf_nan=False)
    """None if no operator set it; the auditor's settings apply."""


class _CheckRecord(_Record):
    finished_ms: int = Field(ge=0)


R = TypeVar("R", bound=_Record)


def election_path(root: str) -> str:
    """Return the path of the auditor's election."""
    return f"{root}/underreplication/auditorelection"


class Controls:
    """Reads and writes the control nodes. Keeps nothing in memory but the watches of `watch`."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._base = f"{root}/underreplication"

    @property
    def disable_path(self) -> str:
        return f"{self._base}/disable"

    @property
    def delay_path(self) -> str:
        return f"{self._base}/lostBookieRecoveryDelay"

    async def claim_layout(self) -> None:
        """Record the layout of the work items, or check that the recorded one is this layout.

        Raises:
            InvalidLedgerMetadataError: the layout is another one: nothing may be touched.
            UnknownOutcomeError, MetadataUnavailableError
        """
        await self._cell(_LayoutRecord, f"{self._base}/LAYOUT").have(_LayoutRecord())

    async def is_enabled(self) -> bool:
        """Return False while an operator has switched auto-recovery off.

        Raises:
            MetadataUnavailableError
        """
        return await self._store.exists(self.disable_path) is None

    async def disable(self, *, now_ms: int) -> bool:
        """Switch auto-recovery off for the whole cluster; return False if it was off.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError: check, and try again.
        """
        disabled = self._cell(_DisableRecord, self.disable_path)
        return await disabled.create(_DisableRecord(since_ms=now_ms))

    async def enable(self) -> bool:
        """Switch auto-recovery on again; return False if it was on.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError: check, and try again.
        """
        # Whatever the node's value says: only its existence counts.
        disabled = bytes_cell(self._store, self.disable_path)
        return (await disabled.change(lambda value: None if value is None else GONE)).is_written

    async def read_delay(self) -> tuple[float | None, int | None]:
        """Return the recovery delay of a single lost bookie in seconds, None if the auditor's
        settings apply; and the version of the node, None if there is no node.

        Raises:
            InvalidLedgerMetadataError, MetadataUnavailableError
        """
        node = await self._get(self.delay_path)
        if node is None:
            return None, None
        return _decode(_DelayRecord, node.value, self.delay_path).delay_s, node.version

    async def write_delay(self, delay_s: float | None) -> None:
        """Set the delay; None leaves it to the auditor's settings. The same value again makes the
        auditor start an audit.

        Raises:
            ValueError: not from 0 to `DELAY_S_MAX`.
            InvalidLedgerMetadataError: the node's format is unknown to this release.
            UnknownOutcomeError: the outcome is unknown.
            MetadataUnavailableError: nothing was changed.
        """
        if delay_s is not None and not 0 <= delay_s <= DELAY_S_MAX:
            raise ValueError(f"the delay must be 0 to {DELAY_S_MAX:.0f} s, got {delay_s}")
        await self._write(self.delay_path, _DelayRecord(delay_s=delay_s))

    async def ask_for_audit(self) -> None:
        """Make the auditor start an audit at once, by writing the present delay again.

        Raises:
            InvalidLedgerMetadataError, UnknownOutcomeError, MetadataUnavailableError
        """
        delay_s, _ = await self.read_delay()
        await self.write_delay(delay_s)

    async def last_run_ms(self, check: Check) -> int | None:
        """Return when the check last finished, in ms of the wall clock; None if it never did.

        Raises:
            InvalidLedgerMetadataError, MetadataUnavailableError
        """
        path = f"{self._base}/{check.value}"
        node = await self._get(path)
        return None if node is None else _decode(_CheckRecord, node.value, path).finished_ms

    async def note_run(self, check: Check, *, now_ms: int) -> None:
        """Record that the check has finished.

        Raises:
            InvalidLedgerMetadataError, UnknownOutcomeError, MetadataUnavailableError
        """
        await self._write(f"{self._base}/{check.value}", _CheckRecord(finished_ms=now_ms))

    def watch(self, callback: Callable[[], None]) -> list[Watch]:
        """Call back when auto-recovery is switched, or the delay written; then read again."""

        def on_event(event: WatchEvent) -> None:
            callback()

        return [self._store.watch(path, on_event) for path in (self.disable_path, self.delay_path)]

    async def _get(self, path: str) -> Versioned | None:
        try:
            return await self._store.get(path)
        except NoNodeError:
            return None

    async def _write(self, path: str, record: _Record) -> None:
        """Create or replace the node. The last of several writers wins, which is fine for all of
        them."""
        try:
            await self._cell(type(record), path).change(lambda before: record, is_sure=False)
        except ContendedError as error:
            raise UnknownOutcomeError(
                f"others wrote to {path} {_WRITES_MAX} times in between"
            ) from error

    def _cell(self, model: type[R], path: str) -> Cell[R]:
        return Cell(
            self._store,
            path,
            decode=lambda value: _decode(model, value, path),
            encode=lambda record: record.model_dump_json().encode(),
            tries_max=_WRITES_MAX,
        )


def _decode(model: type[R], value: bytes, path: str) -> R:
    try:
        return model.model_validate_json(value)
    except ValidationError as error:
        raise InvalidLedgerMetadataError(
            f"{path} holds {value[:80]!r}: {first_problem(error)}. Nothing was changed: upgrade "
            f"this release if a newer one wrote it, or delete the node"
        ) from error
