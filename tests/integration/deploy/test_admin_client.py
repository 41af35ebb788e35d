"""How the commands of `magnetar admin` ask a broker that misbehaves."""

from pathlib import Path

import pytest

from magnetar.deploy import admin_client
from magnetar.deploy.admin_client import AdminClient
from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import BrokerUnreachableError
from tests.certificates import Authority
from tests.http_answers import answering
from tests.processes import HOST, free_ports


@pytest.mark.parametrize("limit", [99, 100])
def test_an_answer_is_read_up_to_a_bound(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "ANSWER_BYTES_MAX", limit)
    (port,) = free_ports(1)
    client = AdminClient(f"http://{HOST}:{port}", credentials=ClientCredentials())
    with answering(port, body=b"x" * 100):
        if limit == 100:
            assert client.get("/x") == "x" * 100
        else:
            with pytest.raises(BrokerUnreachableError, match="GET /x with more than 99 bytes"):
                client.get("/x")


def test_a_request_by_tls_is_not_sent_on_without_it(tmp_path: Path) -> None:
    """A redirect to plain HTTP would show credentials to everybody on the way."""
    authority = Authority(tmp_path)
    secret, plain = free_ports(2)
    trusting = ClientCredentials(tls_trust=str(authority.path))
    client = AdminClient(f"https://{HOST}:{secret}", credentials=trusting)
    to_plain = f"http://{HOST}:{plain}/x"
    with (
        answering(plain) as shown,
        answering(secret, location=to_plain, certificate=authority.issue("broker")) as asked,
    ):
        with pytest.raises(BrokerUnreachableError, match="is not TLS; the request was not sent"):
            client.get("/x")
        assert (asked, shown) == (["/x"], [])


def test_redirects_in_circles_end_at_their_bound() -> None:
    """Each answer is looked at before the request is sent on."""
    (port,) = free_ports(1)
    client = AdminClient(f"http://{HOST}:{port}", credentials=ClientCredentials())
    with (
        answering(port, location=f"http://{HOST}:{port}/x") as asked,
        pytest.raises(BrokerUnreachableError, match="redirect in circles, 10 times"),
    ):
        client.get("/x")
    assert len(asked) == 1 + admin_client.REDIRECTS_MAX
