"""Acknowledgements, from ids on the wire to ranges of entries.

Clients collect acknowledgements, and most of them are consecutive: they are taken as ranges.
"""

from collections.abc import Sequence

from magnetar.broker.consuming.attaching import Attached
from magnetar.broker.errors import BrokerMetadataError
from magnetar.broker.positions import position_of
from magnetar.broker.transactions.pending_acks import Ack
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


def split_ids(command: BaseCommand, count: int) -> Sequence[BaseCommand]:
    """Leave so many message ids in an acknowledgement that has more. Returns commands with the
    others, as many in each, which are to be handled next, in this order.

    The answer, if one is asked for, belongs to the last one. What belongs to a transaction stays
    whole: it is taken as a whole, or refused.
    """
    ack = command.ack
    if command.type != BaseCommand.ACK or len(ack.message_id) <= count:
        return ()
    is_of_transaction = ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits")
    if is_of_transaction or ack.ack_type == CommandAck.Cumulative:
        return ()
    every = list(ack.message_id)
    del ack.message_id[:]
    pieces = []
    for start in range(count, len(every), count):
        piece = BaseCommand()
        piece.CopyFrom(command)
        piece.ack.message_id.extend(every[start : start + count])
        if start + count < len(every):
            piece.ack.ClearField("request_id")
        pieces.append(piece)
    ack.message_id.extend(every[:count])
    ack.ClearField("request_id")
    return pieces


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
