"""Advertised listeners: the addresses of one broker in several networks. Pure.

The setting is a list: `internal:pulsar://10.0.0.1:6650,external:pulsar://broker.example:6650`.
"""

import re

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_URL = re.compile(r"pulsar://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def parse_listeners(text: str) -> dict[str, str]:
    """Return the listeners in their order, name to URL; empty for an empty text.

    Raises:
        ValueError: a listener has another form, or a name occurs twice.
    """
    listeners: dict[str, str] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, separator, url = each.partition(":")
        match = _URL.fullmatch(url)
        if not separator or _NAME.fullmatch(name) is None or match is None:
            raise ValueError(
                f"bad listener {each!r}: give name:pulsar://host:port, several of them with commas "
                "between"
            )
        if not 0 < int(match["port"]) < 65_536:
            raise ValueError(f"bad port in the listener {each!r}")
        if name in listeners:
            raise ValueError(f"there are two listeners {name!r}")
        listeners[name] = url
    return listeners


def host_and_port(url: str) -> tuple[str, int]:
    """Split `pulsar://host:port` into host and port.

    Raises:
        ValueError: the URL has another form.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is not of the form pulsar://host:port")
    return match[1].strip("[]"), int(match["port"])
