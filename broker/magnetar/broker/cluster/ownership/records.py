"""The values that brokers keep in the metadata store: who they are, and what they own. Pure.

    /loadbalance/brokers/<broker>              ephemeral: BrokerRecord
    /namespace/<tenant>/<namespace>/<bundle>   ephemeral: LeaseRecord

A session token is drawn anew for every session with the store. It tells the nodes of a broker's
present session from what an earlier one, or an earlier process of the same name, has left.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

BROKERS_ROOT = "/loadbalance/brokers"


class _Addresses(BaseModel):
    """The addresses of a broker, as they stand in both kinds of records."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    native_url: str = Field(min_length=1)
    """pulsar://host:port for clients that name no listener."""
    http_url: str = ""
    native_url_tls: str = ""
    """pulsar+ssl://host:port for the same clients; empty: it has no TLS."""
    http_url_tls: str = ""
    listeners: dict[str, str] = Field(default_factory=dict)
    """Further addresses by the name of the listener: pulsar://host:port."""
    session_token: str = Field(min_length=1)

    def url_of(self, listener: str) -> str | None:
        """URL of a listener; the empty name is the default one. None: there is no such listener."""
        return self.listeners.get(listener) if listener else self.native_url

    def url_for(self, listener: str | None) -> str:
        """URL for clients of a listener; empty if they had better look it up."""
        if listener is None:
            return "" if self.listeners else self.native_url
        return self.url_of(listener) or ""

    def encode(self) -> bytes:
        return self.model_dump_json().encode()


class BrokerRecord(_Addresses):
    """A broker that runs. The node's existence says that its session lives."""

    name: str = Field(min_length=1)
    version: str = ""
    draining: bool = False
    """Whether the broker is about to stop, and takes no more bundles."""
    load: dict[str, JsonValue] = Field(default_factory=dict)
    """Load report of the broker, with whatever fields its release has."""


class LeaseRecord(_Addresses):
    """The owner of a bundle."""

    broker: str = Field(min_length=1)
    destination: str = ""
    """The broker that the bundle is being handed over to; empty: it stays."""


def broker_path(name: str) -> str:
    """Where a broker registers."""
    return f"{BROKERS_ROOT}/{name}"


def lease_of(record: BrokerRecord, *, destination: str = "") -> LeaseRecord:
    """The lease of a bundle that this broker owns."""
    return LeaseRecord(
        native_url=record.native_url,
        http_url=record.http_url,
        native_url_tls=record.native_url_tls,
        http_url_tls=record.http_url_tls,
        listeners=record.listeners,
        session_token=record.session_token,
        broker=record.name,
        destination=destination,
    )
