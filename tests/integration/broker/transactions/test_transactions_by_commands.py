"""Transactions by single commands, as other clients send them: what SEND says, and what END_TXN
is answered."""

from pathlib import Path

import pytest

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.wire_client import WireClient
from tests.standalone import Standalone

TOPIC = "persistent://public/default/by-commands"


async def publish(
    client: WireClient, sequence_id: int, body: bytes, txn: tuple[int, int] | None
) -> None:
    client.publish(sequence_id, body, txn=txn)
    await client.next(BaseCommand.SEND_RECEIPT)


@pytest.mark.parametrize("action", [pb.COMMIT, pb.ABORT])
async def test_a_message_whose_command_alone_names_its_transaction_is_in_it_also_after_kill_9(
    tmp_path: Path, action: pb.TxnAction
) -> None:
    with Standalone(tmp_path / "data") as server:
        client = await WireClient.open(server.port)
        txn = await client.begin(TOPIC)
        await client.produce(TOPIC, txn_enabled=True)
        await publish(client, 0, b"before", None)
        await publish(client, 1, b"in it", txn)
        await publish(client, 2, b"behind", None)
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
