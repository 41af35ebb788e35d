"""The layouts of namespaces in the metadata store: read once, followed by a watch, changed by CAS.

    /admin/local-policies/<tenant>/<namespace>   {"format": 1, "boundaries": ["0x00000000", ...]}

The first request for a namespace's layout creates it. All brokers may do that at the same time; one
of them creates the node. A namespace that is being deleted gets no layout: it would be left behind,
and become the layout of the next namespace of that name. From then on a layout changes only by
`split`, which compares versions: of two concurrent splits, one fails with an error. The layout in
memory may be slightly outdated. That suffices for a lookup. A broker that has taken a lease asks
`verified` afterwards, since the bundle may have been split just before.

A value that cannot be read is refused and left as it is: guessed boundaries would give topics to
two owners.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError, UnreadableRecordError
from magnetar.broker.cluster.balance.bundles import Bundle, BundleError, Layout
from magnetar.broker.policies.model import NamespaceRecord, namespace_path
from magnetar.broker.policies.records import read_record
from magnetar.ledger.errors import ContendedError, MetadataError, NodeExistsError
from magnetar.ledger.metadata.cell import Cell, Stored
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent
from magnetar.ledger.validation import first_problem

_log = structlog.get_logger()

POLICIES_ROOT = "/admin/local-policies"

_BOUNDARY = re.compile(r"0x[0-9a-f]{8}")
_CHANGES_TRIED = 10


class LayoutRecord(BaseModel):
    """The value of a namespace's node."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: Literal[1]
    boundaries: list[str] = Field(min_length=2)

    @classmethod
    def of(cls, layout: Layout) -> "LayoutRecord":
        return cls(format=1, boundaries=[f"{each:#010x}" for each in layout.boundaries])

    def layout(self) -> Layout:
        """Return the layout of these boundaries.

        Raises:
            BundleError: the boundaries describe no bundles.
        """
        for each in self.boundaries:
            if _BOUNDARY.fullmatch(each) is None:
                raise BundleError(f"{each!r} is not a boundary, as 0x40000000")
        return Layout(tuple(int(each, 16) for each in self.boundaries))


class Layouts:
    """The layouts of the namespaces for which this broker was asked.

    It holds one node and one watch per namespace. It needs no limit of its own, since only existing
    namespaces get here.
    """

    def __init__(self, store: MetadataStore, *, bundles_default: int, bundles_max: int) -> None:
        """`bundles_default`: bundles of a namespace without a layout. `bundles_max`: limit of any
        namespace."""
        self._store = store
        self._default = Layout.even(bundles_default)
        self._bundles_max = bundles_max
        self._followed: dict[str, _Followed] = {}
        self._callbacks: list[Callable[[str], None]] = []
        self.reads = 0
        """Number of reads of a layout from the store."""

    def close(self) -> None:
        """Stop following all layouts."""
        for followed in self._followed.values():
            followed.close()
        self._followed.clear()

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call back on the loop, with the namespace, when a layout that was read may be
        outdated."""
        self._callbacks.append(callback)

    def known(self, namespace: str) -> Layout | None:
        """Return the layout if it is in memory and not known to be outdated. Reads nothing."""
        followed = self._followed.get(namespace)
        return followed.layout if followed is not None else None

    async def layout_of(self, namespace: str) -> Layout:
        """Return the layout of a namespace, without a read if it is known. Create it on first use.

        `namespace` must exist, as tenant/namespace.

        Raises:
            BrokerMetadataError: the store does not answer, or its value is no layout.
        """
        followed = self._followed.get(namespace)
        if followed is None:
            followed = self._followed[namespace] = _Followed(self, namespace)
        if followed.layout is not None:
            return followed.layout
        return await followed.load()

    async def verified(self, namespace: str) -> Layout:
        """Return the layout that is in the store now.

        For a broker that has just created a lease: a read after a write by the same handle sees
        what was committed before that write. A bundle that is missing here was split before the
        lease was taken, and the lease must be given back.

        Raises:
            BrokerMetadataError
        """
        return (await self._read(namespace))[0]

    async def split(
        self,
        namespace: str,
        bundle: Bundle,
        at: int,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> Layout:
        """Split a bundle in two in the store; return the new layout.

        Only the owner of the bundle calls this, after it has taken the leases of both halves. So
        when others see the new layout, they find an owner. If an earlier attempt whose outcome was
        unknown has made the split, that counts as success.

        `check` is called right before each attempt to write, and raises a RequestError if the
        caller no longer owns the bundle: the store may have delayed the call for long.

        Raises:
            BundleError: no such bundle any more, or `at` is not inside it.
            NotAllowedError: the namespace has as many bundles as it may have.
            BrokerMetadataError
            RequestError: what `check` raised; nothing was changed, unless by an attempt before.
        """

        def split(layout: Layout | None) -> Layout | None:
            if layout is None:
                raise BrokerMetadataError(f"{namespace} is being deleted: {bundle} is not split")
            if bundle not in layout and at in layout.boundaries:
                return None
            check()
            if len(layout) >= self._bundles_max:
                raise NotAllowedError(
                    f"{namespace} has {len(layout)} bundles, which is the limit: "
                    f"{bundle} is not split"
                )
            return layout.split(bundle, at)

        layout, version = await self._read(namespace)
        if version is None:
            raise BrokerMetadataError(f"{namespace} is being deleted: {bundle} is not split")
        try:
            changed = await self._cell(namespace).change(split, known=Stored(layout, version))
        except ContendedError as error:
            raise BrokerMetadataError(
                f"{namespace}/{bundle} was not split: the layout changed meanwhile, "
                f"{_CHANGES_TRIED} times"
            ) from error
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot split {namespace}/{bundle}: {error}") from error
        assert changed.after is not None, "a layout is never deleted here"
        if changed.is_written:
            if (followed := self._followed.get(namespace)) is not None:
                followed.forget()
            _log.info("bundle_split", bundle=f"{namespace}/{bundle}", at=f"{at:#010x}")
        return changed.after

    async def _read(self, namespace: str) -> tuple[Layout, int | None]:
        """Return the layout with the version of its node; None as the version if it is not
        stored."""
        cell = self._cell(namespace)
        self.reads += 1
        try:
            found = await cell.read()
            if found is None:
                if await self._is_leaving(namespace):
                    return self._default, None
                found, _ = await cell.have(self._default)
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot read the bundles of {namespace}: {error}") from error
        assert found.value is not None, "what cannot be decoded raises"
        return found.value, found.version

    def _cell(self, namespace: str) -> Cell[Layout]:
        path = layout_path(namespace)
        return Cell(
            self._store,
            path,
            decode=lambda value: _decode(path, value),
            encode=_encode,
            tries_max=_CHANGES_TRIED,
        )

    async def _is_leaving(self, namespace: str) -> bool:
        """Whether the namespace does not exist, or is being deleted."""
        record = await read_record(
            self._store, NamespaceRecord, namespace_path(namespace), is_sure=True
        )
        return record is None or record[0].is_deleted

    def _changed(self, namespace: str) -> None:
        for callback in self._callbacks:
            callback(namespace)


class _Followed:
    """One namespace's layout, as last read, and the watch that reports when it is outdated."""

    def __init__(self, layouts: Layouts, namespace: str) -> None:
        self._layouts = layouts
        self._namespace = namespace
        self._watch: Watch | None = None
        self._loading: asyncio.Task[Layout] | None = None
        self._generation = 0
        self.layout: Layout | None = None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._loading is not None:
            self._loading.cancel()

    def forget(self) -> None:
        """Drop the layout after a change by this broker. What it wrote need not be the newest: a
        later split by another broker may have been reported before the outcome of this one."""
        self._generation += 1
        self.layout = None

    async def load(self) -> Layout:
        """Read the layout, once for all concurrent callers."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(
                self._load(), name=f"layout-{self._namespace}"
            )
            self._loading.add_done_callback(self._on_loaded)
        return await asyncio.shield(self._loading)

    async def _load(self) -> Layout:
        if self._watch is None:  # First watch, then read: then no change is missed.
            path = layout_path(self._namespace)
            self._watch = self._layouts._store.watch(path, self._on_event)
        generation = self._generation
        layout, version = await self._layouts._read(self._namespace)
        if generation == self._generation and version is not None:
            self.layout = layout
        return layout

    def _on_loaded(self, loading: "asyncio.Task[Layout]") -> None:
        self._loading = None
        if not loading.cancelled():
            loading.exception()  # Retrieved, even if there is no waiter left.

    def _on_event(self, event: WatchEvent) -> None:
        self._generation += 1
        self.layout = None
        self._layouts._changed(self._namespace)


def layout_path(namespace: str) -> str:
    """Return the path of the layout of `tenant/namespace`."""
    return f"{POLICIES_ROOT}/{namespace}"


async def create_layout(store: MetadataStore, namespace: str, bundles: int) -> None:
    """Divide a namespace that is about to be created into this many bundles; an existing layout
    stays.

    Raises:
        BrokerMetadataError
    """
    try:
        await store.create(layout_path(namespace), _encode(Layout.even(bundles)))
    except NodeExistsError:
        pass
    except MetadataError as error:
        raise BrokerMetadataError(f"cannot cut {namespace} into bundles: {error}") from error


def _encode(layout: Layout) -> bytes:
    return LayoutRecord.of(layout).model_dump_json().encode()


def _decode(path: str, value: bytes) -> Layout:
    try:
        return LayoutRecord.model_validate_json(value).layout()
    except ValidationError as error:
        reason = first_problem(error)
    except BundleError as error:
        reason = str(error)
    raise UnreadableRecordError(
        f"{path} holds no bundle layout of format 1 ({reason}). Nothing was changed: bring it back "
        f"from a backup of the metadata store, or remove the node while no broker runs"
    )
