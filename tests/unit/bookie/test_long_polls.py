from magnetar.bookie.requests.long_polls import LongPolls, WaitingPoll
from magnetar.ledger.wire import Flag, Frame, Op
from magnetar.ledger.wire_bodies import LongPoll
from tests.bookie_parts import ManualConnection, bookie_settings

LIMITS = bookie_settings(long_poll_ms_max=1000, long_polls_max=5, connection_long_polls_max=3)


def waiting(
    connection: ManualConnection, ledger_id: int, previous_lac: int = -1, wait_ms: int = 500
) -> WaitingPoll:
    frame = Frame(Op.READ_LAC, False, Flag.LONG_POLL, 0, 0, ledger_id, -1, b"")
    return WaitingPoll(connection, frame, LongPoll(previous_lac, wait_ms, 0))


def test_those_for_whom_it_is_news_leave_in_the_order_of_their_coming() -> None:
    polls, connection = LongPolls(LIMITS), ManualConnection()
    first, knowing, second = (waiting(connection, 1, lac) for lac in (3, 5, -1))
    for each in (first, knowing, second):
        assert polls.add(each, 0.0)
    assert list(polls.take(2, 100)) == []
    assert list(polls.take(1, 5)) == [first, second]
    assert list(polls.take(1, 5)) == []
    assert polls.count == 1
    assert list(polls.take(1, 6)) == [knowing]


def test_time_is_bounded_by_the_request_and_by_the_bookie() -> None:
    polls, connection = LongPolls(LIMITS), ManualConnection()
    short, long = waiting(connection, 1, wait_ms=500), waiting(connection, 2, wait_ms=60_000)
    polls.add(long, 10.0)
    polls.add(short, 10.0)
    assert polls.next_deadline_s() == 10.5
    assert polls.expire(10.4) == []
    assert polls.expire(10.5) == [short]
    assert polls.next_deadline_s() == 11.0
    assert polls.expire(11.0) == [long]
    assert polls.next_deadline_s() is None


def test_a_connection_and_the_bookie_have_limits() -> None:
    polls = LongPolls(LIMITS)
    connections = [ManualConnection() for _ in range(3)]
    taken = [polls.add(waiting(connections[0], 1), 0.0) for _ in range(4)]
    assert taken == [True, True, True, False]
    assert polls.add(waiting(connections[1], 1), 0.0)
    assert polls.add(waiting(connections[1], 2), 0.0)
    assert not polls.add(waiting(connections[2], 3), 0.0)
    polls.take(2, 0)
    assert polls.add(waiting(connections[2], 3), 0.0)


def test_a_closed_connection_waits_for_nothing() -> None:
    polls = LongPolls(LIMITS)
    gone, here = ManualConnection(), ManualConnection()
    kept = waiting(here, 1)
    for each in (waiting(gone, 1), kept, waiting(gone, 2)):
        polls.add(each, 0.0)
    polls.forget(gone)
    polls.forget(gone)
    assert polls.count == 1
    assert list(polls.take(1, 0)) == [kept]
    assert list(polls.take(2, 0)) == []
    assert polls.expire(100.0) == []


def test_what_left_early_does_not_pile_up() -> None:
    polls, connection = LongPolls(LIMITS), ManualConnection()
    for number in range(10_000):
        polls.add(waiting(connection, 1), number / 1000)
        polls.take(1, 0)
    assert len(polls._deadlines) <= 64
