"""Fixtures of the broker's unit tests."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Without collections of garbage: what is freed is freed by itself."""
    gc.collect()  # what earlier tests left
    gc.disable()
    yield
    gc.enable()
