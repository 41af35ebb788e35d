"""The role in a client's certificate: the common name of its subject. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def role_of(certificate: object) -> str:
    """The common name; empty if there is no certificate, or none that was verified.

    `certificate` as `SSLObject.getpeercert()` gives it: a dictionary, and an empty one for a
    certificate that nobody has checked. Of several names the last counts, the most specific one.
    """
    if not isinstance(certificate, Mapping):
        return ""
    subject: Sequence[Sequence[tuple[str, Any]]] = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName" and value]
    return str(names[-1]) if names else ""
