"""By which names a broker may be asked over HTTP, while it serves people it does not know. Pure.

A page that somebody visits can have its own name lead to their loopback address (DNS rebinding): to
the browser the broker is then a part of the page, which may read and change everything. So a broker
that only its own machine reaches, and that has no authentication or an `anonymous_role` beside it,
answers to names of its own alone. So does any that is told its names: in a container it listens on
all addresses, and may yet be published at loopback only.
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
    """The names that a broker answers to, beside localhost and addresses; None: to all."""
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
    """Whether a broker that answers to `names` is meant by this Host header; None: there was none,
    and no browser."""
    if host is None or names is None:
        return True
    name = _name_of(host)
    return name in names or name.endswith(".localhost") or _is_address(name) or name == "localhost"


def _name_of(host: str) -> str:
    """Without a port, the brackets of an IPv6 address and the dot that ends a full name, in lower
    case; "": it is none."""
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
