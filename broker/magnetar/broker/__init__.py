"""The broker: Pulsar's binary protocol on top of managed logs and cursors.

The names below are loaded at their first use. Bookies use the HTTP server and the errors of this
package, and must not load a broker with them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.broker.base.errors import BrokerError, ListenError, RequestError
    from magnetar.broker.base.settings.broker import BrokerSettings
    from magnetar.broker.broker import Broker

__all__ = ["Broker", "BrokerError", "BrokerSettings", "ListenError", "RequestError"]

_HOMES = {"Broker": "broker", "BrokerSettings": "base.settings.broker"}
"""Modules of the names that are not in `base.errors`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'base.errors')}"), name)
    globals()[name] = value
    return value
