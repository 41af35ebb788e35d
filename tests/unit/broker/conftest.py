"""Fixtures of the broker's unit tests."""

import gc
from collections.abc import Iterator

import pytest

from magnetar.broker.protocol.link import Link

_PROBES_MAX = 5_000
"""More than a test of `few_probes` needs."""


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Without collections of garbage: what is freed is freed by itself."""
    gc.collect()  # what earlier tests left
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail requests that probe clients for ever.

    A loop that never yields holds up the event loop, and with it every time limit.
    """
    is_alive, probes = Link.is_alive, 0

    async def counted(link: Link) -> bool:
        nonlocal probes
        probes += 1
        assert probes <= _PROBES_MAX, "a request probes the same clients again and again"
        return await is_alive(link)

    monkeypatch.setattr(Link, "is_alive", counted)
