"""A socket to a broker on which a test says exactly what it wants, right or wrong."""

import socket
from types import TracebackType
from typing import Any

from magnetar.sdk.wire import (
    PONG_FRAME,
    BaseCommand,
    FrameDecoder,
    MessageMetadata,
    encode_command,
    encode_payload,
    encode_payload_command,
    pulsar_pb2,
)
from tests.processes import HOST

ANSWER_TIMEOUT_S = 45.0
PROTOCOL_VERSION = 20


class RawConnection:
    """Blocking, one command at a time; the socket's timeout bounds every wait."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), ANSWER_TIMEOUT_S)
        self._decoder = FrameDecoder()
        self._commands: list[tuple[BaseCommand, bytes]] = []

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_all_it_takes(self, data: bytes) -> None:
        """Send; a peer that closes the connection meanwhile is fine."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def finish_sending(self) -> None:
        """Close this direction only, in the middle of whatever was sent."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The peer has closed the connection already.

    def send_command(self, command: BaseCommand) -> None:
        self.send(encode_command(command))

    def receive(self) -> BaseCommand:
        """The next command that is no PING; those are answered.

        Raises:
            EOFError: the broker closed the connection.
            TimeoutError: it said nothing for too long.
        """
        while True:
            while not self._commands:
                try:
                    data = self._socket.recv(1 << 16)
                except ConnectionResetError as error:
                    raise EOFError from error
                if not data:
                    raise EOFError
                self._commands = self._decoder.feed(data)
            command, _ = self._commands.pop(0)
            if command.type != BaseCommand.PING:
                return command
            self.send(PONG_FRAME)

    def receive_until_closed(self) -> list[BaseCommand]:
        """Everything up to the end of the connection, which the broker must bring about."""
        commands = []
        while True:
            try:
                commands.append(self.receive())
            except EOFError:
                return commands

    def connect(self) -> None:
        """The handshake."""
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = "raw"
        command.connect.protocol_version = PROTOCOL_VERSION
        self.send_command(command)
        assert self.receive().type == BaseCommand.CONNECTED

    def produce(self, topic: str, *, producer_id: int = 1, **fields: Any) -> BaseCommand:
        """PRODUCER with further fields, and its answer."""
        request = pulsar_pb2.CommandProducer(
            topic=topic, producer_id=producer_id, request_id=producer_id, **fields
        )
        self.send_command(BaseCommand(type=BaseCommand.PRODUCER, producer=request))
        return self.receive()

    def close_producer(self, producer_id: int = 1) -> None:
        request = pulsar_pb2.CommandCloseProducer(producer_id=producer_id, request_id=producer_id)
        self.send_command(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=request))
        assert self.receive().type == BaseCommand.SUCCESS

    def open_producer(self, topic: str, *, producer_id: int = 1) -> str:
        """Returns the name that the broker gave."""
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = 7
        self.send_command(command)
        answer = self.receive()
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        return answer.producer_success.producer_name

    def ping(self) -> None:
        """Whether the connection is alive: everything sent before has been looked at."""
        command = BaseCommand(type=BaseCommand.PING)
        command.ping.SetInParent()
        self.send_command(command)
        assert self.receive().type == BaseCommand.PONG


def send_frame(body: bytes, *, producer_id: int = 1, sequence_id: int = 0) -> bytes:
    """A correct SEND frame of one message."""
    metadata = MessageMetadata(
        producer_name="raw", sequence_id=sequence_id, publish_time=1_357_034_400_000
    )
    return encode_payload_command(
        send_command(producer_id=producer_id, sequence_id=sequence_id),
        encode_payload(metadata.SerializeToString(), body),
    )


def send_command(*, producer_id: int = 1, sequence_id: int = 0) -> BaseCommand:
    return BaseCommand(
        type=BaseCommand.SEND,
        send=pulsar_pb2.CommandSend(producer_id=producer_id, sequence_id=sequence_id),
    )
