"""Records that are kept for Pulsar's tools: resource groups and quotas, racks of bookies.

    /admin/resource-groups/<group>              ResourceGroupRecord
    /admin/resource-quotas/<bundle>             ResourceQuotaRecord, default: of all bundles
    /admin/bookie-racks                         BookieRacksRecord

Nothing here limits or places anything; the HTTP interface says so where it takes a value.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import Field

from magnetar.broker.base.errors import NotThereError
from magnetar.broker.policies.model import Record
from magnetar.broker.policies.records import asked, change_record, read_record
from magnetar.ledger.errors import NoNodeError
from magnetar.ledger.metadata.store import MetadataStore

_GROUPS_ROOT = "/admin/resource-groups"
_QUOTAS_ROOT = "/admin/resource-quotas"
_RACKS_PATH = "/admin/bookie-racks"

R = TypeVar("R", bound=Record)


class ResourceGroupRecord(Record):
    """A resource group as it was set."""

    data: dict[str, Any] = Field(default_factory=dict)


class ResourceQuotaRecord(Record):
    """A quota of a bundle as it was set."""

    data: dict[str, Any] = Field(default_factory=dict)


class BookieRacksRecord(Record):
    """Rack and host name, by group, then by the id of the bookie."""

    groups: dict[str, dict[str, dict[str, str]]] = Field(default_factory=dict)


class Resources:
    """Reads and changes these records. Reads the store each time.

    All methods raise BrokerMetadataError when that cannot be done now.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def group_names(self) -> list[str]:
        """Return the names of the resource groups, sorted."""
        try:
            return sorted(await asked(self._store.children(_GROUPS_ROOT), f"list {_GROUPS_ROOT}"))
        except NoNodeError:
            return []

    async def group(self, name: str) -> dict[str, Any]:
        """Return a resource group as it was set.

        Raises:
            NotThereError
        """
        record = await self._read(ResourceGroupRecord, f"{_GROUPS_ROOT}/{name}")
        if record is None:
            raise NotThereError(f"there is no resource group {name!r}")
        return record.data

    async def set_group(self, name: str, data: dict[str, Any]) -> None:
        """Create or replace a group."""
        await self._set(f"{_GROUPS_ROOT}/{name}", ResourceGroupRecord(data=data))

    async def delete_group(self, name: str) -> None:
        """Delete a group.

        Raises:
            NotThereError
        """
        await self.group(name)
        await self._set(f"{_GROUPS_ROOT}/{name}", None, ResourceGroupRecord)

    async def quota(self, bundle: str) -> dict[str, Any] | None:
        """Return the quota of a bundle, as tenant/namespace/range, or of `default`; None if it has
        none."""
        record = await self._read(ResourceQuotaRecord, _quota_path(bundle))
        return record.data if record is not None else None

    async def set_quota(self, bundle: str, data: dict[str, Any] | None) -> None:
        """Set the quota of a bundle; None removes it."""
        record = ResourceQuotaRecord(data=data) if data is not None else None
        await self._set(_quota_path(bundle), record, ResourceQuotaRecord)

    async def racks(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the racks by group and bookie."""
        record = await self._read(BookieRacksRecord, _RACKS_PATH)
        return record.groups if record is not None else {}

    async def change_racks(
        self, change: Callable[[dict[str, dict[str, dict[str, str]]]], None]
    ) -> None:
        """Change the racks. `change` gets a copy that it may modify; it may raise."""

        def changed(before: BookieRacksRecord | None) -> BookieRacksRecord:
            record = before or BookieRacksRecord()
            groups = {name: dict(bookies) for name, bookies in record.groups.items()}
            change(groups)
            kept = {name: bookies for name, bookies in groups.items() if bookies}
            return record.model_copy(update={"groups": kept})

        await change_record(self._store, BookieRacksRecord, _RACKS_PATH, changed)

    async def _read(self, kind: type[R], path: str) -> R | None:
        found = await read_record(self._store, kind, path, is_sure=True)
        return found[0] if found is not None else None

    async def _set(self, path: str, record: R | None, kind: type[R] | None = None) -> None:
        used = type(record) if record is not None else kind
        assert used is not None
        await change_record(self._store, used, path, lambda before: record)


def _quota_path(bundle: str) -> str:
    return f"{_QUOTAS_ROOT}/{bundle}"
