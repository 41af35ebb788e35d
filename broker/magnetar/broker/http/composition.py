"""Composes the routers for a broker; who answers depends on whether it is alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI

from magnetar.broker.balance.layouts import Layouts
from magnetar.broker.balance.orders import HttpOrders
from magnetar.broker.balance.reporter import LoadReporter
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.http import refusals
from magnetar.broker.http.admin import Admin, ClusterAdmin, SoleAdmin, SoleBundles
from magnetar.broker.http.backlogs import backlogs_router
from magnetar.broker.http.brokers import brokers_router
from magnetar.broker.http.compaction import compaction_router
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.life import life_router
from magnetar.broker.http.lookup import lookup_router
from magnetar.broker.http.namespaces import namespaces_router
from magnetar.broker.http.partitions import partitions_router
from magnetar.broker.http.policies import policies_router
from magnetar.broker.http.schemas import schemas_router
from magnetar.broker.http.stats import stats_router
from magnetar.broker.http.subscriptions import subscriptions_router
from magnetar.broker.http.tenants import tenants_router
from magnetar.broker.http.topics import topics_router
from magnetar.broker.websocket.proxy_stats import proxy_stats_router

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker


def add_routers(app: FastAPI, broker: "Broker") -> None:
    """Put lookup, brokers, namespaces and topics into an application."""
    context = HttpContext(
        _cluster_admin(broker) if broker.cluster is not None else _sole_admin(broker),
        broker.services,
        broker.store,
        version=broker.version,
    )
    refusals.install(app)
    app.include_router(lookup_router(context))
    app.include_router(backlogs_router(context, broker.services.keeping))
    app.include_router(brokers_router(context, status=lambda: broker.status))
    app.include_router(tenants_router(context))
    app.include_router(namespaces_router(context))
    app.include_router(policies_router(context))
    app.include_router(topics_router(context))
    app.include_router(schemas_router(context))
    app.include_router(subscriptions_router(context, broker.services.keeping))
    app.include_router(compaction_router(context))
    app.include_router(stats_router(context, wall_ms=broker.services.clock.wall_ms))
    app.include_router(partitions_router(context))
    app.include_router(life_router(context))
    app.include_router(proxy_stats_router(lambda: broker.websocket))


def _cluster_admin(broker: "Broker") -> Callable[[], Admin]:
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
                        token=lambda: broker.security.client_token,
                    ),
                )
            )
        return made[0]

    return admin


def _sole_admin(broker: "Broker") -> Callable[[], Admin]:
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
        connections=lambda: broker.connections,
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
