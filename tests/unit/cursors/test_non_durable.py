"""The cursor in memory."""

from magnetar.cursors.subscription_cursor import NonDurableCursor, SubscriptionCursor
from magnetar.ledger.position import EARLIEST, LATEST, Position
from tests.unit.cursors.growing_log import GrowingLog


async def test_it_has_the_face_of_a_durable_cursor_and_holds_nothing_back() -> None:
    log = GrowingLog((3, 5), (6, 5))
    cursor: SubscriptionCursor = NonDurableCursor(log, "reader-1", initial=Position(3, 2))
    assert not cursor.is_durable
    assert cursor.persisted_mark_delete is None
    assert cursor.next_unacked(cursor.mark_delete) == Position(3, 2)
    assert cursor.ack_cumulative(Position(3, 4))
    assert cursor.backlog_entries == 5
    await cursor.persist()
    await cursor.reset(EARLIEST)
    assert cursor.backlog_entries == 10
    await cursor.reset(LATEST)
    assert cursor.is_caught_up
    await cursor.close()
    await cursor.delete()


def test_it_follows_trimming() -> None:
    log = GrowingLog((3, 5), (6, 5))
    cursor = NonDurableCursor(log, "reader-1", initial=EARLIEST)
    cursor.ack(Position(3, 3))
    log.trim()
    assert cursor.backlog_entries == 5
    assert cursor.mark_delete == Position(6, -1)
