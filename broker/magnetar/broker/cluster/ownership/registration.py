"""The broker's own node in the metadata store: shows that it runs, its addresses and its load.

The node is ephemeral and belongs to the same session as the leases, so it also proves that the
session lives. A read that lets the server catch up with its leader, and then finds the present
token, shows that the session was alive after the call (`session_guard.py`).

The node is created if absent, and never overwritten by another process. A broker that starts again
after a crash waits until the session of its former process is over; only then no lease of that
process is left. A node of the broker's present session may still have an older token: its creation
was under way when the session before expired, and reached the server under the new one
(`leases.py`).
"""

import asyncio
import random
from collections.abc import Callable, Mapping

import structlog
from pydantic import JsonValue

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.cluster.ownership.records import BrokerRecord, broker_path
from magnetar.broker.policies.model import decode
from magnetar.ledger.errors import (
    MetadataError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.cell import Cell
from magnetar.ledger.metadata.store import MetadataStore

_log = structlog.get_logger()

_TOKEN_BITS = 64
_UPDATES_TRIED = 5


class Registration:
    """The node of one broker, which is the session that the guard proves."""

    def __init__(
        self,
        store: MetadataStore,
        name: Callable[[], str],
        describe: Callable[[str], BrokerRecord],
        *,
        random: random.Random,
    ) -> None:
        """`describe` returns the record for a given token, without load and draining. Both are
        called when the broker knows its addresses."""
        self._store = store
        self._name = name
        self._describe = describe
        self._random = random
        self._record: BrokerRecord | None = None
        self._load: Mapping[str, JsonValue] = {}
        self._draining = False
        self._writing = asyncio.Lock()
        self._unknown: set[str] = set()
        """Tokens of creations with an unknown outcome, which may still appear."""
        self.token = ""
        """Token of the present session; empty before the first registration."""

    @property
    def record(self) -> BrokerRecord:
        """The record of the present session."""
        assert self._record is not None, "not registered yet"
        return self._record

    @property
    def name(self) -> str:
        return self._name()

    @property
    def timeout_s(self) -> float:
        return self._store.session_timeout_ms / 1000

    async def prove(self) -> bool:
        if not self.token:
            return False
        path = broker_path(self.record.name)
        await self._store.catch_up()
        try:
            found = await self._store.get(path)
        except NoNodeError:
            return False
        return decode(BrokerRecord, path, found.value).session_token == self.token

    async def renew(self) -> None:
        """Register under a new token.

        Raises:
            BrokerMetadataError: the name is taken: by the former process, until its session ends,
                or by another broker.
            MetadataError
        """
        async with self._writing:
            token = f"{self._random.getrandbits(_TOKEN_BITS):0{_TOKEN_BITS // 4}x}"
            record = self._described(token)
            path = broker_path(record.name)
            try:
                await self._store.create(path, record.encode(), ephemeral=True)
            except (NodeExistsError, UnknownOutcomeError):
                self._unknown.add(token)
                record = await self._ours_at(path)
            self._unknown.clear()
            self.token, self._record = record.session_token, record
            _log.info("broker_registered", broker=record.name, native_url=record.native_url)

    def _described(self, token: str) -> BrokerRecord:
        return self._describe(token).model_copy(
            update={"load": dict(self._load), "draining": self._draining}
        )

    async def _ours_at(self, path: str) -> BrokerRecord:
        """Return the record that a creation by this broker has left there.

        Raises:
            BrokerMetadataError: there is another's, or none.
        """
        await self._store.catch_up()
        try:
            found = decode(BrokerRecord, path, (await self._store.get(path)).value)
        except NoNodeError as error:
            raise BrokerMetadataError(
                f"the metadata store does not say whether it created {path}"
            ) from error
        if found.session_token not in self._unknown:
            raise BrokerMetadataError(
                f"the broker name {found.name} is taken by {found.native_url}: if that is an "
                f"earlier process of this broker, its session ends within {self.timeout_s:.0f} s; "
                "otherwise give this broker another name"
            )
        return found

    async def update(
        self, *, load: Mapping[str, JsonValue] | None = None, draining: bool | None = None
    ) -> None:
        """Publish a change of load or draining; the next registration has it, too.

        Raises:
            BrokerMetadataError: not now; the next update or registration includes it.
        """
        if load is not None:
            self._load = load
        if draining is not None:
            self._draining = draining
        async with self._writing:
            if not self.token:
                return
            record = self._described(self.token)
            path = broker_path(record.name)

            def replace(found: BrokerRecord | None) -> BrokerRecord:
                if found is None or found.session_token != self.token:
                    raise BrokerMetadataError(f"{path} is not updated: it is not of this session")
                return record

            cell = Cell(
                self._store,
                path,
                decode=lambda value: decode(BrokerRecord, path, value),
                encode=BrokerRecord.encode,
                tries_max=_UPDATES_TRIED,
            )
            try:
                await cell.change(replace, is_sure=False)
            except MetadataError as error:
                raise BrokerMetadataError(f"{path} is not updated: {error}") from error
            self._record = record

    async def withdraw(self) -> None:
        """Delete the node, so that others see at once that the broker is gone. After an error, the
        node stays until the session ends."""
        async with self._writing:
            if not self.token:
                return
            token, self.token = self.token, ""
            path = broker_path(self.record.name)
            try:
                found = await self._store.get(path)
                if decode(BrokerRecord, path, found.value).session_token == token:
                    await self._store.delete(path, version=found.version)
            except (MetadataError, BrokerMetadataError) as error:
                _log.info("broker_not_withdrawn", path=path, error=str(error))
