"""The records of brokers in the metadata store: their addresses, and the bundles they own. Pure.

    /loadbalance/brokers/<broker>              ephemeral: BrokerRecord
    /namespace/<tenant>/<namespace>/<bundle>   ephemeral: LeaseRecord

A new session token is drawn for every session with the store. It distinguishes the nodes of a
broker's present session from those of an earlier session, or of an earlier process of the same
name.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

BROKERS_ROOT = "/loadbalance/brokers"


class _Addresses(BaseModel):
    """Addresses of a broker, as in both kinds of records."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    native_url: str = Field(min_length=1)
    """pulsar://host:port for clients that name no listener."""
    http_url: str = ""
    native_url_tls: str = ""
    """pulsar+ssl://host:port for the same clients; empty without TLS."""
    http_url_tls: str = ""
    listeners: dict[str, str] = Field(default_factory=dict)
    """Further addresses by the name of the listener: pulsar://host:port."""
    session_token: str = Field(min_length=1)

    def url_of(self, listener: str) -> str | None:
        """Return the URL of a listener, None if there is no such one; the empty name is the
        default."""
        return self.listeners.get(listener) if listener else self.native_url

    def url_for(self, listener: str | None) -> str:
        """Return the URL for clients of a listener; empty if they should look it up."""
        if listener is None:
            return "" if self.listeners else self.native_url
        return self.url_of(listener) or ""

    def encode(self) -> bytes:
        return self.model_dump_json().encode()


class BrokerRecord(_Addresses):
    """A running broker. The node exists as long as its session lives."""

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
    """Broker to which the bundle is being handed over; empty if it stays."""


def broker_path(name: str) -> str:
    """Return the path at which a broker registers."""
    return f"{BROKERS_ROOT}/{name}"


def lease_of(record: BrokerRecord, *, destination: str = "") -> LeaseRecord:
    """Return the lease of a bundle that this broker owns."""
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
