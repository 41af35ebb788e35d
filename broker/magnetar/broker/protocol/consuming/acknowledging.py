"""Acknowledgements, from ids on the wire to ranges of entries.

Clients collect acknowledgements, and most of them are consecutive: they are taken as ranges.
"""

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.transactions.pending_acks import Ack
from magnetar.broker.protocol.consuming.attaching import Attached
from magnetar.broker.topic.positions import position_of
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import CommandAck

# A range costs about as much as this many single acknowledgements.
_RANGE_ENTRIES_MIN = 4


def acknowledge(attached: Attached, ack: CommandAck) -> None:
    """Have the subscription take what is acknowledged, as far as it exists."""
    subscription = attached.subscription
    last = attached.topic.log.last_confirmed
    if ack.ack_type == CommandAck.Cumulative:
        if len(ack.message_id) == 1:
            message_id = ack.message_id[0]
            position = position_of(message_id)
            if position <= last:
                subscription.acknowledge_through(
                    attached.consumer, position, message_id.ack_set, message_id.batch_size
                )
        return
    consumer = attached.consumer
    # Plain attribute reads: ids of entries that exist are never negative.
    singles: list[Position] = []
    ledger_id = first = final = -1

    def take_range() -> None:
        if first == final:  # as nearly always, where several consumers share a topic
            singles.append(Position(ledger_id, first))
        elif final - first < _RANGE_ENTRIES_MIN:
            singles.extend([Position(ledger_id, each) for each in range(first, final + 1)])
        else:
            subscription.acknowledge(consumer, ledger_id, first, final)

    for message_id in ack.message_id:
        entry_id = message_id.entryId
        if message_id.ack_set:
            position = Position(message_id.ledgerId, entry_id)
            if position <= last:
                subscription.acknowledge_indexes(
                    consumer, position, message_id.ack_set, message_id.batch_size
                )
        elif entry_id == final + 1 and message_id.ledgerId == ledger_id:
            final = entry_id
        else:
            if final >= 0:
                take_range()
            ledger_id, first, final = message_id.ledgerId, entry_id, entry_id
    if final >= 0:
        take_range()
    if singles:
        subscription.acknowledge_each(consumer, [each for each in singles if each <= last])


class LongAcknowledgement:
    """An acknowledgement of very many ids, which is handled in pieces.

    The answer, if one is asked for, belongs to the last piece.
    """

    def __init__(self, command: BaseCommand) -> None:
        self._command = command
        self._taken = 0

    @staticmethod
    def is_one(command: BaseCommand, count: int) -> bool:
        """Whether a command has more ids than that, and may be handled in pieces. What belongs to a
        transaction stays whole: it is taken as a whole, or refused."""
        ack = command.ack
        if command.type != BaseCommand.ACK or len(ack.message_id) <= count:
            return False
        is_of_transaction = ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits")
        return not is_of_transaction and ack.ack_type == CommandAck.Individual

    @property
    def is_done(self) -> bool:
        """No ids are left."""
        return self._taken >= len(self._command.ack.message_id)

    def take(self, count: int) -> BaseCommand:
        """The next piece, of at most so many ids."""
        whole = self._command.ack
        ids = whole.message_id[self._taken : self._taken + count]
        self._taken += len(ids)
        piece = BaseCommand(type=BaseCommand.ACK)
        ack = piece.ack
        ack.consumer_id, ack.ack_type = whole.consumer_id, whole.ack_type
        ack.message_id.extend(ids)  # in their place: a message given to another one is copied
        if self.is_done and whole.HasField("request_id"):
            ack.request_id = whole.request_id
        return piece


def transactional_acks(attached: Attached, ack: CommandAck) -> tuple[list[Ack], Ack | None]:
    """What is acknowledged in a transaction: single entries, or everything up to one.

    Raises:
        BrokerMetadataError: there are no such entries, or several for a cumulative one.
    """
    last = attached.topic.visibility.last
    acks: list[Ack] = []
    for message_id in ack.message_id:
        position = position_of(message_id)
        if position > last or position.ledger_id < 0:
            raise BrokerMetadataError(f"{attached.topic.name} has no message at {position}")
        words = tuple(message_id.ack_set)
        acks.append(Ack(position, words, max(message_id.batch_size, 0) if words else 0))
    if ack.ack_type != CommandAck.Cumulative:
        return acks, None
    if len(acks) != 1:
        raise BrokerMetadataError("a cumulative acknowledgement names one message")
    return [], acks[0]
