"""Opens entries for delivery: decrypts them, assembles chunks, and writes dead letters."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.consuming.chunks import ChunkAssembly
from magnetar.sdk.consuming.dead_letters import DeadLetters, Giver
from magnetar.sdk.errors import CorruptMessageError, CryptoError, EncryptedMessageError
from magnetar.sdk.receiver_queue import Delivery
from magnetar.sdk.settings import ConsumerSettings
from magnetar.sdk.wire.errors import MalformedPayloadError

if TYPE_CHECKING:
    from magnetar.sdk.encryption import MessageDecryptor

_CHECKS_PER_AGE = 8
"""How often it is checked, per `chunked_message_age_ms`, whether the consumer waits for chunks."""


class Chunked(Protocol):
    """Records which entries make a chunked message: the acknowledger's grouping."""

    first_incomplete: Callable[[], tuple[int, int] | None]

    def set_chunks(self, key: tuple[int, int], others: list[tuple[int, int]]) -> None: ...
    def add_chunk(self, key: tuple[int, int], other: tuple[int, int]) -> bool: ...
    @property
    def has_chunks(self) -> bool: ...
    def pass_entry(self, ledger_id: int, entry_id: int) -> None: ...


class EntryOpening:
    """Opens entries for one consumer of one topic. Called by its receiver queue for each entry."""

    def __init__(
        self,
        source: EntrySource,
        settings: ConsumerSettings,
        *,
        acks: Chunked,
        giver: Giver,
        letters: DeadLetters | None,
        has_waited: Callable[[], bool],
        is_empty: Callable[[], bool],
        acknowledge: Callable[[list[tuple[int, int]]], None],
        ask_later: Callable[[list[tuple[int, int]]], None],
    ) -> None:
        """Take the consumer's parts.

        `has_waited` returns whether all was opened that had arrived a while ago, so that what is
        missing had not arrived by then. `is_empty` returns whether nothing is queued: otherwise it
        may be at the broker, which has no permits to send it. `acknowledge` and `ask_later` get the
        entries of messages that will not be completed.
        """
        self._acks = acks
        self._giver = giver
        # Other subscription types do not count how often a message was delivered.
        self._shares = shares = not settings.subscription_type.keeps_order
        self._letters = letters if shares and settings.dead_letters is not None else None
        self._has_waited = has_waited
        self._is_empty = is_empty
        self._acknowledge = acknowledge
        self._ask_later = ask_later
        self._acknowledges_incomplete = settings.acknowledge_incomplete_chunks
        # Other types redeliver from the first unacknowledged message on: that would never end.
        self._asks_for_incomplete = shares
        # Chunks without a successor are given up, too: no other entry would trigger it.
        self._loop = asyncio.get_running_loop()
        age_s = settings.chunked_message_age_ms / 1000
        self._check_s = age_s / _CHECKS_PER_AGE
        self._timer: asyncio.TimerHandle | None = None
        self._published_ms = 0
        """Latest publish time among the entries opened while a message is incomplete."""
        self._counted_ms = 0
        """What `_published_ms` was when time was counted last."""
        self._decryptor = settings.decryptor()
        # Compared by its value: a consumer that decrypts nothing loads no cryptography.
        action = settings.crypto_failure_action
        self._on_encrypted = "fail" if action is None else action.value
        self.chunks = ChunkAssembly(
            source,
            messages_max=settings.chunked_messages_max,
            bytes_max=settings.chunked_message_bytes_max,
            age_s=age_s,
            tells_lost=not (self._acknowledges_incomplete or self._asks_for_incomplete),
            on_given_up=self._on_incomplete,
            on_superseded=acknowledge,
            on_repeated=self._on_repeated,
        )
        acks.first_incomplete = lambda: self.chunks.first_incomplete

    def open(self, batch: MessageBatch) -> MessageBatch | None:
        """Return what to deliver for an entry; None for nothing, or nothing yet.

        Raises:
            CorruptMessageError: the entry cannot be read.
        """
        opened = self._assemble(batch)
        letters = self._letters
        if opened is None or letters is None:
            return opened
        if opened.redelivery_count <= letters.redeliveries_max:
            letters.delivered(opened.ledger_id, opened.entry_id)
            return opened
        try:
            letters.put(self._giver, opened.messages())
        except MalformedPayloadError as error:
            raise CorruptMessageError(batch.message_id, str(error)) from error
        return None

    def has_dead(self, deliveries: Iterable[Delivery]) -> bool:
        """Whether some deliveries came too often. They are given up even if no message is taken."""
        letters = self._letters
        if letters is None:
            return False
        most = letters.redeliveries_max
        return any(message.redelivery_count > most for message, _ in deliveries)

    def _assemble(self, batch: MessageBatch) -> MessageBatch | None:
        if batch.is_encrypted and self._decryptor is not None:
            decrypted = self._decrypt(batch, self._decryptor)
            if decrypted is None:
                return None
            batch = decrypted
        # A chunk that is still encrypted cannot be assembled, and is delivered as it is.
        if batch.metadata.num_chunks_from_msg <= 1 or batch.is_encrypted:
            if self._timer is not None:
                self._published_ms = max(self._published_ms, batch.metadata.publish_time)
            # Only types that keep the order have cumulative acknowledgements.
            if not self._shares and (self.chunks.is_under_way or self._acks.has_chunks):
                self.chunks.pass_entry((batch.ledger_id, batch.entry_id))
                self._acks.pass_entry(batch.ledger_id, batch.entry_id)
            return batch
        published_ms = batch.metadata.publish_time
        if len(self.chunks):
            self._published_ms = max(self._published_ms, published_ms)
        else:
            self._published_ms = self._counted_ms = published_ms
        try:
            whole = self.chunks.add(batch)
        except MalformedPayloadError as error:
            raise CorruptMessageError(batch.message_id, str(error)) from error
        if self._timer is None and len(self.chunks):
            self._timer = self._loop.call_later(self._check_s, self._on_check)
        if whole is None:
            return None
        self._acks.set_chunks((whole.batch.ledger_id, whole.batch.entry_id), whole.others)
        return whole.batch

    def _decrypt(self, batch: MessageBatch, decryptor: "MessageDecryptor") -> MessageBatch | None:
        try:
            return batch.with_body(decryptor.decrypt(batch.travelled_body, batch.metadata))
        except CryptoError as error:
            if self._on_encrypted == "consume":
                return batch
            if self._on_encrypted == "fail":
                raise EncryptedMessageError(batch.message_id, str(error)) from error
        self._acknowledge([(batch.ledger_id, batch.entry_id)])
        return None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_check(self) -> None:
        self._timer = None
        if self._has_waited():
            self.chunks.wait(self._waited_s())
        if len(self.chunks):
            self._timer = self._loop.call_later(self._check_s, self._on_check)

    def _waited_s(self) -> float:
        """Return how much of the time since the last check was waited for chunks.

        While the queue is not empty, the next chunk may be stored, behind what the broker may send.
        Then no more counts than lies between the publish times of the entries opened. The latest
        one counts, because the clocks of producers differ.
        """
        told_s = (self._published_ms - self._counted_ms) / 1000
        self._counted_ms = self._published_ms
        return self._check_s if self._is_empty() else min(self._check_s, told_s)

    def _on_repeated(self, last: tuple[int, int], entry: tuple[int, int]) -> None:
        if not self._acks.add_chunk(last, entry):
            self._acknowledge([entry])  # its message is acknowledged already

    def _on_incomplete(self, entries: list[tuple[int, int]]) -> None:
        if self._acknowledges_incomplete:
            self._acknowledge(entries)
        elif self._asks_for_incomplete:
            self._ask_later(entries)
