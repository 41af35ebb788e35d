"""The transaction coordinators on a broker: which exist, where they are, and whether they are
served.

Their partitioned topic is created when the first client asks for it. A coordinator is loaded when a
client connects to it. The leader regularly checks those that have been used, so that decisions are
carried out even if their broker died and no client comes.
"""

import asyncio
from collections.abc import Callable

import structlog

from magnetar.broker.base.errors import (
    NamespaceNotFoundError,
    NotAllowedError,
    RequestError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.features.transactions.errors import (
    CoordinatorNotFoundError,
    TransactionsDisabledError,
)
from magnetar.broker.features.transactions.ids import (
    COORDINATORS,
    coordinator_topic,
    is_coordinator,
)
from magnetar.broker.features.transactions.messenger import Messenger
from magnetar.broker.features.transactions.owner_links import OwnerLinks
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topics import Topics
from magnetar.ledger.ports import Clock
from magnetar.sdk.errors import SdkError

_log = structlog.get_logger()


class Coordinators:
    """The coordinators that one broker serves or checks."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: Topics,
        policies: PolicyRegistry,
        links: OwnerLinks,
        clock: Clock,
        *,
        is_leader: Callable[[], bool],
    ) -> None:
        """`is_leader`: whether this broker has to check that every coordinator is served."""
        self._settings = settings
        self._topics = topics
        self._policies = policies
        self._links = links
        self._clock = clock
        self._is_leader = is_leader
        self.messenger = Messenger(
            topics,
            links.find,
            settings,
        )
        self._looking: asyncio.Task[None] | None = None
        topics.attach_coordinators(self._make)

    @property
    def is_enabled(self) -> bool:
        return self._settings.transaction_coordinator_enabled

    def check_enabled(self) -> None:
        """Check that transactions are enabled.

        Raises:
            NotAllowedError
        """
        if not self.is_enabled:
            raise TransactionsDisabledError()

    # Where they are

    async def prepare(self) -> int:
        """Create the partitioned topic of the coordinators if it is missing; return their number.

        Raises:
            BrokerMetadataError: the metadata store does not answer.
        """
        found = await self._topics.partitioned.find(COORDINATORS)
        if found is None:
            await self._policies.have_namespace(COORDINATORS.namespace_name)
            found = await self._topics.partitioned.ensure(
                COORDINATORS, self._settings.transaction_coordinators
            )
        return found.partitions

    async def get(self, number: int) -> Coordinator:
        """Return a coordinator that is, or can be, served here.

        Raises:
            NotAllowedError: transactions are off, or there is no such coordinator.
            CoordinatorNotFoundError: it is served elsewhere, or its owner cannot be found now.
        """
        self.check_enabled()
        name = coordinator_topic(number)
        topic = self._topics.served(name)
        if topic is None or topic.is_closed:
            if number >= await self.prepare():
                raise NotAllowedError(f"there is no transaction coordinator {number}")
            try:
                topic = await self._topics.get(name)
            except ServiceNotReadyError as error:
                raise CoordinatorNotFoundError(
                    f"coordinator {number} is not served here: {error}"
                ) from error
        coordinator = topic.find(Coordinator)
        if coordinator is None or topic.is_closed or not topic.tenure.holds():
            raise CoordinatorNotFoundError(
                f"another broker serves transaction coordinator {number}: look it up again"
            )
        return coordinator

    @property
    def served(self) -> list[Coordinator]:
        """Coordinators that this broker serves at the moment."""
        found = (topic.find(Coordinator) for topic in self._topics.loaded)
        return [each for each in found if each is not None]

    def _make(self, topic: Topic) -> Coordinator | None:
        """Make the coordinator of a topic that is being opened; None if the topic belongs to
        none."""
        if not is_coordinator(topic.name) or topic.name.partition_index < 0:
            return None
        return Coordinator(
            topic.name.partition_index, topic, self.messenger, self._settings, self._clock
        )

    # Checks that every coordinator is served

    def start(self) -> None:
        interval_s = self._settings.transaction_check_interval_s
        if self.is_enabled and interval_s > 0:
            self._looking = asyncio.get_running_loop().create_task(
                self._look(interval_s), name="look-at-coordinators"
            )

    def stop_looking(self) -> None:
        """Stop checking: a stopping broker has no coordinator loaded any more."""
        if self._looking is not None:
            self._looking.cancel()

    async def close(self) -> None:
        self.stop_looking()
        await self._links.close()

    async def _look(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if not self._is_leader():
                continue
            try:
                await self._have_all_served()
            except (RequestError, SdkError) as error:
                _log.info("coordinators_not_looked_at", error=str(error))
            except Exception:  # noqa: BLE001
                # A defect must not end all further checks.
                _log.exception("coordinators_not_looked_at")

    async def _have_all_served(self) -> None:
        try:
            names = set(await self._topics.names(COORDINATORS.namespace_name))
        except (NamespaceNotFoundError, TopicNotFoundError):
            return  # No client has used transactions.
        found = await self._topics.partitioned.find(COORDINATORS)
        count = found.partitions if found is not None else 0
        for number in range(count):
            name = coordinator_topic(number)
            if str(name) in names and self._topics.served(name) is None:
                try:
                    await self.messenger.have_served(number)
                except SdkError as error:
                    _log.info("coordinator_not_served", number=number, error=str(error))
