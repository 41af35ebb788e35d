"""A client of the binary protocol for asyncio tests: commands out, commands in, nothing more."""

import asyncio
from typing import Any

from magnetar.sdk.wire import (
    FRAME_BYTES_MAX,
    BaseCommand,
    FrameDecoder,
    MessageMetadata,
    encode_command,
    encode_payload,
    encode_payload_command,
)
from magnetar.sdk.wire import pulsar_pb2 as pb

WAIT_S = 20.0


class WireClient:
    """One connection. `await WireClient.open(port)`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._received: list[tuple[BaseCommand, bytes]] = []
        self._request_ids = 0

    @classmethod
    async def open(
        cls,
        port: int,
        *,
        version: int = 20,
        host: str = "127.0.0.1",
        client_version: str = "test",
    ) -> "WireClient":
        client = cls(*await asyncio.open_connection(host, port))
        client.send(
            BaseCommand.CONNECT,
            connect=pb.CommandConnect(client_version=client_version, protocol_version=version),
        )
        await client.next(BaseCommand.CONNECTED)
        return client

    def send(self, kind: Any, **fields: Any) -> None:
        self._writer.write(encode_command(BaseCommand(type=kind, **fields)))

    def request_id(self) -> int:
        self._request_ids += 1
        return self._request_ids

    async def produce(self, topic: str, producer_id: int = 0, **fields: Any) -> BaseCommand:
        self.send(
            BaseCommand.PRODUCER,
            producer=pb.CommandProducer(
                topic=topic, producer_id=producer_id, request_id=self.request_id(), **fields
            ),
        )
        return await self.next()

    def publish(
        self,
        sequence_id: int,
        body: bytes,
        producer_id: int = 0,
        *,
        txn: tuple[int, int] | None = None,
        **fields: Any,
    ) -> None:
        """SEND; a transaction is named in the command alone, as clients in Go do it."""
        metadata = MessageMetadata(
            **{"producer_name": "p", "sequence_id": sequence_id, "publish_time": 1, **fields}
        )
        send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
        if txn is not None:
            send.txnid_most_bits, send.txnid_least_bits = txn
        self._writer.write(
            encode_payload_command(
                BaseCommand(type=BaseCommand.SEND, send=send),
                encode_payload(metadata.SerializeToString(), body),
            )
        )

    async def publish_ok(
        self, sequence_id: int, body: bytes = b"body", producer_id: int = 0, **fields: Any
    ) -> pb.CommandSendReceipt:
        """Publish one message, wait for its receipt, and return it."""
        self.publish(sequence_id, body, producer_id, **fields)
        return (await self.next(BaseCommand.SEND_RECEIPT)).send_receipt

    async def begin(self, topic: str) -> tuple[int, int]:
        """A transaction that takes messages of the topic: its id."""
        self.send(
            BaseCommand.TC_CLIENT_CONNECT_REQUEST,
            tcClientConnectRequest=pb.CommandTcClientConnectRequest(
                request_id=self.request_id(), tc_id=0
            ),
        )
        connected = await self.next(BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
        assert not connected.tcClientConnectResponse.HasField("error"), connected
        self.send(
            BaseCommand.NEW_TXN,
            newTxn=pb.CommandNewTxn(request_id=self.request_id(), txn_ttl_millis=600_000, tc_id=0),
        )
        begun = (await self.next(BaseCommand.NEW_TXN_RESPONSE)).newTxnResponse
        txn = begun.txnid_most_bits, begun.txnid_least_bits
        self.send(
            BaseCommand.ADD_PARTITION_TO_TXN,
            addPartitionToTxn=pb.CommandAddPartitionToTxn(
                request_id=self.request_id(),
                txnid_most_bits=txn[0],
                txnid_least_bits=txn[1],
                partitions=[topic],
            ),
        )
        await self.next(BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)
        return txn

    async def end(
        self, txn: tuple[int, int], action: pb.TxnAction = pb.COMMIT
    ) -> pb.CommandEndTxnResponse:
        self.send(
            BaseCommand.END_TXN,
            endTxn=pb.CommandEndTxn(
                request_id=self.request_id(),
                txnid_most_bits=txn[0],
                txnid_least_bits=txn[1],
                txn_action=action,
            ),
        )
        return (await self.next(BaseCommand.END_TXN_RESPONSE)).endTxnResponse

    async def subscribe(self, topic: str, permits: int = 0, **fields: Any) -> BaseCommand:
        fields = {
            "consumer_id": 0,
            "subscription": "s",
            "subType": pb.CommandSubscribe.Exclusive,
            "initialPosition": pb.CommandSubscribe.Earliest,
            **fields,
        }
        self.send(
            BaseCommand.SUBSCRIBE,
            subscribe=pb.CommandSubscribe(topic=topic, request_id=self.request_id(), **fields),
        )
        answer = await self.next()
        if permits and answer.type == BaseCommand.SUCCESS:
            self.flow(permits, fields["consumer_id"])
        return answer

    async def leave(self, consumer_id: int) -> None:
        """CLOSE_CONSUMER, and its answer."""
        self.send(
            BaseCommand.CLOSE_CONSUMER,
            close_consumer=pb.CommandCloseConsumer(
                consumer_id=consumer_id, request_id=self.request_id()
            ),
        )
        await self.next(BaseCommand.SUCCESS)

    def flow(self, permits: int, consumer_id: int = 0) -> None:
        self.send(
            BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
        )

    def ack(self, *ids: pb.MessageIdData, consumer_id: int = 0) -> None:
        self.send(
            BaseCommand.ACK,
            ack=pb.CommandAck(
                consumer_id=consumer_id, ack_type=pb.CommandAck.Individual, message_id=ids
            ),
        )

    async def bodies(self, count: int) -> list[bytes]:
        """Bodies of the next messages."""
        found = []
        for _ in range(count):
            _, payload = await self.next_frame(BaseCommand.MESSAGE)
            size = int.from_bytes(payload[6:10], "big")
            found.append(payload[10 + size :])
        return found

    async def next(self, kind: int | None = None) -> BaseCommand:
        return (await self.next_frame(kind))[0]

    async def next_frame(self, kind: int | None = None) -> tuple[BaseCommand, bytes]:
        async with asyncio.timeout(WAIT_S):
            while not self._received:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionResetError("the broker closed the connection")
                self._received += self._decoder.feed(data)
        command, payload = self._received.pop(0)
        assert kind is None or command.type == kind, command
        return command, payload

    async def closed(self) -> None:
        """Wait until the broker closes the connection; whatever comes before is dropped."""
        async with asyncio.timeout(WAIT_S):
            while await self._reader.read(1 << 16):
                pass

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
