"""Authentication, authorization, audit, and their limits.

The names below are loaded when first used: a bookie looks at certificates, and must not load what
checks tokens and rights with it.
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
"""Where the names are that are no actions and resources."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'actions')}"), name)
    globals()[name] = value
    return value
