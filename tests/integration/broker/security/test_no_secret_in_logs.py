"""Every credential there is goes through a server that logs everything, and none is in its log."""

import base64
import time
from pathlib import Path

import pulsar

from magnetar.sdk.wire import BaseCommand
from tests.integration.broker.security.secured import (
    PASSWORD,
    SECRET,
    Secured,
    bearer,
    token_for,
)
from tests.integration.broker.security.test_rights_of_commands import login
from tests.integration.broker.websocket.sockets import Topic, status_of
from tests.processes import HOST

SHARED = "the shared secret of bookies, which is long enough"
WRONG_PASSWORD = "open hatch, if you please"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_no_credential_is_in_the_log_of_a_server_that_logs_everything(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.write_text(SHARED)
    own = base64.b64encode(token_for("root", own=True).encode()).decode()
    link = f"shared_secret_file = '{shared}'"
    server = Secured(
        tmp_path / "data",
        settings=[
            f"broker_client_token = 'data:;base64,{own}'",
            *("[bookie]", link, "[ledger]", link),
        ],
        arguments=["--log-level", "debug"],
    )
    tokens = {
        "good": token_for("acme-admin"),
        "expired": token_for("acme-admin", exp=int(time.time()) - 10),
        "forged": token_for("acme-admin")[:-4] + "AAAA",
        "of a stranger": token_for("stranger"),
    }
    with server:
        server.make_tenant("acme", "acme-admin", "basil")
        for token in tokens.values():
            login(server, "token", token.encode())[0].close()
            server.ask("GET", "/admin/v2/namespaces/acme", headers=bearer(token))
            server.ask("GET", f"/admin/v2/namespaces/acme?token={token}")
            topic = Topic(server.http_port, "acme/ns/t")
            if token != tokens["good"]:
                assert await status_of(topic.producer(f"token={token}")) in (401, 403)
        async with topic.producer(f"token={tokens['good']}") as producer:
            await producer.publish_ok("hello")
        for password in (PASSWORD, WRONG_PASSWORD):
            login(server, "basic", f"basil:{password}".encode())[0].close()
            server.ask("GET", "/admin/v2/namespaces/acme", headers=basic("basil", password))
        client = pulsar.Client(
            f"pulsar://{HOST}:{server.port}",
            authentication=pulsar.AuthenticationToken(tokens["good"]),
        )
        client.create_producer("persistent://acme/ns/t").send(b"hello")
        client.close()
        server.ask("GET", "/metrics", headers=bearer(token_for("root")))
        connection, answer = login(server, "token", b"no token at all: hush hush")
        assert answer.type == BaseCommand.ERROR
        connection.close()
        assert server.terminate() == 0
        server.assert_log_clean()
    text = server.log_text()
    assert '"level": "debug"' in text or "debug" in text
    key = server.key.read_text().splitlines()[1]
    secrets = [
        *(PASSWORD, WRONG_PASSWORD, SHARED, SECRET.decode(), "hush hush", "PRIVATE KEY", key, own),
        *("eyJ", *tokens.values()),  # every JSON Web Token begins so
        *(basic("basil", each)["Authorization"] for each in (PASSWORD, WRONG_PASSWORD)),
        *(base64.b64encode(each.encode()).decode() for each in (PASSWORD, WRONG_PASSWORD, SHARED)),
    ]
    found = [secret for secret in secrets if secret in text]
    assert found == [], [text[text.find(each) - 300 :][:500] for each in found]
