"""The disk fills up under load: clear errors, nothing acknowledged is lost, service comes back."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
import pytest

from magnetar.sdk.wire import BaseCommand, pulsar_pb2
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.integration.pulsar_client.support import connect, publish
from tests.small_disk import SmallDisk
from tests.standalone import Standalone

_TOPIC = "persistent://public/default/full"
_DISK_BYTES = 128 << 20
_BODY_BYTES = 64 << 10
_WINDOW = 32
_BODY = os.urandom(_BODY_BYTES - 8)


@dataclass(slots=True)
class _Answers:
    """What became of the messages, by their sequence ids."""

    stored: list[int] = field(default_factory=list)
    refused: list[pulsar_pb2.CommandSendError] = field(default_factory=list)


def _body(sequence_id: int) -> bytes:
    return sequence_id.to_bytes(8, "big") + _BODY


def _publish_until_refused(connection: RawConnection, answers: _Answers, *, first: int) -> None:
    """Publish with a window; stops at the first refusal, which must come before the disk's size."""
    next_id = first
    limit = first + _DISK_BYTES // _BODY_BYTES
    in_flight = 0
    while in_flight or not answers.refused:
        while in_flight < _WINDOW and not answers.refused:
            assert next_id < limit, "more was acknowledged than the disk can hold"
            connection.send(send_frame(_body(next_id), sequence_id=next_id))
            next_id += 1
            in_flight += 1
        try:
            answer = connection.receive()
        except EOFError:
            return  # Closed after an error: allowed, the answers so far count.
        if answer.type == BaseCommand.SEND_RECEIPT:
            answers.stored.append(answer.send_receipt.sequence_id)
            in_flight -= 1
        elif answer.type == BaseCommand.SEND_ERROR:
            answers.refused.append(answer.send_error)
            in_flight -= 1
        else:
            assert answer.type == BaseCommand.CLOSE_PRODUCER, answer
            return


def _read_sequence_ids(server: Standalone) -> list[int]:
    client = connect(server.url)
    reader = client.create_reader(_TOPIC, pulsar.MessageId.earliest, receiver_queue_size=50)
    found = []
    while reader.has_message_available():
        data = reader.read_next(timeout_millis=30_000).data()
        if len(data) == _BODY_BYTES:
            assert data[8:] == _BODY
            found.append(int.from_bytes(data[:8], "big"))
    client.close()
    return found


def _assert_kept(server: Standalone, answers: _Answers) -> None:
    """Everything acknowledged is there, once, in order; what was refused may be there or not."""
    found = _read_sequence_ids(server)
    assert found == sorted(set(found))
    missing = set(answers.stored) - set(found)
    assert not missing, f"{len(missing)} acknowledged messages are lost, first {min(missing)}"


@pytest.mark.parametrize("which", ["everything", "the journal"])
def test_a_full_disk_refuses_publishes_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setenv("MAGNETAR_BOOKIE_DISK_CHECK_INTERVAL_S", "0.2")
    data = tmp_path / "data"
    mounted_at = data if which == "everything" else data / "bookie-1" / "journal"
    with (
        SmallDisk(mounted_at, size_bytes=_DISK_BYTES) as disk,
        Standalone(data, command_prefix=disk.command_prefix) as server,
    ):
        answers = _Answers()
        with RawConnection(server.port) as connection:
            connection.connect()
            connection.open_producer(_TOPIC)
            for number in range(10):
                connection.send(send_frame(_body(number), sequence_id=number))
                assert connection.receive().type == BaseCommand.SEND_RECEIPT
                answers.stored.append(number)
            disk.fill()
            _publish_until_refused(connection, answers, first=10)
        assert answers.refused
        assert {each.error for each in answers.refused} == {pulsar_pb2.PersistenceError}
        assert all(each.message for each in answers.refused)
        assert answers.stored == sorted(answers.stored)
        assert server.process.returncode is None, "the server ended"
        _assert_kept(server, answers)

        disk.make_room()
        client = connect(server.url)
        # The client tries again by itself until its send timeout, 30 s.
        publish(client.create_producer(_TOPIC), [b"there is room again"])
        client.close()
        _assert_kept(server, answers)

        server.kill()
        server.start()
        _assert_kept(server, answers)
        assert server.terminate() == 0
        server.assert_log_clean()
