"""Many plain payloads at once, as fast as can be: `send_many`. Pure."""

from collections.abc import Sequence

from magnetar.sdk.batch import ITEM_HEADER_BYTES_MAX, encode_plain_batch
from magnetar.sdk.pending_sends import PendingSend, PendingSends
from magnetar.sdk.producing.message_encoder import MessageEncoder
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.hot_commands import publish_time_field


class BulkSends:
    """Turns a run of payloads into pending sends."""

    def __init__(
        self, settings: ProducerSettings, encoder: MessageEncoder, pending: PendingSends
    ) -> None:
        self._settings, self._encoder, self._pending = settings, encoder, pending
        self.next_sequence_id = 0
        """Where it came to, also when `add` has raised."""

    def add(
        self,
        payloads: Sequence[bytes],
        start: int,
        stop: int,
        *,
        bytes_left: int,
        sequence_id: int,
        now_s: float,
        publish_time_ms: int,
        parts: list[bytes],
    ) -> tuple[int, int]:
        """Add `payloads[start:stop]`, or as many as there are bytes left for.

        What is to be written is appended to `parts`. Gives the place and the sequence id where it
        came to.

        Raises:
            MessageTooLargeError, CryptoKeyError: those before were added.
        """
        self.next_sequence_id = sequence_id
        before = self._pending.payload_bytes
        if not self._settings.batching and self._encoder.is_plain and not self._settings.chunking:
            return self._add_plain(payloads, start, stop, bytes_left, now_s, publish_time_ms, parts)
        while start < stop:
            if self._settings.batching:
                some = self._next_batch(payloads, start, stop)
            else:
                some = payloads[start : start + 1]
            size = sum(map(len, some))
            sends = self._encode(some, size, now_s, publish_time_ms)
            self.next_sequence_id += len(some)
            for send in sends:
                self._pending.add(send)
                parts += (send.prefix, send.body)
            start += len(some)
            if self._pending.payload_bytes - before >= bytes_left:
                break
        return start, self.next_sequence_id

    def _encode(
        self, some: Sequence[bytes], size: int, now_s: float, publish_time_ms: int
    ) -> list[PendingSend]:
        encoder, first = self._encoder, self.next_sequence_id
        if len(some) == 1:
            encoder.check_size(size)
        if self._settings.batching and size + ITEM_HEADER_BYTES_MAX <= encoder.message_bytes_max:
            body = encode_plain_batch(some, first)
            return [
                encoder.raw_batch(
                    body, len(some), size, first, sent_at_s=now_s, publish_time_ms=publish_time_ms
                )
            ]
        return encoder.single(
            some[0], b"", first, on_sent=None, sent_at_s=now_s, publish_time_ms=publish_time_ms
        )

    def _next_batch(self, payloads: Sequence[bytes], start: int, stop: int) -> Sequence[bytes]:
        settings = self._settings
        body_max = min(settings.batch_bytes_max, self._encoder.message_bytes_max)
        some = payloads[start : min(stop, start + settings.batch_messages_max)]
        size = sum(map(len, some))
        while len(some) > 1 and size + len(some) * ITEM_HEADER_BYTES_MAX > body_max:
            some = some[: len(some) // 2]
            size = sum(map(len, some))
        return some

    def _add_plain(
        self,
        payloads: Sequence[bytes],
        start: int,
        stop: int,
        bytes_left: int,
        now_s: float,
        publish_time_ms: int,
        parts: list[bytes],
    ) -> tuple[int, int]:
        """One by one, as they are: no call that a payload can do without."""
        encoder = self._encoder
        encode, add = encoder.frames.encode_prefix, self._pending.add
        publish_time = publish_time_field(publish_time_ms)
        size_max = encoder.message_bytes_max
        sequence_id = first = self.next_sequence_id
        try:
            for payload in payloads[start:stop]:
                size = len(payload)
                if size > size_max:
                    encoder.check_size(size)
                prefix = encode(payload, sequence_id=sequence_id, publish_time=publish_time)
                add(PendingSend(sequence_id, sequence_id, prefix, payload, 1, False, size, now_s))
                parts += (prefix, payload)
                sequence_id += 1
                bytes_left -= size
                if bytes_left <= 0:
                    break
        finally:
            self.next_sequence_id = sequence_id
        return start + sequence_id - first, sequence_id
