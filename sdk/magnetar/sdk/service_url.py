"""Service URLs: `pulsar://host[:port][,host[:port]…]`."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from magnetar.sdk.errors import InvalidUrlError, NotSupportedError

PORT_DEFAULT = 6650


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
    """The brokers to begin with; any of them will do."""

    addresses: tuple[Address, ...]

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL of one or several hosts; the port is 6650 if none is given.

        Raises:
            InvalidUrlError: of another form.
            NotSupportedError: pulsar+ssl.
        """
        scheme, separator, rest = url.partition("://")
        if scheme == "pulsar+ssl":
            raise NotSupportedError(f"{url!r}: TLS is not built yet, use pulsar://")
        if scheme != "pulsar" or not separator:
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
            addresses.append(Address(host, PORT_DEFAULT if port is None else port))
        return cls(tuple(addresses))
