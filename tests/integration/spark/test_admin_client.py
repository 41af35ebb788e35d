"""What the driver does when brokers are away: of a query that runs, and of one that begins."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.arrow.stored import admin_client
from magnetar.arrow.stored.admin_client import AdminClient
from magnetar.arrow.stored.errors import RefusedError
from magnetar.arrow.stored.options import ConnectionOptions, OptionReader
from magnetar.arrow.stored.patience import PATIENCE_S
from magnetar.sdk.http_client import HttpAnswer
from magnetar.sdk.spark.errors import OptionError, UnreachableError
from tests.certificates import Authority
from tests.http_answers import answering
from tests.processes import HOST, free_ports


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
    with answering(port):
        assert client.get("/x") == {}
    client.close()
    if meanwhile is not None:
        with answering(port, meanwhile), pytest.raises(RefusedError):
            client.get("/x")
    else:
        with pytest.raises(UnreachableError):
            client.get("/x")
    assert PATIENCE_S <= time.now_s < PATIENCE_S + 2
    client.close()
    with answering(port):
        assert client.get("/x") == {}
    client.close()


def test_what_a_broker_refuses_is_not_asked_again() -> None:
    (port,) = free_ports(1)
    time = Time()
    client = client_of(port, time)
    with answering(port):
        client.get("/x")
    client.close()
    with answering(port, 404), pytest.raises(RefusedError, match="404"):
        client.get("/x")
    client.close()
    assert time.pauses == []


def test_a_broker_that_was_too_slow_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over another connection; the request came to it by way of another broker."""
    first, second = free_ports(2)
    client = client_of(first, Time())
    awake = threading.Event()
    with answering(first, location=f"http://{HOST}:{second}/x"):
        with pytest.raises(UnreachableError):
            client.get("/x")  # from now on it has a patient connection to the first one
        with answering(second, waits_for=awake):
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
    with (
        answering(port, body=b"<html>"),
        pytest.raises(OptionError, match=r"admin\.url: .* not answer with JSON"),
    ):
        client.get("/x")
    client.close()


@pytest.mark.parametrize("limit", [99, 100])
def test_an_answer_is_read_up_to_a_bound(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "ANSWER_BYTES_MAX", limit)
    (port,) = free_ports(1)
    client = client_of(port, Time())
    with answering(port, body=b'"' + b"x" * 98 + b'"'):
        if limit == 100:
            assert client.get("/x") == "x" * 98
        else:
            with pytest.raises(OptionError, match=r"admin\.url: .* more than 99 bytes"):
                client.get("/x")
        client.close()


@pytest.mark.parametrize("redirects", [5, 6])
def test_a_request_follows_five_redirects(redirects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def exchange(_: AdminClient, method: str, base: str, path: str, body: object) -> HttpAnswer:
        asked.append(base)
        if len(asked) <= redirects:
            return HttpAnswer(307, {"location": f"http://broker-{len(asked)}/x"}, b"")
        return HttpAnswer(200, {}, b"{}")

    monkeypatch.setattr(AdminClient, "_exchange", exchange)
    client = client_of(1, Time())
    if redirects == 5:
        assert client.get("/x") == {}
    else:
        with pytest.raises(UnreachableError, match=r"/x: brokers redirected .* more than 5 times"):
            client.get("/x")
    assert len(asked) == 6


def test_a_request_by_tls_is_not_sent_on_without_it(tmp_path: Path) -> None:
    """A redirect to plain HTTP would show credentials to everybody on the way."""
    authority = Authority(tmp_path)
    secret, plain = free_ports(2)
    given = {
        "service.url": f"pulsar://{HOST}:1",
        "admin.url": f"https://{HOST}:{secret}",
        "tlsTrustCertsFile": str(authority.path),
    }
    client = AdminClient(ConnectionOptions.read(OptionReader(given)))
    to_plain = f"http://{HOST}:{plain}/x"
    with (
        answering(plain) as shown,
        answering(secret, location=to_plain, certificate=authority.issue("broker")) as asked,
    ):
        with pytest.raises(OptionError, match=r"admin\.url: .* is not TLS"):
            client.get("/x")
        assert (asked, shown) == (["/x"], [])
        client.close()
