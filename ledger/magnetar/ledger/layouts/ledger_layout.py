"""The interface of layouts, and the node of a root that names its layout.

A layout says which node holds a ledger, where ids come from and how all ledgers are listed. Every
root has one layout for ever, named by its node `LAYOUT`. The first client that creates a ledger
writes it, and clients with another layout are refused. In the wrong places they would find an empty
cluster, and garbage collection would delete everything.

Source: ledger protocol, section 3.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from magnetar.ledger.errors import (
    LedgerLayoutError,
    NoNodeError,
)
from magnetar.ledger.metadata.cell import Cell
from magnetar.ledger.metadata.store import MetadataStore

LayoutName = Literal["hierarchical", "longhierarchical", "flat"]
"""Name of a layout. Stored in LAYOUT nodes, never rename."""

LAYOUT_VERSION = 1
"""Version of every layout here; stored, never renumber."""

_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """A complete part of a listing: from `first_id` to `last_id` there are these ledgers and no
    others. The next range begins at `last_id + 1`; the last one ends at the largest id.
    """

    first_id: int
    last_id: int
    ledger_ids: tuple[int, ...]
    """Ledger ids, in numeric order."""


class LedgerLayout(Protocol):
    """A way to keep ledgers below a root."""

    @property
    def name(self) -> LayoutName: ...

    def path(self, ledger_id: int) -> str:
        """Return the path of the ledger's node.

        Raises:
            NoSuchLedgerError: the layout has no such id.
        """
        ...

    async def next_id(self) -> int:
        """Return a ledger id that no other client ever gets.

        Raises:
            LedgerIdsExhaustedError, UnknownOutcomeError, MetadataUnavailableError
        """
        ...

    def ranges(self) -> AsyncIterator[LedgerRange]:
        """Yield all ledgers as ranges that cover every possible id, in numeric order.

        Directories that are empty or vanish meanwhile are skipped.

        Raises:
            NoNodeError: there is no root.
            LedgerLayoutError: a ledger lies where this layout has none.
            MetadataUnavailableError
        """
        ...

    def keeps(self, child_of_root: str) -> bool:
        """Return whether a child of the root is, or holds, ledgers of this layout."""
        ...


class LayoutRecord(BaseModel):
    """The value of the LAYOUT node."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    manager: str
    manager_version: int
    format_version: int
    ledger_passwords: bool = False
    """Whether new ledgers have passwords, which reads require. Omitted if false: a release that
    does not know the field refuses a root that has it, with the advice to upgrade."""

    def to_json(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True).encode()


async def check_layout(
    store: MetadataStore, root: str, layout: LedgerLayout
) -> LayoutRecord | None:
    """Check that the root has this layout; return None if it names none, but may have this one.

    Raises:
        LedgerLayoutError: the root has another layout, or the value cannot be understood.
        MetadataUnavailableError
    """
    record, _ = await _look_at(store, root, layout)
    return record


async def _look_at(
    store: MetadataStore, root: str, layout: LedgerLayout
) -> tuple[LayoutRecord | None, bool]:
    """Return the root's layout record after checking it, and whether the root may hold ledgers."""
    path = f"{root}/LAYOUT"
    try:
        value = (await store.get(path)).value
    except NoNodeError:
        return None, await _has_own_ledgers(store, root, layout)
    return _checked(value, root, layout), True


def _checked(value: bytes, root: str, layout: LedgerLayout) -> LayoutRecord:
    """Decode the root's layout record, and check that it names this layout.

    Raises:
        LedgerLayoutError: the record names another layout, or cannot be understood.
    """
    record = _decode(value, root)
    known = (layout.name, LAYOUT_VERSION, _FORMAT_VERSION)
    if (record.manager, record.manager_version, record.format_version) != known:
        raise LedgerLayoutError(
            f"the ledgers at {root} are kept by the {record.manager!r} manager, version "
            f"{record.manager_version}; this client is set to {layout.name!r}, version "
            f"{LAYOUT_VERSION}. Set ledger_manager to the root's, or choose another root"
        )
    return record


async def layout_name_of(store: MetadataStore, root: str) -> LayoutName:
    """Return the layout that the root names, for tools that follow it; by default hierarchical.

    Raises:
        LedgerLayoutError: the value cannot be understood.
        MetadataUnavailableError
    """
    try:
        value = (await store.get(f"{root}/LAYOUT")).value
    except NoNodeError:
        return "hierarchical"
    manager = _decode(value, root).manager
    for name in get_args(LayoutName):
        if name == manager:
            known: LayoutName = name
            return known
    raise LedgerLayoutError(
        f"the ledgers at {root} are kept by the {manager!r} manager, which is not one of "
        f"{', '.join(get_args(LayoutName))}: upgrade, or choose another root"
    )


async def claim_layout(store: MetadataStore, root: str, layout: LedgerLayout) -> LayoutRecord:
    """Claim the root for this layout, unless it has one already; return its layout record.

    A new root gets ledgers with passwords. A root that holds ledgers was begun by a release without
    passwords, and such a release may still use it.

    Raises:
        LedgerLayoutError: the root has another layout.
        ContendedError: another client was faster; call again.
        UnknownOutcomeError, MetadataUnavailableError
    """
    record, has_ledgers = await _look_at(store, root, layout)
    if record is not None:
        return record
    cell = Cell(
        store,
        f"{root}/LAYOUT",
        decode=lambda value: _checked(value, root, layout),
        encode=LayoutRecord.to_json,
        tries_max=1,  # The creation of a ledger, which calls this, is retried as a whole.
    )
    new = LayoutRecord(
        manager=layout.name,
        manager_version=LAYOUT_VERSION,
        format_version=_FORMAT_VERSION,
        ledger_passwords=not has_ledgers,
    )
    found, _ = await cell.have(new)
    assert found.value is not None, "what cannot be decoded raises"
    return found.value


async def passwords_are_on(store: MetadataStore, root: str) -> bool | None:
    """Return whether new ledgers of the root have passwords; None if no ledger was ever made there.

    Raises:
        LedgerLayoutError: the layout record cannot be understood.
        MetadataUnavailableError
    """
    try:
        node = await store.get(f"{root}/LAYOUT")
    except NoNodeError:
        return None
    return _decode(node.value, root).ledger_passwords


async def turn_passwords_on(store: MetadataStore, root: str) -> bool:
    """Give new ledgers of the root passwords from now on; return False if they had them before.

    Use it only after the last client that does not know passwords is gone. Such a client could not
    open those ledgers; when it is restarted, it refuses the root.

    Raises:
        LedgerLayoutError: the root names no layout yet, or the record cannot be understood.
        UnknownOutcomeError, MetadataUnavailableError
    """
    path = f"{root}/LAYOUT"

    def turn_on(record: LayoutRecord | None) -> LayoutRecord | None:
        if record is None:
            raise LedgerLayoutError(
                f"there is no {path}: no ledger was ever made there, and the first one will have a "
                f"password without more ado, unless there are older ones"
            )
        if record.ledger_passwords:
            return None
        return record.model_copy(update={"ledger_passwords": True})

    cell = Cell(store, path, decode=lambda value: _decode(value, root), encode=LayoutRecord.to_json)
    return (await cell.change(turn_on)).is_written


def _decode(value: bytes, root: str) -> LayoutRecord:
    try:
        return LayoutRecord.model_validate_json(value)
    except ValidationError:
        raise LedgerLayoutError(
            f"{root}/LAYOUT holds {value[:80]!r}, which names no ledger manager of this release. "
            f"If another system keeps its ledgers at {root}, choose another root; if a newer "
            f"release wrote it, upgrade"
        ) from None


async def _has_own_ledgers(store: MetadataStore, root: str, layout: LedgerLayout) -> bool:
    """Return whether a root without LAYOUT holds ledgers of this layout. Roots that are older than
    LAYOUT nodes have none.

    Raises:
        LedgerLayoutError: it holds ledgers of another layout.
    """
    try:
        children = await store.children(root)
    except NoNodeError:
        return False
    ledgers = [name for name in children if _looks_like_ledgers(name)]
    for name in ledgers:
        if not layout.keeps(name):
            raise LedgerLayoutError(
                f"{root} has no LAYOUT and holds {name!r}, which is not where the "
                f"{layout.name!r} manager keeps ledgers. Set ledger_manager to the one that wrote "
                f"them, or choose another root"
            )
    return bool(ledgers)


def _looks_like_ledgers(child_of_root: str) -> bool:
    return child_of_root.isdecimal() or (
        child_of_root.startswith("L") and child_of_root[1:].isdecimal()
    )
