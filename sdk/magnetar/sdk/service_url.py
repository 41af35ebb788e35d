"""Service URLs: `pulsar://host[:port][,host[:port]…]`, or `pulsar+ssl://…` for TLS."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from magnetar.sdk.errors import InvalidUrlError

PORT_DEFAULT = 6650
TLS_PORT_DEFAULT = 6651


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """Addresses of a service URL. The client starts with any of them."""

    addresses: tuple[Address, ...]
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL of one or several hosts. The default port is 6650, and 6651 for TLS.

        Raises:
            InvalidUrlError: the URL has another form.
        """
        scheme, separator, rest = url.partition("://")
        is_tls = scheme == "pulsar+ssl"
        if scheme not in ("pulsar", "pulsar+ssl") or not separator:
            raise InvalidUrlError(f"{url!r} is not of the form pulsar://host:port")
        addresses: list[Address] = []
        for part in rest.rstrip("/").split(","):
            try:
                parsed = urlsplit(f"//{part}")
                host, port = parsed.hostname, parsed.port
            except ValueError as error:
                raise InvalidUrlError(f"{url!r}: {error}") from error
            if not host or parsed.path or parsed.query or parsed.fragment or parsed.username:
                raise InvalidUrlError(f"{url!r}: {part!r} is not of the form host:port")
            if port is None:
                port = TLS_PORT_DEFAULT if is_tls else PORT_DEFAULT
            addresses.append(Address(host, port))
        return cls(tuple(addresses), is_tls)
