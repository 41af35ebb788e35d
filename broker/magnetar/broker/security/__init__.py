"""Authentication, authorization, audit, and their limits."""

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
