"""Host names that a broker answers to over HTTP while it requires no credentials. Pure.

A web page can make its own name resolve to the loopback address of its visitor (DNS rebinding). To
the browser the broker is then a part of the page, and the page may read and change everything. So a
broker that listens on loopback only, and that has no authentication or also an `anonymous_role`,
answers only to its own names. A broker without required credentials that listens elsewhere does the
same if `http_names` is set: in a container it listens on all addresses, but may be published at
loopback only.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.ledger.link_settings import is_loopback

REFUSED_NAME = (
    "unknown host name: a broker that requires no credentials answers only to localhost, "
    "addresses, its advertised names, http_names and the hosts in websocket_origins"
)


def own_names(settings: BrokerSettings) -> frozenset[str] | None:
    """Return the names that a broker answers to beside localhost and addresses; None for all."""
    entries = [entry.strip() for entry in settings.websocket_origins.split(",")]
    listed = settings.http_names.split(",") if settings.http_names else []
    if settings.has_authentication and not settings.anonymous_role:
        return None
    is_open = "*" in entries or not all(map(is_loopback, settings.addresses))
    if is_open and not listed:
        return None
    urls = [*entries, *settings.advertised_listeners.split(",")]
    hosts = [*listed, *(url.partition("://")[2] for url in urls)]
    return frozenset(
        {settings.advertised_host.lower().removesuffix("."), *map(_name_of, hosts)} - {""}
    )


def is_own_name(host: str | None, names: frozenset[str] | None) -> bool:
    """Whether a Host header names this broker. A request without one (None) is not from a browser,
    and passes."""
    if host is None or names is None:
        return True
    name = _name_of(host)
    return name in names or name.endswith(".localhost") or _is_address(name) or name == "localhost"


def _name_of(host: str) -> str:
    """Return a host in lower case without its port, IPv6 brackets and final dot; "" if it is not a
    host."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
