"""The application behind the broker's small one: Pulsar's REST interface, and its description.

It is composed of routers; the answers depend on whether the broker is one of several or alone. It
is built late (`LateApplication` in `app.py`), because FastAPI and all the models are slow to load.
"""

from collections.abc import Callable

from fastapi import Depends, FastAPI, Request

from magnetar.broker.base.errors import ServiceNotReadyError
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.orders import HttpOrders
from magnetar.broker.cluster.balance.reporter import LoadReporter
from magnetar.broker.http import refusals
from magnetar.broker.http.admin import Admin, ClusterAdmin, SoleAdmin, SoleBundles
from magnetar.broker.http.attention import attention_router
from magnetar.broker.http.bodies import refuse_broken_text
from magnetar.broker.http.bookie_disks import BookieDisks
from magnetar.broker.http.bookies import bookies_router
from magnetar.broker.http.brokers import broker_stats_router, brokers_router, configuration_router
from magnetar.broker.http.clusters import clusters_router
from magnetar.broker.http.context import IS_AUTHORITATIVE, HttpContext
from magnetar.broker.http.description import add_description
from magnetar.broker.http.disconnecting import disconnecting_router
from magnetar.broker.http.history import history_router
from magnetar.broker.http.late_routes import add_late
from magnetar.broker.http.lookup import lookup_router
from magnetar.broker.http.many_topics import many_topics_router
from magnetar.broker.http.messages import messages_router
from magnetar.broker.http.metadata_status import metadata_router
from magnetar.broker.http.metrics.page import MetricsPage
from magnetar.broker.http.namespaces import (
    backlogs_router,
    bundles_router,
    namespace_details_router,
    namespaces_router,
)
from magnetar.broker.http.non_persistent import bundle_lists_router, non_persistent_router
from magnetar.broker.http.permissions import permissions_router
from magnetar.broker.http.policies import policies_router
from magnetar.broker.http.proxy_stats import proxy_stats_router
from magnetar.broker.http.resources import absent_router, resources_router
from magnetar.broker.http.rights import need_of
from magnetar.broker.http.scalable import scalable_router
from magnetar.broker.http.schemas import schemas_router
from magnetar.broker.http.stats import stats_router
from magnetar.broker.http.subscriptions import subscriptions_router
from magnetar.broker.http.tenants import tenants_router
from magnetar.broker.http.topics import (
    compaction_router,
    life_router,
    partitions_router,
    topics_router,
)
from magnetar.broker.http.transactions import transactions_router
from magnetar.broker.http.view import BrokerView
from magnetar.broker.security import Action, Resource


def add_routers(app: FastAPI, broker: BrokerView, page: MetricsPage) -> None:
    """Add all routers to an application. `page` holds the metrics."""
    context = HttpContext(
        _cluster_admin(broker) if broker.cluster is not None else _sole_admin(broker),
        broker.services,
        broker.store,
        version=broker.version,
    )
    refusals.install(app)
    authorizer = broker.services.authorizer

    async def authorize(request: Request) -> None:
        """Check the right for a request. Note whether the broker that sent it here chose this one
        as the owner."""
        IS_AUTHORITATIVE.set(request.query_params.get("authoritative") == "true")
        if authorizer.is_on:
            need = need_of(request.method, request.scope["path"], request.path_params)
            if need is not None:
                await check(request, *need)

    async def check(request: Request, action: Action, resource: Resource) -> None:
        if authorizer.is_on:
            address = request.client.host if request.client is not None else ""
            await authorizer.check(request.state.identity, action, resource, address=address)

    wall_ms = broker.services.clock.wall_ms
    keeping = broker.services.keeping
    disks = BookieDisks(broker.bookies, broker.bookie_facts, clock=broker.services.clock)
    for router in (
        lookup_router(context),
        backlogs_router(context, keeping),
        configuration_router(context, metadata_url=broker.metadata_url),
        brokers_router(
            context,
            status=broker.status,
            health=broker.health.look,
            request_stop=broker.request_stop,
            wall_ms=wall_ms,
        ),
        broker_stats_router(context, page, wall_ms=wall_ms),
        bookies_router(context, broker.bookies, random=broker.services.random, disks=disks),
        metadata_router(broker.store, broker.metadata_url),
        clusters_router(context),
        tenants_router(context),
        permissions_router(context),
        namespace_details_router(context),
        namespaces_router(context),
        policies_router(context),
        bundles_router(context),
        resources_router(context),
        topics_router(context),
        schemas_router(context),
        compaction_router(context),
        stats_router(context, wall_ms=wall_ms),
        partitions_router(context),
        life_router(context),
        messages_router(context),
        subscriptions_router(context, keeping),
        many_topics_router(context, check),
        disconnecting_router(context),
        attention_router(context, wall_ms=wall_ms, members=page.watch.members),
        history_router(context, page.sampler.history),
        non_persistent_router(context),
        bundle_lists_router(context),
        transactions_router(context),
        scalable_router(context),
        proxy_stats_router(broker.websocket_stats),
        absent_router(),
    ):
        add_late(app, router, [Depends(authorize), Depends(refuse_broken_text)])


def _cluster_admin(broker: BrokerView) -> Callable[[], Admin]:
    cluster = broker.cluster
    assert cluster is not None
    made: list[Admin] = []

    def admin() -> Admin:
        if not made:
            balancer = cluster.balancer
            if balancer is None:
                raise ServiceNotReadyError("this broker is starting")
            timeout_s = broker.services.settings.unload_order_timeout_ms / 1000
            made.append(
                ClusterAdmin(
                    cluster.ownership,
                    store=broker.store,
                    layouts=cluster.layouts,
                    leader=cluster.leader_broker,
                    reporter=balancer.reporter,
                    orders=HttpOrders(
                        broker.network,
                        timeout_s=timeout_s,
                        token=broker.client_token,
                    ),
                )
            )
        return made[0]

    return admin


def _sole_admin(broker: BrokerView) -> Callable[[], Admin]:
    services = broker.services
    settings = services.settings
    layouts = Layouts(
        broker.store,
        bundles_default=settings.bundles_per_namespace,
        bundles_max=settings.bundles_per_namespace_max,
    )
    bundles = SoleBundles(layouts, services.policies.known_namespaces)
    reporter = LoadReporter(
        bundles,
        layouts,
        lambda: services.topics.loaded,
        settings=settings,
        usage=broker.usage,
        connections=broker.connections,
        clock=services.clock,
    )
    admin = SoleAdmin(
        broker.describe,
        services.topics,
        bundles=bundles,
        layouts=layouts,
        reporter=reporter,
        unload_timeout_s=settings.unload_timeout_ms / 1000,
    )
    return lambda: admin


def make_interface(broker: BrokerView, page: MetricsPage) -> FastAPI:
    """Build the HTTP interface. Each request's state already holds the `identity` of its sender."""
    app = FastAPI(title="Magnetar broker", version=broker.version, openapi_url=None, docs_url=None)
    add_routers(app, broker, page)
    add_description(app)
    return app
