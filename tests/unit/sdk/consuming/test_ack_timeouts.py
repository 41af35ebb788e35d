"""Timeouts of acknowledgements, and the delays of negative ones."""

from magnetar.sdk.redelivery import AckTimeouts, NackDelay


def test_entries_are_due_in_their_order() -> None:
    timeouts = AckTimeouts(10.0)
    for at, entry in enumerate([(1, 3), (1, 1), (1, 2)]):
        timeouts.add(entry, now_s=float(at))
    assert timeouts.next_s == 10.0
    assert timeouts.take_due(now_s=9.9) == []
    assert timeouts.take_due(now_s=11.0) == [(1, 1), (1, 3)]
    assert timeouts.next_s == 12.0
    assert timeouts.take_due(now_s=12.0) == [(1, 2)]
    assert timeouts.next_s is None


def test_what_is_acknowledged_or_taken_again_is_not_due() -> None:
    timeouts = AckTimeouts(10.0)
    for entry in ((1, 1), (1, 2), (1, 3), (2, 0)):
        timeouts.add(entry, now_s=0.0)
    timeouts.discard((1, 2))
    timeouts.add((1, 3), now_s=5.0)
    assert timeouts.take_due(now_s=10.0) == [(1, 1), (2, 0)]
    timeouts.add((1, 1), now_s=10.0)
    timeouts.discard_before((1, 4))
    assert timeouts.next_s is None


def test_the_delay_grows_up_to_its_bound() -> None:
    delay = NackDelay(1.0, 2.0, 5.0)
    assert [delay.after(count) for count in (0, 1, 2, 3, 100_000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert NackDelay(60.0, 1.0, 5.0).after(7) == 60.0


def test_an_entry_is_due_while_one_of_its_taken_messages_is_not_acknowledged() -> None:
    timeouts = AckTimeouts(10.0)
    for entry in ((1, 1), (1, 2)):
        timeouts.add(entry, 0b01, now_s=0.0)
        timeouts.add(entry, 0b10, now_s=1.0)
        timeouts.discard(entry, 0b01)
    timeouts.discard((1, 2), 0b10)
    assert timeouts.take_due(now_s=11.0) == [(1, 1)]
    assert timeouts.next_s is None
