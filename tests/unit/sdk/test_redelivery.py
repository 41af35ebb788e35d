"""Negative acknowledgements in time."""

from magnetar.sdk.redelivery import Redelivery


def test_entries_are_due_after_the_delay_in_the_order_of_their_ids() -> None:
    redelivery = Redelivery()
    redelivery.add(1, 9, now_s=0.0, delay_s=10.0)
    redelivery.add(1, 3, now_s=1.0, delay_s=10.0)
    redelivery.add(1, 5, now_s=5.0, delay_s=10.0)
    assert redelivery.next_s == 10.0
    assert redelivery.take_due(now_s=9.9) == []
    assert redelivery.take_due(now_s=11.0) == [(1, 3), (1, 9)]
    assert redelivery.next_s == 15.0


def test_second_request_changes_nothing_and_an_ack_takes_it_back() -> None:
    redelivery = Redelivery()
    redelivery.add(1, 1, now_s=0.0, delay_s=10.0)
    redelivery.add(1, 1, now_s=5.0, delay_s=10.0)
    redelivery.add(1, 2, now_s=0.0, delay_s=10.0)
    redelivery.discard(1, 2)
    assert redelivery.take_due(now_s=20.0) == [(1, 1)]
    assert redelivery.next_s is None


def test_clear_forgets_all() -> None:
    redelivery = Redelivery()
    redelivery.add(1, 1, now_s=0.0, delay_s=0.0)
    redelivery.clear()
    assert redelivery.take_due(now_s=1.0) == []


def test_an_entry_is_due_while_one_of_its_refused_messages_is_not_acknowledged() -> None:
    redelivery = Redelivery()
    for entry_id in (1, 2):
        redelivery.add(1, entry_id, 0b01, now_s=0.0, delay_s=10.0)
        redelivery.add(1, entry_id, 0b10, now_s=1.0, delay_s=10.0)
        redelivery.discard(1, entry_id, 0b100)
        redelivery.discard(1, entry_id, 0b01)
    redelivery.discard(1, 2, 0b10)
    assert len(redelivery) == 1
    assert redelivery.take_due(now_s=10.0) == [(1, 1)]


def test_what_is_refused_again_waits_its_whole_delay() -> None:
    redelivery = Redelivery()
    redelivery.add(1, 1, now_s=0.0, delay_s=10.0)
    redelivery.discard(1, 1)
    redelivery.add(1, 1, now_s=5.0, delay_s=10.0)
    assert redelivery.take_due(now_s=14.9) == []
    assert redelivery.take_due(now_s=15.0) == [(1, 1)]


def test_what_is_acknowledged_up_to_an_entry_is_not_due() -> None:
    redelivery = Redelivery()
    for entry_id in range(3):
        redelivery.add(1, entry_id, now_s=0.0, delay_s=0.0)
    redelivery.discard_before((1, 2))
    assert redelivery.take_due(now_s=0.0) == [(1, 2)]
