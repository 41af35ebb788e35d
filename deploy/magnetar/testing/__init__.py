"""A broker for tests: whole, in the test's own process, started in a moment; and pytest fixtures.

The names are loaded when first used: pytest imports the fixtures with every run.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("magnetar.testing.broker"), name)
    globals()[name] = value
    return value
