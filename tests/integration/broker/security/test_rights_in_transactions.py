"""Transactions of a tenant are out of reach for another one, and what only brokers ask for clients.

Together with test_rights_of_commands.py, test_rights_over_http.py and the WebSockets'
test_access.py this is the table of all that somebody of one tenant can try with another one.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.raw_connection import RawConnection
from tests.integration.broker.security.secured import Secured, token_for
from tests.integration.broker.security.test_rights_of_commands import login

TOPIC = "persistent://acme/ns/in-transactions"
DENIED = pb.ServerError.AuthorizationError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(
        tmp_path_factory.mktemp("transactions") / "data",
        settings=["transaction_coordinator_enabled = true"],
    )
    with running:
        running.make_tenant("acme", "acme-admin")
        running.make_tenant("other", "other-admin")
        yield running
        assert running.terminate() == 0
        running.assert_log_clean()


class Client:
    """One role's connection to the coordinator."""

    def __init__(self, server: Secured, role: str) -> None:
        self.connection: RawConnection
        self.connection, answer = login(server, "token", token_for(role).encode())
        assert answer.type == BaseCommand.CONNECTED
        assert self.ask("TC_CLIENT_CONNECT_REQUEST", tc_id=0) is None
        self.last: Any = None

    def ask(self, kind: str, **fields: Any) -> int | None:
        """Send a command; the code of its refusal, None if there is none."""
        number = BaseCommand.Type.Value(kind)
        command = BaseCommand(type=BaseCommand.Type.Name(number))
        name = next(each.name for each in command.DESCRIPTOR.fields if each.number == number)
        getattr(command, name).MergeFrom(type(getattr(command, name))(request_id=9, **fields))
        self.connection.send_command(command)
        answer = self.connection.receive()
        if answer.type == BaseCommand.ERROR:
            return int(answer.error.error)
        assert answer.type == number + 1
        answered = next(each.name for each in answer.DESCRIPTOR.fields if each.number == number + 1)
        self.last = getattr(answer, answered)
        return int(self.last.error) if self.last.HasField("error") else None

    def begin(self) -> dict[str, int]:
        """The id of a new transaction, as fields."""
        assert self.ask("NEW_TXN", tc_id=0, txn_ttl_millis=60_000) is None
        fields = ("txnid_most_bits", "txnid_least_bits")
        return {field: getattr(self.last, field) for field in fields}


def test_another_tenants_transactions_and_topics_are_out_of_reach(server: Secured) -> None:
    acme, other = Client(server, "acme-admin"), Client(server, "other-admin")
    with acme.connection, other.connection:
        subscription = pb.Subscription(topic=TOPIC, subscription="s")
        txn, own = acme.begin(), other.begin()
        for held in (txn, own):  # neither theirs, nor their topics in one of one's own
            assert other.ask("ADD_PARTITION_TO_TXN", partitions=[TOPIC], **held) == DENIED
            assert (
                other.ask("ADD_SUBSCRIPTION_TO_TXN", subscription=[subscription], **held) == DENIED
            )
        for action in (pb.COMMIT, pb.ABORT):
            assert other.ask("END_TXN", txn_action=action, **txn) == DENIED
        # What coordinators tell the owners of topics is no client's to say, whatever it may do.
        for client in (acme, other):
            on_topic = client.ask("END_TXN_ON_PARTITION", topic=TOPIC, txn_action=pb.COMMIT, **txn)
            assert on_topic == DENIED
            on_subscription = client.ask(
                "END_TXN_ON_SUBSCRIPTION", subscription=subscription, txn_action=pb.COMMIT, **txn
            )
            assert on_subscription == DENIED
        assert acme.ask("ADD_PARTITION_TO_TXN", partitions=[TOPIC], **txn) is None
        assert acme.ask("END_TXN", txn_action=pb.ABORT, **txn) is None
        assert other.ask("END_TXN", txn_action=pb.ABORT, **own) is None


def test_what_is_in_a_transaction_is_told_to_those_who_may_look_it_up(server: Secured) -> None:
    """Anybody may ask over HTTP how it stands with one, as in Pulsar."""
    acme = Client(server, "acme-admin")
    with acme.connection:
        txn = acme.begin()
        assert acme.ask("ADD_PARTITION_TO_TXN", partitions=[TOPIC], **txn) is None
        path = "/admin/v3/transactions/transactionMetadata"
        path += f"/{txn['txnid_most_bits']}/{txn['txnid_least_bits']}"
        seen = {
            role: server.as_role(role, "GET", path)[1] for role in ("acme-admin", "other-admin")
        }
        assert {each["status"] for each in seen.values()} == {"OPEN"}
        assert seen["acme-admin"]["producedPartitions"] == {TOPIC: {}}
        assert seen["acme-admin"]["owner"] == "acme-admin"
        assert seen["other-admin"]["producedPartitions"] == {}
        assert seen["other-admin"]["owner"] == ""
