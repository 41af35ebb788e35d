"""Authentication, authorization and the audit log of a broker, with their limits.

Names load at their first use: a bookie needs the certificate part, and must not load the code that
checks tokens and rights.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.broker.security.actions import (
        Action,
        Cluster,
        Namespace,
        Resource,
        Subscription,
        Tenant,
        Topic,
    )
    from magnetar.broker.security.authenticator import Authenticator, Credentials
    from magnetar.broker.security.authorizer import Authorizer
    from magnetar.broker.security.identity import NOBODY, Identity

__all__ = [
    "NOBODY",
    "Action",
    "Authenticator",
    "Authorizer",
    "Cluster",
    "Credentials",
    "Identity",
    "Namespace",
    "Resource",
    "Subscription",
    "Tenant",
    "Topic",
]

_HOMES = {
    "Authenticator": "authenticator",
    "Authorizer": "authorizer",
    "Credentials": "authenticator",
    "Identity": "identity",
    "NOBODY": "identity",
}
"""Modules of the names that `actions` does not define."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'actions')}"), name)
    globals()[name] = value
    return value
