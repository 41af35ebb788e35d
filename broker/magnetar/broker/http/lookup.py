"""Lookup over HTTP: the broker to which a topic's clients connect. Source: HTTP sheet, section
2."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import ElsewhereError

AuthoritativeQuery = Annotated[
    bool, Query(description="Set in a redirect by the broker that chose this one.")
]
ListenerQuery = Annotated[
    str, Query(alias="listenerName", description="Name of the advertised listener to return.")
]
ListenerHeader = Annotated[str, Header(alias="X-Pulsar-ListenerName")]


class LookupData(BaseModel):
    """The broker to connect to."""

    broker_url: str = Field(serialization_alias="brokerUrl")
    broker_url_tls: str = Field(default="", serialization_alias="brokerUrlTls")
    """URL over TLS. Sent even if empty, unlike other empty fields: the C++ client takes an answer
    without it for malformed, and crashes."""
    http_url: str = Field(serialization_alias="httpUrl")
    http_url_tls: str = Field(default="", serialization_alias="httpUrlTls")
    native_url: str = Field(serialization_alias="nativeUrl")
    """Former name of `brokerUrl`."""


def lookup_router(context: HttpContext) -> APIRouter:
    """Return the routes below /lookup/v2/topic."""
    router = late_router(prefix="/lookup/v2/topic", tags=["lookup"])

    @router.get("/{domain}/{tenant}/{namespace}/{topic}")
    async def lookup(
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        authoritative: AuthoritativeQuery = False,
        listener_name: ListenerQuery = "",
        listener_header: ListenerHeader = "",
    ) -> LookupData:
        """Return the owner of a topic; assign one if there is none. 307 to a broker that can
        answer."""
        name = await context.topic(domain, tenant, namespace, topic)
        owner = await context.admin.owner_of(
            name, is_authoritative=authoritative, listener=listener_name or listener_header
        )
        if owner.is_redirect:
            raise ElsewhereError.at(owner)
        return LookupData(
            broker_url=owner.service_url,
            broker_url_tls=owner.service_url_tls,
            http_url=owner.http_url,
            http_url_tls=owner.http_url_tls,
            native_url=owner.service_url,
        )

    @router.get("/{domain}/{tenant}/{namespace}/{topic}/bundle")
    async def bundle(domain: str, tenant: str, namespace: str, topic: str) -> PlainTextResponse:
        """Return the bundle of a topic, as 0x00000000_0x40000000."""
        name = await context.topic(domain, tenant, namespace, topic)
        layout = await context.admin.layouts.layout_of(name.namespace_name)
        return PlainTextResponse(layout.bundle_of(name).name)

    return router
