"""What `magnetar admin clusters create` and `update` send, by options of Pulsar's tool."""

from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from magnetar.deploy import admin_client
from magnetar.deploy.cli import app

KNOWN = {"serviceUrl": "http://west:8080", "brokerServiceUrl": "pulsar://west:6650"}


class _Brokers:
    """Stands for the brokers: remembers requests."""

    sent: list[tuple[str, str, Any]]

    def __init__(self, _url: str) -> None:
        pass

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return dict(KNOWN)

    def ask(self, method: str, path: str, query: Mapping[str, str], body: Any) -> None:
        self.sent.append((method, path, body))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    _Brokers.sent = []
    monkeypatch.setattr(admin_client, "AdminClient", _Brokers)
    return _Brokers.sent


def run(*arguments: str) -> None:
    ended = CliRunner().invoke(app, ["admin", "clusters", *arguments])
    assert ended.exit_code == 0, ended.output


OPTIONS = (
    "--url http://w:80 --url-secure https://w:443 --broker-url pulsar://w:1 "
    "--broker-url-secure pulsar+ssl://w:2 --tls-enable --tls-allow-insecure "
    "--tls-trust-certs-filepath /ca.pem --tls-certs-filepath /c.pem --tls-key-filepath /k.pem "
    "--auth-plugin token --auth-parameters env:WEST --listener-name outside --peer-clusters a,b"
)


def test_a_cluster_is_created_with_how_brokers_prove_who_they_are(
    sent: list[tuple[str, str, Any]],
) -> None:
    run("create", "west", *OPTIONS.split())
    assert sent == [
        (
            "PUT",
            "/admin/v2/clusters/west",
            {
                "serviceUrl": "http://w:80",
                "serviceUrlTls": "https://w:443",
                "brokerServiceUrl": "pulsar://w:1",
                "brokerServiceUrlTls": "pulsar+ssl://w:2",
                "brokerClientTlsEnabled": True,
                "tlsAllowInsecureConnection": True,
                "brokerClientTrustCertsFilePath": "/ca.pem",
                "brokerClientCertificateFilePath": "/c.pem",
                "brokerClientKeyFilePath": "/k.pem",
                "authenticationPlugin": "token",
                "authenticationParameters": "env:WEST",
                "listenerName": "outside",
                "peerClusterNames": ["a", "b"],
            },
        )
    ]


def test_what_an_update_does_not_name_stays(sent: list[tuple[str, str, Any]]) -> None:
    run("update", "west", "--auth-parameters", "file:///t", "--no-tls-enable")
    assert sent == [
        (
            "POST",
            "/admin/v2/clusters/west",
            {
                **KNOWN,
                "authenticationParameters": "file:///t",
                "brokerClientTlsEnabled": False,
            },
        )
    ]


def test_the_names_of_before_still_work(sent: list[tuple[str, str, Any]]) -> None:
    run("create", "west", "--service-url", "http://w:80", "--peers", "a")
    assert sent[0][2] == {"serviceUrl": "http://w:80", "peerClusterNames": ["a"]}
