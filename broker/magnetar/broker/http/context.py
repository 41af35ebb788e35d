"""Context that the routers share: the broker's services, and names parsed from paths."""

from collections.abc import Callable
from contextvars import ContextVar

from magnetar.broker.base import naming
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import Bundle, BundleId
from magnetar.broker.http.admin import Admin
from magnetar.broker.http.refusals import ElsewhereError
from magnetar.broker.policies.resources import Resources
from magnetar.broker.policies.tenants import Tenants
from magnetar.broker.topic import Topic
from magnetar.broker.topics.services import Services
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

IS_AUTHORITATIVE: ContextVar[bool] = ContextVar("IS_AUTHORITATIVE", default=False)
"""Whether the broker that sent the request here has chosen this broker as the owner."""


class HttpContext:
    """The broker, as routers see it."""

    def __init__(
        self,
        admin: Callable[[], Admin],
        services: Services,
        store: MetadataStore,
        *,
        version: str,
    ) -> None:
        """`admin` is called per request, because it raises while the broker starts."""
        self._admin = admin
        self.topics = services.topics
        self.policies = services.policies
        self.schemas = services.schemas
        self.clock = services.clock
        self.store = store
        self.coordinators = services.coordinators
        self.segment_coordinators = services.segment_coordinators
        self.authorizer = services.authorizer
        self.wall_ms = services.clock.wall_ms
        self.tenants = Tenants(store)
        self.resources = Resources(store)
        self.cluster_name = services.settings.cluster_name
        self.version = version

    @property
    def settings(self) -> BrokerSettings:
        """Current settings; some of them change while the broker runs."""
        return self.policies.dynamic.current

    @property
    def admin(self) -> Admin:
        """Administration of brokers and bundles.

        Raises:
            ServiceNotReadyError: the broker is starting.
        """
        return self._admin()

    async def namespace(self, tenant: str, namespace: str, *, may_be_deleted: bool = False) -> str:
        """Return `tenant/namespace` of a namespace that exists; `may_be_deleted` admits one that is
        being deleted.

        Raises:
            TopicNotFoundError
        """
        name = f"{tenant}/{namespace}"
        await self.policies.check_namespace(name, may_be_deleted=may_be_deleted)
        return name

    async def topic(self, domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
        """Return the topic named by a path, in a namespace that exists.

        Raises:
            InvalidTopicNameError, NotAllowedError, TopicNotFoundError
        """
        name = naming.topic_of(f"{domain}://{tenant}/{namespace}/{topic}")
        await self.topics.check_namespace(name.namespace_name)
        return name

    async def served(self, name: TopicName) -> Topic:
        """Return a topic of this broker, loading it if necessary; never creates it.

        Raises:
            ElsewhereError: another broker owns it.
            TopicNotFoundError: it does not exist.
            RequestError: it cannot be loaded now.
        """
        await self.check_owner(name)
        return await self.topics.get(name, may_create=False)

    async def check_owner(self, name: TopicName) -> None:
        """Return if this broker owns the topic; if it was chosen as the owner, it may become so
        now.

        Raises:
            ElsewhereError: another broker is the owner, or chooses the owner.
            RequestError: the owner cannot be determined now.
        """
        is_chosen = IS_AUTHORITATIVE.get()
        owner = await self.admin.owner_of(name, is_authoritative=is_chosen, listener="")
        if not owner.is_self:
            raise ElsewhereError.at(owner)

    async def bundle(self, tenant: str, namespace: str, bundle: str) -> BundleId:
        """Return the bundle named by a path, in a namespace that exists; its layout may lack the
        bundle.

        Raises:
            TopicNotFoundError, BundleError
        """
        name = await self.namespace(tenant, namespace, may_be_deleted=True)
        return BundleId(name, Bundle.parse(bundle))
