"""`magnetar migrate` with TLS and credentials of its own for each side."""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.integration.broker.security.secured import Secured, token_for
from tests.integration.deploy.commands import Ended, magnetar
from tests.integration.pulsar_client.support import connect
from tests.processes import HOST
from tests.standalone import Standalone


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Secured]]:
    folder = tmp_path_factory.mktemp("migration")
    target = Secured(folder / "secured")
    with Standalone(folder / "open") as source, target:
        client = connect(source.url)
        client.subscribe("orders", "billing").close()
        producer = client.create_producer("orders")
        for n in range(5):
            producer.send(b"%d" % n)
        client.close()
        yield source, target
        for each in (source, target):
            each.assert_log_clean()


def move(source: Standalone, target: Secured, state: Path, token: str) -> Ended:
    return magnetar(
        *("migrate", "--state", str(state), "--cut-over", "--namespaces", "public/default"),
        *("--from", source.url, "--from-admin", source.http_url),
        *("--to", target.tls_url, "--to-admin", f"https://{HOST}:{target.https_port}"),
        environment={
            "MAGNETAR_TO_TOKEN": token,
            "MAGNETAR_TO_TLS_TRUST": str(target.authority.path),
        },
    )


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        ("nonsense", 8, "the target pulsar+ssl://"),
        (token_for("nobody"), 15, "answered 403"),
    ],
)
def test_refused_credentials_end_with_one_line(
    clusters: tuple[Standalone, Secured], tmp_path: Path, token: str, status: int, words: str
) -> None:
    ended = move(*clusters, tmp_path / "state", token)
    assert ended.status == status, ended
    (line,) = ended.messages()
    assert words in line


def test_each_side_is_reached_with_its_own_credentials(
    clusters: tuple[Standalone, Secured], tmp_path: Path
) -> None:
    source, target = clusters
    ended = move(source, target, tmp_path / "state", token_for("root"))
    assert ended.status == 0, ended
    client = pulsar.Client(target.url, authentication=pulsar.AuthenticationToken(token_for("root")))
    consumer = client.subscribe("orders", "billing")
    assert [consumer.receive(timeout_millis=30_000).data() for _ in range(5)] == [
        b"%d" % n for n in range(5)
    ]
    client.close()
