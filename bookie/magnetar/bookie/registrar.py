"""Registration of the bookie in the metadata store: writable, read-only, or none.

A change of kind registers the new one before it removes the old one, in both directions, so that no
client ever sees the bookie as lost (defect B22). After a lost session, the bookie refuses ordinary
adds. It checks its cookies again and registers under the same id; then it takes adds again. If
another process holds the registration by then, the bookie ends.

Source: storage sheet, section 11.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from magnetar.bookie.errors import CookieError, RegistrationTakenError
from magnetar.bookie.requests.write_gate import ReadOnlyReason, WriteGate
from magnetar.ledger.errors import MetadataError, NodeExistsError
from magnetar.ledger.metadata.store import MetadataStore, SessionState, Watch
from magnetar.ledger.registration import BookieInfo, BookieRegistry

_log = structlog.get_logger(__name__)

_RETRY_S = 1.0


class Registrar:
    """The registration of one running bookie."""

    def __init__(
        self,
        registry: BookieRegistry,
        store: MetadataStore,
        info: BookieInfo,
        gate: WriteGate,
        *,
        check_identity: Callable[[], Awaitable[object]],
        wait_s: float,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`info.readonly` is ignored. `wait_s`: how long to wait for an earlier registration to
        expire."""
        self._registry = registry
        self._store = store
        self._info = info
        self._gate = gate
        self._check_identity = check_identity
        self._wait_s = wait_s
        self._on_fatal = on_fatal
        self.registered_as: bool | None = None
        """Read-only (True) or writable (False); None if not registered."""
        self._registered = asyncio.Event()
        self._sessions_lost = 0
        self._has_to_check = False
        self._wanted = asyncio.Event()
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register, and keep the registration up to date from now on.

        Raises:
            RegistrationTakenError: another process is registered under this bookie id.
            MetadataError: the metadata store failed.
        """
        self._watch = self._store.on_session_change(self._on_session_change)
        await self._register()
        self._gate.on_change = self._wanted.set
        self._wanted.set()  # for changes during the registration
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"register-{self._info.bookie_id}"
        )

    async def wait_read_only(self) -> None:
        """Wait until the bookie is registered as read-only.

        Does not end while the gate wants it writable or the metadata store is away: the caller sets
        a time limit.
        """
        while self.registered_as is not True:
            self._registered.clear()
            await self._registered.wait()

    async def close(self) -> None:
        """Refuse ordinary adds from now on, and remove the registration."""
        self._gate.on_change = _nothing
        self._gate.close(ReadOnlyReason.STOPPING)
        if self._watch is not None:
            self._watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.registered_as is None:
            return  # a registration under this id, if any, is not ours
        try:
            await self._registry.unregister(self._info.bookie_id)
        except MetadataError as error:
            # The registration ends with the session.
            _log.warning("bookie_unregister_failed", bookie=self._info.bookie_id, error=str(error))

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while self.registered_as is not self._gate.is_read_only_mode:
                    if self._has_to_check:
                        await self._check_identity()
                        self._has_to_check = False
                    await self._register()
            except (CookieError, RegistrationTakenError) as error:
                self._on_fatal(error)
                return
            except (MetadataError, OSError) as error:
                # OSError: the cookie cannot be read now, for instance with too many open files.
                bookie_id = self._info.bookie_id
                _log.warning("bookie_register_failed", bookie=bookie_id, error=str(error))
                await asyncio.sleep(_RETRY_S)
                self._wanted.set()
            except Exception as bug:  # noqa: BLE001  # else nobody would ever hear of it
                self._on_fatal(bug)
                return

    async def _register(self) -> None:
        readonly, sessions_lost = self._gate.is_read_only_mode, self._sessions_lost
        try:
            await self._registry.register(
                replace(self._info, readonly=readonly), wait_s=self._wait_s
            )
        except NodeExistsError as error:
            raise RegistrationTakenError(
                f"another process is registered as bookie {self._info.bookie_id}; stop it, or give "
                f"this one its own bookie id and data directory"
            ) from error
        if sessions_lost == self._sessions_lost:  # else the session took it away again
            self.registered_as = readonly
            self._registered.set()
            self._gate.open(ReadOnlyReason.UNREGISTERED)

    def _on_session_change(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._sessions_lost += 1
            self._has_to_check = True
            self.registered_as = None
            self._gate.close(ReadOnlyReason.UNREGISTERED)
        elif state is SessionState.CONNECTED and self.registered_as is None:
            self._wanted.set()


def _nothing() -> None:
    return None
