"""The official client with each way to prove who one is."""

from typing import Any

import pulsar
import pytest

from tests.integration.broker.security.secured import PASSWORD, Secured, token_for

TOPIC = "persistent://acme/ns/clients"


def exchange(client: Any, topic: str) -> None:
    """A message there and back."""
    try:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(topic).send(b"hello")
        message = consumer.receive(timeout_millis=20_000)
        assert message.data() == b"hello"
        consumer.acknowledge(message)
        consumer.close()
    finally:
        client.close()


def test_a_token_over_a_plain_connection(server: Secured) -> None:
    exchange(
        pulsar.Client(
            server.url, authentication=pulsar.AuthenticationToken(token_for("acme-admin"))
        ),
        TOPIC + "-token",
    )


def test_a_token_over_tls(server: Secured) -> None:
    exchange(
        pulsar.Client(
            server.tls_url,
            authentication=pulsar.AuthenticationToken(token_for("acme-admin")),
            tls_trust_certs_file_path=str(server.authority.path),
            tls_validate_hostname=True,
        ),
        TOPIC + "-tls",
    )


def test_mutual_tls_names_the_role_in_the_certificate(server: Secured) -> None:
    certificate, key = server.authority.issue("acme-admin")
    exchange(
        pulsar.Client(
            server.tls_url,
            authentication=pulsar.AuthenticationTLS(str(certificate), str(key)),
            tls_trust_certs_file_path=str(server.authority.path),
        ),
        TOPIC + "-mutual",
    )


def test_a_user_and_password(server: Secured) -> None:
    exchange(
        pulsar.Client(server.url, authentication=pulsar.AuthenticationBasic("basil", PASSWORD)),
        TOPIC + "-basic",
    )


def test_a_wrong_token_connects_nobody(server: Secured) -> None:
    client = pulsar.Client(
        server.url,
        authentication=pulsar.AuthenticationToken("wrong"),
        operation_timeout_seconds=1,
    )
    # The client takes an ERROR before CONNECTED for a lost connection, and tries until its time
    # is over.
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(TOPIC)
    client.close()


@pytest.mark.parametrize("what", ["produce", "subscribe", "read", "look up"])
def test_a_role_without_rights_hears_so(server: Secured, what: str) -> None:
    client = pulsar.Client(
        server.url, authentication=pulsar.AuthenticationToken(token_for("other-admin"))
    )
    calls = {
        "produce": lambda: client.create_producer(TOPIC),
        "subscribe": lambda: client.subscribe(TOPIC, "s"),
        "read": lambda: client.create_reader(TOPIC, pulsar.MessageId.earliest),
        "look up": lambda: client.get_topic_partitions(TOPIC),
    }
    try:
        with pytest.raises(pulsar.AuthorizationError):
            calls[what]()
    finally:
        client.close()
