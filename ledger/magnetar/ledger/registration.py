"""Bookie registry: registrations, addresses, cookies, and the id of the cluster.

A bookie id is independent of the network address. Ensembles hold ids, and the registration node
(ephemeral) says where the bookie listens now. Layout: docs/formats/ledger-metadata.md. The registry
keeps a view in memory that follows the nodes; it does not judge the health of a bookie.

Source: ledger protocol, section 11.
"""

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    InvalidPathError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.hello import BookieIdentity
from magnetar.ledger.ledger_metadata import is_bookie_id
from magnetar.ledger.metadata.cell import Change, Changed, bytes_cell
from magnetar.ledger.metadata.store import (
    MetadataStore,
    SessionState,
    Versioned,
    Watch,
    WatchEvent,
)
from magnetar.ledger.wire import FRAME_BYTES_MAX

_log = structlog.get_logger(__name__)

_READONLY = "readonly"
_RELOAD_RETRY_DELAY_S = 1.0
_LOADS_AT_ONCE = 64
_INSTANCE_ID_BITS = 128
_INSTANCE_ID = re.compile(rb"[0-9a-f]{32}")
_INSTANCE_ID_CHARACTERS = _INSTANCE_ID_BITS // 4

DOMAIN_CHARACTERS_MAX = 255
"""Maximum length of the name of a rack or a zone."""


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """One registered bookie, and its address."""

    bookie_id: str
    host: str
    port: int
    readonly: bool
    rack: str = ""
    """Failure domain within the zone: a rack, a power feed, a switch. Empty: unknown."""
    zone: str = ""
    """Larger failure domain: a data centre, an availability zone. Empty: unknown."""
    instance_id: str = ""
    """Instance id of the cluster, as in the bookie's cookie. Empty for older releases."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest request in bytes; a larger one ends the connection."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where the bookie listens."""
        return self.host, self.port

    @property
    def identity(self) -> BookieIdentity:
        """The identity that a bookie at this address must answer with."""
        return BookieIdentity(self.bookie_id, self.instance_id)


class _RegistrationRecord(BaseModel):
    """The value of a registration node."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    host: str = Field(min_length=1)
    port: int = Field(gt=0, lt=65_536)
    rack: str = Field(default="", max_length=DOMAIN_CHARACTERS_MAX)
    zone: str = Field(default="", max_length=DOMAIN_CHARACTERS_MAX)
    instance_id: str = Field(default="", max_length=_INSTANCE_ID_CHARACTERS)
    frame_bytes_max: int = Field(default=FRAME_BYTES_MAX, gt=0)

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


class BookieRegistry:
    """The registered bookies, kept up to date by watches between `start` and `close`."""

    def __init__(
        self,
        store: MetadataStore,
        root: str = "/ledgers",
        *,
        random: random.Random | None = None,
        frame_bytes_min: int = 0,
    ) -> None:
        """`frame_bytes_min`: a bookie with a smaller limit for requests is not `writable`."""
        self._frame_bytes_min = frame_bytes_min
        self._store = store
        self._root = root
        self._random = random
        self._bookies: dict[str, BookieInfo] = {}
        self.generation = 0
        """Number of changes of the results of `writable` and `resolve`."""
        self._callbacks: list[Callable[[], None]] = []
        self._watches: list[Watch] = []
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the registrations and follow their changes from now on.

        Raises:
            MetadataUnavailableError
        """
        assert self._follower is None, "started twice"
        # Watch first, then read: a change in between is seen twice rather than never.
        self._watches = [
            self._store.watch(self._available, self._on_event),
            self._store.watch(f"{self._available}/{_READONLY}", self._on_event),
            self._store.on_session_change(self._on_session_change),
        ]
        try:
            await self._reload()
        except BaseException:
            self._close_watches()
            raise
        self._follower = asyncio.create_task(self._follow(), name="bookie-registry")

    async def close(self) -> None:
        """Stop following. Registrations of this process stay until its session ends."""
        self._close_watches()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None

    def writable(self) -> dict[str, BookieInfo]:
        """Return the bookies that take new ledgers, by id."""
        return {
            name: info
            for name, info in self._bookies.items()
            if not info.readonly and info.frame_bytes_max >= self._frame_bytes_min
        }

    def too_narrow(self) -> dict[str, BookieInfo]:
        """Return the bookies with too low a request limit, by id: they get no new ledgers."""
        return {
            name: info
            for name, info in self._bookies.items()
            if info.frame_bytes_max < self._frame_bytes_min
        }

    def registered(self) -> dict[str, BookieInfo]:
        """Return all registered bookies, writable or not, by id."""
        return dict(self._bookies)

    def resolve(self, bookie_id: str) -> BookieInfo | None:
        """Return the bookie's address, writable or not; None if it is not registered."""
        return self._bookies.get(bookie_id)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop after each change of what `writable` and `resolve` return."""
        self._callbacks.append(callback)

    async def register(self, info: BookieInfo, *, wait_s: float = 30.0) -> None:
        """Register a bookie of this process, as writable or read-only; replace the other kind.

        The other kind is removed last, so that a changing bookie never looks lost (B22). The bookie
        must listen at the address already. A registration of an earlier run is replaced at once if
        it names the same address, since no other process can listen there. Otherwise its session
        has `wait_s` to expire. After the loss of the session, the caller registers again.

        Raises:
            InvalidPathError: the id cannot name a bookie.
            NodeExistsError: a bookie with this id is registered at another address and stays.
            UnknownOutcomeError, MetadataUnavailableError
        """
        if not is_bookie_id(info.bookie_id) or info.bookie_id == _READONLY:
            raise InvalidPathError(f"{info.bookie_id!r} cannot be a bookie id")
        record = _RegistrationRecord(
            host=info.host,
            port=info.port,
            rack=info.rack,
            zone=info.zone,
            instance_id=info.instance_id,
            frame_bytes_max=info.frame_bytes_max,
        )
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        own = self._path(info.bookie_id, info.readonly)
        other = self._path(info.bookie_id, not info.readonly)
        await self._clear_registration(other, record, deadline_s, keeps_ours=True)
        await self._clear_registration(own, record, deadline_s)
        await self._store.create(
            own, record.model_dump_json(exclude_defaults=True).encode(), ephemeral=True
        )
        await self._clear_registration(other, record, deadline_s)
        _log.info("bookie_registered", bookie=info.bookie_id, readonly=info.readonly)

    async def unregister(self, bookie_id: str) -> None:
        """Remove the registrations of the bookie, if there are any.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError
        """
        for readonly in (False, True):
            try:
                await self._store.delete(self._path(bookie_id, readonly))
            except NoNodeError:
                pass  # At most one of the two exists.

    async def read_cookie(self, bookie_id: str) -> Versioned | None:
        """Return the bookie's identity record, or None if the cluster has none.

        Raises:
            MetadataUnavailableError
        """
        try:
            return await self._store.get(f"{self._root}/cookies/{bookie_id}")
        except NoNodeError:
            return None

    async def cookie_ids(self) -> Sequence[str]:
        """Return the ids of all bookies that ever registered, running or not, sorted by name.

        Raises:
            MetadataUnavailableError
        """
        return await self._children_if_any(f"{self._root}/cookies")

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None) -> int:
        """Create the cookie (version None) or replace the one of that version.

        Returns the new version.

        Raises:
            NodeExistsError: created meanwhile; BadVersionError, NoNodeError: changed meanwhile.
            UnknownOutcomeError, MetadataUnavailableError
        """
        path = f"{self._root}/cookies/{bookie_id}"
        if version is not None:
            return await self._store.set(path, cookie, version=version)
        await self._store.create(path, cookie)
        return 0

    async def change_cookie(
        self, bookie_id: str, change: Change[bytes], *, tries_max: int
    ) -> Changed[bytes]:
        """Change the cookie by a function of the stored one; see `metadata/cell.py`.

        Raises:
            ContendedError, UnknownOutcomeError, MetadataUnavailableError, and any error of
                `change`.
        """
        cell = bytes_cell(self._store, f"{self._root}/cookies/{bookie_id}", tries_max=tries_max)
        return await cell.change(change)

    async def instance_id(self) -> str:
        """Return the random id of this cluster; create it if there is none yet.

        Raises:
            InvalidLedgerMetadataError: the stored value is not such an id.
            UnknownOutcomeError, MetadataUnavailableError
        """
        path = f"{self._root}/INSTANCEID"
        try:
            return _checked_instance_id((await self._store.get(path)).value, path)
        except NoNodeError:
            pass  # A new cluster.
        source = self._random or random.SystemRandom()
        new_id = f"{source.getrandbits(_INSTANCE_ID_BITS):032x}"
        unknown: UnknownOutcomeError | None = None
        try:
            await self._store.create(path, new_id.encode())
        except NodeExistsError:
            pass  # Another client was faster.
        except UnknownOutcomeError as error:
            unknown = error  # The stored value counts, if there is one.
        try:
            return _checked_instance_id((await self._store.get(path)).value, path)
        except NoNodeError:
            if unknown is None:
                raise
            raise unknown from None

    async def find_instance_id(self) -> str | None:
        """Return the id of this cluster; None if there is none. Never creates one: a caller that
        deletes data because of the metadata must know that it is the right metadata.

        Raises:
            InvalidLedgerMetadataError: the stored value is not such an id.
            MetadataUnavailableError
        """
        path = f"{self._root}/INSTANCEID"
        try:
            return _checked_instance_id((await self._store.get(path)).value, path)
        except NoNodeError:
            return None

    @property
    def _available(self) -> str:
        return f"{self._root}/available"

    def _path(self, bookie_id: str, readonly: bool) -> str:
        return (
            f"{self._available}/{_READONLY}/{bookie_id}"
            if readonly
            else (f"{self._available}/{bookie_id}")
        )

    def _on_event(self, event: WatchEvent) -> None:
        self._changed.set()

    def _on_session_change(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._changed.set()

    def _close_watches(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = []

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reload()
            except MetadataError as error:
                # Keep the view: an unavailable store says nothing about the bookies.
                _log.warning("bookie_registry_reload_failed", error=str(error))
                await asyncio.sleep(_RELOAD_RETRY_DELAY_S)
                self._changed.set()
            except Exception:  # noqa: BLE001 - a defect must not end the following
                _log.exception("bookie_registry_reload_failed")
                await asyncio.sleep(_RELOAD_RETRY_DELAY_S)
                self._changed.set()

    async def _reload(self) -> None:
        found: dict[str, BookieInfo] = {}
        # A bookie that changes its kind has both nodes, and counts as writable. The read-only
        # bookies are listed before and after the others. So a bookie that changes meanwhile, in
        # either direction, is in at least one list (defect B22).
        for parent, readonly in (
            (f"{self._available}/{_READONLY}", True),
            (self._available, False),
            (f"{self._available}/{_READONLY}", True),
        ):
            names = [
                name
                for name in await self._children_if_any(parent)
                if name != _READONLY and not (name in found and readonly)
            ]
            # Load in parallel. If many bookies come back together, loading them one by one would
            # make the view many round trips old.
            for start in range(0, len(names), _LOADS_AT_ONCE):
                batch = names[start : start + _LOADS_AT_ONCE]
                for info in await asyncio.gather(
                    *(self._load(f"{parent}/{name}", name, readonly) for name in batch)
                ):
                    if info is not None:
                        found[info.bookie_id] = info
        if found == self._bookies:
            return
        narrow_before = self.too_narrow()
        self._bookies = found
        self.generation += 1
        for name, info in self.too_narrow().items():
            if name not in narrow_before:
                _log.warning(
                    "bookie_takes_too_little",
                    bookie=name,
                    frame_bytes_max=info.frame_bytes_max,
                    frame_bytes_needed=self._frame_bytes_min,
                    reason="it gets no new ledgers: raise its frame_bytes_max",
                )
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - the other callbacks must learn of it too
                _log.exception("bookie_registry_callback_failed")

    async def _children_if_any(self, path: str) -> Sequence[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return ()  # No bookie has registered yet.

    async def _load(self, path: str, bookie_id: str, readonly: bool) -> BookieInfo | None:
        try:
            record = _RegistrationRecord.model_validate_json((await self._store.get(path)).value)
        except NoNodeError:
            return None  # Removed since the listing; an event follows.
        except ValidationError as error:
            _log.error(
                "bookie_registration_invalid", bookie=bookie_id, problems=error.error_count()
            )
            return None
        return BookieInfo(
            bookie_id,
            record.host,
            record.port,
            readonly,
            rack=record.rack,
            zone=record.zone,
            instance_id=record.instance_id,
            frame_bytes_max=record.frame_bytes_max,
        )

    async def _clear_registration(
        self,
        path: str,
        record: _RegistrationRecord,
        deadline_s: float,
        *,
        keeps_ours: bool = False,
    ) -> None:
        """Free a registration's path, or only check that it holds no other bookie's."""
        gone = asyncio.Event()
        watch = self._store.watch(path, lambda event: gone.set())
        try:
            while True:
                gone.clear()
                try:
                    value = (await self._store.get(path)).value
                    if _is_replaceable(value, record):
                        if not keeps_ours:
                            await self._store.delete(path)
                        return
                except NoNodeError:
                    return
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await gone.wait()
                except TimeoutError as exc:
                    raise NodeExistsError(
                        f"a bookie is registered at {path} with another address, "
                        f"{value.decode(errors='replace')}: is it running twice?"
                    ) from exc
        finally:
            watch.close()


def _is_replaceable(value: bytes, record: _RegistrationRecord) -> bool:
    """Return whether a registration names the same address, or is of no use to any client."""
    try:
        return _RegistrationRecord.model_validate_json(value).address == record.address
    except ValidationError:
        return True


def _checked_instance_id(value: bytes, path: str) -> str:
    """Check and decode a cluster id.

    Raises:
        InvalidLedgerMetadataError: the value is not one.
    """
    if _INSTANCE_ID.fullmatch(value) is None:
        raise InvalidLedgerMetadataError(
            f"{path} holds {value[:80]!r}, which is not a cluster id of 32 hexadecimal digits. "
            "Nothing was changed: bring it back from a backup of the metadata store, or from the "
            "cookie of any bookie"
        )
    return value.decode()
