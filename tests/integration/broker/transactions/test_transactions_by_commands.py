"""Transactions by single commands, as other clients send them: what SEND says, and what END_TXN
is answered."""

from pathlib import Path

import pytest

from magnetar.broker.features.transactions.ids import coordinator_topic
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.http_calls import admin, ask
from tests.integration.broker.wire_client import WireClient
from tests.standalone import Standalone
from tests.waiting import until

TOPIC = "persistent://public/default/by-commands"


@pytest.mark.parametrize("action", [pb.COMMIT, pb.ABORT])
async def test_a_message_whose_command_alone_names_its_transaction_is_in_it_also_after_kill_9(
    tmp_path: Path, action: pb.TxnAction
) -> None:
    with Standalone(tmp_path / "data") as server:
        client = await WireClient.open(server.port)
        txn = await client.begin(TOPIC)
        await client.produce(TOPIC, txn_enabled=True)
        await client.publish_ok(0, b"before")
        await client.publish_ok(1, b"in it", txn=txn)
        await client.publish_ok(2, b"behind")
        server.kill()
        await client.close()
        server.start()
        client = await WireClient.open(server.port)
        await client.subscribe(TOPIC, permits=10)
        # What is open holds back what is behind it: nothing of both is sent.
        assert await client.bodies(1) == [b"before"]
        other = await WireClient.open(server.port)
        assert not (await other.end(txn, action)).HasField("error")
        await other.close()
        rest = [b"in it", b"behind"] if action == pb.COMMIT else [b"behind"]
        assert await client.bodies(len(rest)) == rest
        await client.close()


async def test_a_message_whose_metadata_name_another_transaction_is_refused(
    tmp_path: Path,
) -> None:
    with Standalone(tmp_path / "data") as server:
        client = await WireClient.open(server.port)
        txn = await client.begin(TOPIC)
        await client.produce(TOPIC, txn_enabled=True)
        client.publish(0, b"x", txn=txn, txnid_most_bits=txn[0], txnid_least_bits=txn[1] + 1)
        refused = await client.next(BaseCommand.SEND_ERROR)
        assert refused.send_error.error == pb.ServerError.MetadataError
        await client.close()


@pytest.mark.parametrize("action", [pb.COMMIT, pb.ABORT])
async def test_an_end_is_not_answered_twice_but_to_clients_that_may_not_have_heard(
    tmp_path: Path, action: pb.TxnAction
) -> None:
    with Standalone(tmp_path / "data") as server:
        client, again = await WireClient.open(server.port), await WireClient.open(server.port)
        txn = await client.begin(TOPIC)
        assert not (await client.end(txn, action)).HasField("error")
        assert (await client.end(txn, action)).error == pb.ServerError.TransactionNotFound
        assert not (await again.end(txn, action)).HasField("error")
        assert (await again.end(txn, action)).error == pb.ServerError.TransactionNotFound
        own = await WireClient.open(server.port, client_version="Magnetar-Python-0.1.0")
        for _ in range(2):
            assert not (await own.end(txn, action)).HasField("error")
        for each in (client, again, own):
            await each.close()


def test_coordinators_are_found_over_http_as_over_the_binary_protocol(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        name = "persistent/pulsar/system/transaction_coordinator_assign"
        assert admin(server, "GET", f"{name}/partitions")["partitions"] == 4
        found = admin(server, "GET", f"/lookup/v2/topic/{name}-partition-3")
        assert found["brokerUrl"] == server.url


async def test_topics_are_told_of_by_the_names_that_the_client_gave(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        client = await WireClient.open(server.port)
        await client.produce(TOPIC, txn_enabled=True)
        txn = await client.begin("by-commands")
        await client.publish_ok(0, b"in it", txn=txn)
        path = f"/admin/v3/transactions/transactionMetadata/{txn[0]}/{txn[1]}"
        answer = await ask(server, "GET", path)
        assert answer.ok()["producedPartitions"] == {"by-commands": {}}
        assert not (await client.end(txn)).HasField("error")
        await client.subscribe(TOPIC, permits=1)
        assert await client.bodies(1) == [b"in it"]
        await client.close()


async def test_a_transaction_ends_whose_topic_turns_out_to_be_partitioned(tmp_path: Path) -> None:
    """The name of the whole topic has no log: there is nothing to show or to drop."""
    whole = "persistent://public/default/parted"
    with Standalone(tmp_path / "data") as server:
        client = await WireClient.open(server.port)
        txn = await client.begin(whole)
        client.send(
            BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
            addSubscriptionToTxn=pb.CommandAddSubscriptionToTxn(
                request_id=client.request_id(),
                txnid_most_bits=txn[0],
                txnid_least_bits=txn[1],
                subscription=[pb.Subscription(topic=whole, subscription="s")],
            ),
        )
        joined = await client.next(BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
        assert not joined.addSubscriptionToTxnResponse.HasField("error")
        admin(server, "PUT", "persistent/public/default/parted/partitions", 3)
        assert not (await client.end(txn)).HasField("error")
        path = f"/admin/v3/transactions/transactionMetadata/{txn[0]}/{txn[1]}"

        async def has_ended() -> bool:
            return (await ask(server, "GET", path)).status == 404

        await until(has_ended, "the transaction to end")
        await client.close()


async def test_the_log_of_a_coordinator_takes_part_in_no_transaction(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        client = await WireClient.open(server.port)
        txn = await client.begin(TOPIC)
        client.send(
            BaseCommand.ADD_PARTITION_TO_TXN,
            addPartitionToTxn=pb.CommandAddPartitionToTxn(
                request_id=client.request_id(),
                txnid_most_bits=txn[0],
                txnid_least_bits=txn[1],
                partitions=[str(coordinator_topic(0))],
            ),
        )
        refused = await client.next(BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)
        assert refused.addPartitionToTxnResponse.error == pb.ServerError.NotAllowedError
        await client.close()
