"""Which web pages may connect, and change things over HTTP. Pure.

A browser lets any page try, and says which one it is.
"""

from urllib.parse import urlsplit


def is_allowed(origin: str | None, host: str | None, allowed: str) -> bool:
    """Whether a client from `origin` (None: no browser) may connect.

    `host` is the request's Host header, `allowed` the setting: origins with commas between, `*`.
    """
    if origin is None:
        return True
    entries = {entry.strip().rstrip("/").lower() for entry in allowed.split(",")}
    if "*" in entries or origin.rstrip("/").lower() in entries - {""}:
        return True
    try:
        return host is not None and urlsplit(origin).netloc.lower() == host.strip().lower() != ""
    except ValueError:
        return False  # an origin that cannot be read is not ours
