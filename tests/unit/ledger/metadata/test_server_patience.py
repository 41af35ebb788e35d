"""No server may take so long that the session is over, and slow ones are not given up for ever."""

import pytest

from magnetar.ledger.metadata.server_patience import ServerPatience


def test_three_dead_hosts_after_a_silent_server_leave_something_of_the_session() -> None:
    patience = ServerPatience(30_000)
    spent_s = patience.silence_s
    for _ in range(3):
        spent_s += patience.step_s
        patience.step_took_too_long()
    assert spent_s < 30


def test_one_dead_host_after_a_silent_server_leaves_a_broker_its_lease() -> None:
    patience = ServerPatience(30_000)
    assert patience.silence_s + patience.step_s < 30 * 2 / 3


def test_servers_that_are_all_slow_get_more_time_with_each_try_up_to_the_session_timeout() -> None:
    patience = ServerPatience(12_000)
    given_s = []
    for _ in range(5):
        patience.round_begins()
        given_s += [patience.step_s]
        patience.step_took_too_long()
        patience.step_took_too_long()
    assert given_s == [2, 4, 8, 12, 12]
    patience.connected(12_000)
    assert patience.step_s == 2


def test_a_short_session_leaves_a_second_for_a_handshake_and_most_of_itself_for_an_answer() -> None:
    assert ServerPatience(600).step_s == 1.0
    assert ServerPatience(600).silence_s == pytest.approx(0.4)
    assert ServerPatience(2_000).silence_s == 1.0


def test_what_the_server_has_granted_counts() -> None:
    patience = ServerPatience(10_000)
    patience.connected(6_000)
    assert (patience.session_timeout_ms, patience.silence_s, patience.step_s) == (6_000, 2, 1)
