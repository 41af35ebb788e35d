"""Watches, on a bare connection, a broker that has lost a topic without having noticed.

A producer and a consumer were there before; messages wait in the broker's memory for the consumer
to want them. Then, when the session has run out, come publishes and that wish: before a broker that
was paused wakes up, to one that is cut off at once. Not one receipt and not one message may come
back: an error, the word that producer or consumer is closed, or the end of the connection.
"""

import asyncio
import time
from dataclasses import dataclass

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.chaos.cluster.checker import Message, Position
from tests.chaos.cluster.records import Recorder, payload_of
from tests.integration.broker.wire_client import WireClient

PUBLISHES = 20
PERMITS = 1000
_PRODUCER_ID = 0
_CONSUMER_ID = 1
_LATEST = (1 << 63) - 1
_LISTEN_S = 1.5
_OPEN_TIMEOUT_S = 15.0
_OPEN_RETRY_S = 0.1
_NOTHING_NEW = {BaseCommand.SEND_RECEIPT: "a receipt", BaseCommand.MESSAGE: "a message"}


class NotOpenedError(Exception):
    """The broker let nobody produce, though it is the owner."""


@dataclass(slots=True)
class Testimony:
    """What came from the old owner."""

    forbidden: dict[str, int]
    """Receipts and messages."""
    others: dict[str, int]
    """Commands of other kinds."""
    has_ended: bool
    """Whether it closed the connection."""


class Witness:
    """A producer and a consumer of one topic at one broker."""

    def __init__(self, client: WireClient, topic: str, name: str, recorder: Recorder) -> None:
        self._client = client
        self._topic = topic
        self._name = name
        self._recorder = recorder
        self._number = 0

    @classmethod
    async def open(
        cls, address: tuple[str, int], topic: str, name: str, recorder: Recorder
    ) -> "Witness":
        """Raises NotOpenedError: right after it became the owner a broker may need a while."""
        until_s = time.monotonic() + _OPEN_TIMEOUT_S
        while True:
            try:
                return await cls._open(address, topic, name, recorder)
            except (OSError, TimeoutError, NotOpenedError, AssertionError) as error:
                if time.monotonic() > until_s:
                    raise NotOpenedError(f"{topic} at {address}: {error}") from error
                await asyncio.sleep(_OPEN_RETRY_S)

    @classmethod
    async def _open(
        cls, address: tuple[str, int], topic: str, name: str, recorder: Recorder
    ) -> "Witness":
        client = await WireClient.open(address[1], host=address[0])
        answer = await client.produce(topic, _PRODUCER_ID, producer_name=name)
        if answer.type == BaseCommand.PRODUCER_SUCCESS:
            answer = await client.subscribe(
                topic,
                consumer_id=_CONSUMER_ID,
                subscription=name,
                durable=False,
                # What comes from now on stays in the broker's memory, ready to be sent.
                start_message_id=pb.MessageIdData(ledgerId=_LATEST, entryId=_LATEST),
            )
            if answer.type == BaseCommand.SUCCESS:
                return cls(client, topic, name, recorder)
        await client.close()
        raise NotOpenedError(str(answer).replace("\n", " "))

    def want(self) -> None:
        """Publish some messages and ask for others."""
        self._send()
        self._client.flow(PERMITS, _CONSUMER_ID)

    async def publish(self) -> None:
        """Publish some messages and wait for all receipts."""
        self._send()
        for _ in range(PUBLISHES):
            command = await self._client.next()
            assert command.type == BaseCommand.SEND_RECEIPT, command
            self._note_receipt(command.send_receipt)

    def _send(self) -> None:
        for _ in range(PUBLISHES):
            message = Message(self._name, self._number)
            self._recorder.sending(self._topic, message)
            self._client.publish(self._number, payload_of(message), _PRODUCER_ID)
            self._number += 1

    async def listen(self) -> Testimony:
        """All that comes until the connection ends, or nothing comes for a while."""
        testimony = Testimony({}, {}, has_ended=False)
        try:
            while True:
                async with asyncio.timeout(_LISTEN_S):
                    command = await self._client.next()
                if command.type == BaseCommand.SEND_RECEIPT:
                    self._note_receipt(command.send_receipt)
                what = _NOTHING_NEW.get(command.type)
                if what is not None:
                    testimony.forbidden[what] = testimony.forbidden.get(what, 0) + 1
                else:
                    kind = BaseCommand.Type.Name(command.type)
                    testimony.others[kind] = testimony.others.get(kind, 0) + 1
        except TimeoutError:
            pass
        except OSError:
            testimony.has_ended = True
        return testimony

    async def close(self) -> None:
        try:
            await self._client.close()
        except OSError:
            pass  # The broker was faster.

    def _note_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        at = receipt.message_id
        self._recorder.acknowledged(
            self._topic,
            Message(self._name, receipt.sequence_id),
            Position(at.ledgerId, at.entryId, -1),
        )
