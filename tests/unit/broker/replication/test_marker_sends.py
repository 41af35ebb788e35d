"""Markers on their way to another cluster, and the receipts that each kind of broker gives."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from magnetar.broker.features.replication.copies import MARKER_RECEIPT, copy_in
from magnetar.broker.features.replication.markers import Request, encode_marker
from magnetar.broker.features.replication.sending import Sending, _Session
from magnetar.broker.features.replication.source_marks import START, Source
from magnetar.broker.features.replication.window import SendWindow
from magnetar.ledger.position import Position
from magnetar.sdk.errors import BrokerUnavailableError
from magnetar.sdk.wire import FRAME_BYTES_MAX, FrameDecoder, split_payload
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import entry

MARKER = encode_marker(Request("id", "east"), now_ms=1)


class OtherSide:
    """A connection to another cluster, and the sender that has it."""

    name = "west:6650"
    deduplicates_copies = True
    message_bytes_max = 1 << 20

    def __init__(self, version: str) -> None:
        self.server_version = version
        self.sent = bytearray()
        self.receipted: list[Position] = []
        window = SendWindow(mark=START, sent=START, entries_max=10, bytes_max=1 << 20)
        self.session = _Session(cast(Sending, self), cast(Any, self), 0, window)

    def write(self, frames: Sequence[bytes]) -> None:
        self.sent += b"".join(frames)

    def progressed(self, window: SendWindow) -> None:
        self.receipted.append(window.mark)

    def lost(self) -> None:
        """The session has failed."""

    def send(self, entry_id: int, payload: bytes) -> None:
        metadata, _ = split_payload(payload)
        self.session.send(Source("east", 7), Position(1, entry_id), payload, metadata, b"")

    def receipt(self, sequence_id: int, highest: int) -> None:
        self.session.on_receipts(
            [
                pb.CommandSendReceipt(
                    producer_id=0, sequence_id=sequence_id, highest_sequence_id=highest
                )
            ]
        )


@pytest.mark.parametrize("version", ["Magnetar-1", "Pulsar 4.0.8"])
def test_a_marker_says_that_it_is_one_and_where_it_stands(version: str) -> None:
    other = OtherSide(version)
    other.send(3, MARKER)
    ((command, payload),) = FrameDecoder(FRAME_BYTES_MAX).feed(bytes(other.sent))
    assert command.send.marker
    metadata, body_at = split_payload(payload)
    assert (metadata.marker_type, metadata.replicated_from) == (10, "east")
    copy = copy_in(metadata)
    assert copy is not None
    assert copy.place.position == Position(1, 3)
    assert payload[body_at:] == MARKER[split_payload(MARKER)[1] :]


def test_a_magnetar_receipts_markers_by_their_places() -> None:
    other = OtherSide("Magnetar-1")
    other.send(3, MARKER)
    other.send(4, entry())
    other.receipt(1, 3)
    other.receipt(1, 4)
    other.session.check()
    assert other.receipted == [Position(1, 3), Position(1, 4)]


def test_a_pulsar_receipts_markers_as_such() -> None:
    other = OtherSide("Pulsar 4.0.8")
    other.send(3, MARKER)
    other.send(4, entry())
    other.receipt(0, MARKER_RECEIPT)
    other.receipt(1, 4)
    other.session.check()
    assert other.receipted == [Position(1, 3), Position(1, 4)]


def test_a_receipt_of_a_marker_where_a_message_was_sent_ends_the_session() -> None:
    other = OtherSide("Pulsar 4.0.8")
    other.send(4, entry())
    other.receipt(0, MARKER_RECEIPT)
    with pytest.raises(BrokerUnavailableError):
        other.session.check()
    assert other.receipted == []
