"""Rows of the table of endpoints: a request that works, one that is wrong, one for nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Method = str
Before = tuple[Method, str, Any]

TENANT = "acme"
NAMESPACE = "acme/shop"
NS = f"/admin/v2/namespaces/{NAMESPACE}"
NO_NS = "/admin/v2/namespaces/acme/nowhere"
T = f"/admin/v2/persistent/{NAMESPACE}"
PLAIN = f"{T}/plain"
"""A topic with entries, and the subscription `s` in front of them."""
PARTED = f"{T}/parted"
"""A topic with three partitions, with entries, and the subscription `s` in front of them."""
MISSING = f"{T}/missing"
NP = f"/admin/v2/non-persistent/{NAMESPACE}"
NONE = f"{T.replace('shop', 'nowhere')}"
BUNDLE = "0x00000000_0x40000000"


@dataclass(frozen=True)
class Row:
    """One endpoint."""

    method: Method
    path: str
    """With {entry}, {ledger} of the first message, {broker} of the broker's id."""
    body: Any = None
    status: int = 200
    wrong: tuple[str | None, Any, int] | None = None
    """Another path or None for the same, another body, and the status that is answered; None:
    there is nothing in it that could be wrong."""
    missing: tuple[str, int] | None = None
    """The path of something that there is not; None: it needs nothing to be there."""
    before: tuple[Before, ...] = ()
    """What has to be done first."""
    is_open: bool = False
    """Anybody may."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def life(
    path: str, body: Any, *, missing: str | None, wrong: Any, created: int = 204, verb: Method
) -> Iterator[Row]:
    """What is set, shown and removed at one path."""
    gone = (missing, 404) if missing is not None else None
    bad = (None, wrong, 400) if wrong is not None else None
    yield Row(verb, path, body, created, bad, gone)
    yield Row("GET", path, None, 200, None, gone, before=((verb, path, body),))
    yield Row("DELETE", path, None, 204, None, gone, before=((verb, path, body),))
