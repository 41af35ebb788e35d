"""What the driver does when brokers are away: of a query that runs, and of one that begins."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.sdk.spark import admin_client
from magnetar.sdk.spark.admin_client import AdminClient, RefusedError
from magnetar.sdk.spark.errors import OptionError, UnreachableError
from magnetar.sdk.spark.options import ConnectionOptions, OptionReader
from magnetar.sdk.spark.patience import PATIENCE_S
from tests.processes import HOST, free_ports


@contextmanager
def broker(
    port: int,
    status: int = 200,
    location: str = "",
    waits_for: threading.Event | None = None,
    body: bytes = b"{}",
) -> Iterator[None]:
    """Answers every question with `{}`, or with an error, or sends it on; `waits_for`: not at
    once."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if waits_for is not None:
                waits_for.wait()
            self.send_response(307 if location else status)
            self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Time:
    """Passes in pauses only."""

    now_s: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def pause(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses.append(pause_s)


def client_of(port: int, time: Time) -> AdminClient:
    given = {"service.url": f"pulsar://{HOST}:1", "admin.url": f"http://{HOST}:{port}"}
    options = ConnectionOptions.read(OptionReader(given))
    return AdminClient(options, clock=time, pause=time.pause)


def test_a_query_that_begins_is_told_at_once() -> None:
    (port,) = free_ports(1)
    time = Time()
    with pytest.raises(UnreachableError, match=r"admin\.url: no broker answers"):
        client_of(port, time).get("/x")
    assert time.pauses == []


@pytest.mark.parametrize("meanwhile", [None, 503], ids=["away", "not now"])
def test_a_query_that_runs_waits_for_brokers_that_are_restarted(meanwhile: int | None) -> None:
    (port,) = free_ports(1)
    time = Time()
    client = client_of(port, time)
    with broker(port):
        assert client.get("/x") == {}
    client.close()
    if meanwhile is not None:
        with broker(port, meanwhile), pytest.raises(RefusedError):
            client.get("/x")
    else:
        with pytest.raises(UnreachableError):
            client.get("/x")
    assert PATIENCE_S <= time.now_s < PATIENCE_S + 2
    client.close()
    with broker(port):
        assert client.get("/x") == {}
    client.close()


def test_what_a_broker_refuses_is_not_asked_again() -> None:
    (port,) = free_ports(1)
    time = Time()
    client = client_of(port, time)
    with broker(port):
        client.get("/x")
    client.close()
    with broker(port, 404), pytest.raises(RefusedError, match="404"):
        client.get("/x")
    client.close()
    assert time.pauses == []


def test_a_broker_that_was_too_slow_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over another connection; the request came to it by way of another broker."""
    first, second = free_ports(2)
    client = client_of(first, Time())
    awake = threading.Event()
    with broker(first, location=f"http://{HOST}:{second}/x"):
        with pytest.raises(UnreachableError):
            client.get("/x")  # from now on it has a patient connection to the first one
        with broker(second, waits_for=awake):
            with monkeypatch.context() as impatient:
                impatient.setattr(admin_client, "_TIMEOUT_S", 0.2)
                with pytest.raises(UnreachableError, match="timed out"):
                    client.get("/x")
            awake.set()
            assert client.get("/x") == {}
            client.close()


def test_another_server_is_told_from_a_broker() -> None:
    (port,) = free_ports(1)
    client = client_of(port, Time())
    with broker(port, body=b"<html>"), pytest.raises(OptionError, match=r"admin\.url: .* no JSON"):
        client.get("/x")
    client.close()
