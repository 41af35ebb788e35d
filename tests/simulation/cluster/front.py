"""The network between clients and brokers: frames of the Pulsar protocol on the simulated pipes.

Everything about delays, holds, losses and partitions is `network.py`'s; here is only what a frame
says, for rules that name a command and for the history.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, cast

from magnetar.sdk.wire.pulsar_pb2 import BaseCommand
from tests.simulation.cluster.events import Detached, Place, Spoke
from tests.simulation.connection import Connection, SimTransport, _Pipe
from tests.simulation.frame_rules import Facts, Hold, Loss, Message
from tests.simulation.loop import SimProcess
from tests.simulation.network import Fabric

_SIGN = 1 << 63


class FrontMatch(NamedTuple):
    """Frames that a rule is about; None matches everything."""

    source: str | None
    target: str | None
    command: str | None
    topic: str | None

    def fits(self, facts: Facts) -> bool:
        return (
            isinstance(facts, Spoke)
            and (self.source is None or self.source == facts.source)
            and (self.target is None or self.target == facts.target)
            and (self.command is None or self.command == facts.command)
            and (self.topic is None or facts.topic.endswith(self.topic))
        )


class Front(Fabric):
    """The network of brokers and their clients."""

    def hold_command(
        self,
        command: str | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
        topic: str | None = None,
    ) -> Hold:
        """Hold every matching frame from now on; see `Hold`."""
        hold = Hold(self.holds, FrontMatch(source, target, command, topic))
        self.holds.append(hold)
        return hold

    def drop_command(
        self,
        command: str | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
        topic: str | None = None,
        count: int = 1,
    ) -> Loss:
        """Lose the next `count` matching frames, each with its connection."""
        loss = Loss(FrontMatch(source, target, command, topic), count)
        self.losses.append(loss)
        return loss

    def isolate(self, name: str) -> None:
        """Nothing moves between `name` and anybody, those that come later included."""
        self.isolated[name] = None

    @property
    def isolated(self) -> dict[str, None]:
        return self._blocked_names.names

    def join(self, name: str) -> None:
        """The end of `isolate`."""
        self.isolated.pop(name, None)
        self.pump_all()

    def heal_all(self) -> None:
        self.isolated.clear()
        super().heal_all()

    def pump_all(self) -> None:
        for connection in self.connections:
            connection.to_server.pump()
            connection.to_client.pump()

    @property
    def _blocked_names(self) -> "BlockedLinks":
        return cast(BlockedLinks, self.blocked)

    def make_links(self) -> dict[tuple[str, str], None]:
        return BlockedLinks()

    def make_end(self, process: SimProcess, protocol: asyncio.Protocol) -> SimTransport:
        return _FrontEnd(process, protocol)

    def join_ends(self, number: int, client: SimTransport, server: SimTransport) -> Connection:
        return FrontConnection(self, number, client, server)


class BlockedLinks(dict[tuple[str, str], None]):
    """Links on which nothing moves: those that are named, and all of some processes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __contains__(self, link: object) -> bool:
        if super().__contains__(link):
            return True
        return bool(self.names) and any(name in self.names for name in cast(tuple[str, str], link))


class _FrontEnd(SimTransport):
    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self.process.name, 0) if name == "peername" else default


class FrontConnection(Connection):
    """A connection of a client with a broker. Knows which id stands for which topic."""

    def __init__(
        self, fabric: Fabric, number: int, client: SimTransport, server: SimTransport
    ) -> None:
        super().__init__(fabric, number, client, server)
        self._producers: dict[int, str] = {}
        self._consumers: dict[int, tuple[str, str]] = {}
        self._subscribing: dict[int, tuple[int, str]] = {}
        """Consumer id and type by the id of the request."""

    def record_delivery(self, actor: str, message: Message) -> None:
        """The history has what brokers said and what applications heard; that is enough."""

    def on_end(self, end: SimTransport) -> None:
        if end is self.server:
            broker = self.server.process.name
            self.fabric.record(broker, Detached(self.number, broker))

    def _look(self, pipe: _Pipe, raw: bytes) -> tuple[Sequence[Facts], int]:
        size = int.from_bytes(raw[4:8], "big")
        command = BaseCommand.FromString(raw[8 : 8 + size])
        source, target = pipe.link
        name = BaseCommand.Type.Name(command.type)
        topic, subscription, handle, note = "", "", -1, ""
        places: tuple[Place, ...] = ()
        match command.type:
            case BaseCommand.PRODUCER:
                topic, handle = command.producer.topic, command.producer.producer_id
                self._producers[handle] = topic
            case BaseCommand.SUBSCRIBE:
                subscribe = command.subscribe
                topic, subscription = subscribe.topic, subscribe.subscription
                handle, note = subscribe.consumer_id, _type_name(subscribe.subType)
                self._consumers[handle] = topic, subscription
                self._subscribing[subscribe.request_id] = handle, note
            case BaseCommand.SUCCESS:
                found = self._subscribing.pop(command.success.request_id, None)
                if found is not None:
                    name, (handle, note) = "SUBSCRIBED", found
            case BaseCommand.SEND:
                handle, note = command.send.producer_id, f"s{command.send.sequence_id}"
            case BaseCommand.SEND_RECEIPT:
                receipt = command.send_receipt
                handle, note = receipt.producer_id, f"s{receipt.sequence_id}"
                places = (_place(receipt.message_id.ledgerId, receipt.message_id.entryId),)
            case BaseCommand.SEND_ERROR:
                handle, note = command.send_error.producer_id, command.send_error.message[:60]
            case BaseCommand.MESSAGE:
                message = command.message
                handle = message.consumer_id
                places = (_place(message.message_id.ledgerId, message.message_id.entryId),)
            case BaseCommand.ACK:
                handle = command.ack.consumer_id
                places = tuple(_place(e.ledgerId, e.entryId) for e in command.ack.message_id)
            case BaseCommand.FLOW:
                handle = command.flow.consumer_id
            case BaseCommand.ACK_RESPONSE:
                handle = command.ackResponse.consumer_id
                note = command.ackResponse.message or "OK"
            case BaseCommand.CLOSE_PRODUCER:
                handle = command.close_producer.producer_id
                note = command.close_producer.assignedBrokerServiceUrl
            case BaseCommand.CLOSE_CONSUMER:
                handle = command.close_consumer.consumer_id
                note = command.close_consumer.assignedBrokerServiceUrl
            case BaseCommand.ACTIVE_CONSUMER_CHANGE:
                handle = command.active_consumer_change.consumer_id
                note = "active" if command.active_consumer_change.is_active else "standby"
            case BaseCommand.LOOKUP:
                topic = command.lookupTopic.topic
                note = "authoritative" if command.lookupTopic.authoritative else ""
            case BaseCommand.LOOKUP_RESPONSE:
                answer = command.lookupTopicResponse
                note = f"{answer.LookupType.Name(answer.response)} {answer.brokerServiceUrl}"
                note += answer.message[:80]
            case BaseCommand.ERROR:
                note = command.error.message[:80]
            case _:
                pass
        if not topic and command.type in _OF_PRODUCERS:
            topic = self._producers.get(handle, "")
        elif not topic and (command.type in _OF_CONSUMERS or name == "SUBSCRIBED"):
            topic, subscription = self._consumers.get(handle, ("", ""))
        spoke = Spoke(
            self.number, source, target, name, topic, subscription, handle, places, note.strip()
        )
        return (spoke,), -1


_OF_PRODUCERS = (
    BaseCommand.SEND,
    BaseCommand.SEND_RECEIPT,
    BaseCommand.SEND_ERROR,
    BaseCommand.CLOSE_PRODUCER,
)
_OF_CONSUMERS = (
    BaseCommand.MESSAGE,
    BaseCommand.ACK,
    BaseCommand.ACK_RESPONSE,
    BaseCommand.FLOW,
    BaseCommand.CLOSE_CONSUMER,
    BaseCommand.ACTIVE_CONSUMER_CHANGE,
    BaseCommand.UNSUBSCRIBE,
)


def _place(ledger_id: int, entry_id: int) -> Place:
    return _signed(ledger_id), _signed(entry_id)


def _signed(number: int) -> int:
    return number - 2 * _SIGN if number >= _SIGN else number


_TYPES = {0: "Exclusive", 1: "Shared", 2: "Failover", 3: "Key_Shared"}


def _type_name(number: int) -> str:
    return _TYPES[number]
