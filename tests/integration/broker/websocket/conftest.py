"""One server for all WebSocket tests; a topic of its own for each."""

import itertools
from collections.abc import Iterator

import pytest

from tests.integration.broker.websocket.sockets import Topic
from tests.standalone import Standalone

_numbers = itertools.count()

_SETTINGS = {
    "WEBSOCKET_DISCOVERY_INTERVAL_S": "0.2",
    "WEBSOCKET_ORIGINS": "https://console.example",
    "DELAYED_DELIVERY_TICK_MS": "10",
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("websocket") / "data", settings=_SETTINGS) as started:
        yield started
        assert started.terminate() == 0
        started.assert_log_clean()


@pytest.fixture
def topic(server: Standalone) -> Topic:
    return Topic(server.http_port, f"public/default/topic-{next(_numbers)}")
