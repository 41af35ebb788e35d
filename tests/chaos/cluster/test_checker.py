"""The checker by itself: it accepts what is right, and notices whatever wrong is planted."""

from collections.abc import Callable

import pytest

from tests.chaos.cluster.checker import (
    AckedAt,
    Acknowledged,
    Counts,
    Delivery,
    History,
    Kind,
    Message,
    Position,
    Subscription,
    Windows,
    check,
)

_PRODUCERS = ("p1", "p2")
_COUNT = 50
"""Messages of each producer."""
_NOBODY = Windows([])


def _position(number: int) -> Position:
    """Entries of ledgers of 30, none of them a batch."""
    return Position(7 + number // 30, number % 30, -1)


def _history() -> History:
    """Two producers in turn; a reader, a consumer that acknowledges all but every seventh."""
    messages = [Message(name, number) for number in range(_COUNT) for name in _PRODUCERS]
    content = [Delivery(_position(at), message, float(at)) for at, message in enumerate(messages)]
    return History(
        "t",
        sent=dict.fromkeys(_PRODUCERS, _COUNT),
        acknowledged=[Acknowledged(each.message, each.position) for each in content],
        content=content,
        readers={"r": list(content)},
        subscriptions={
            "s": Subscription(
                deliveries=list(content),
                acked=[
                    AckedAt(each.position, each.at_s + 0.5)
                    for at, each in enumerate(content)
                    if at % 7
                ],
                is_ordered=True,
            )
        },
    )


def _kinds(history: History, excused: Windows = _NOBODY) -> set[Kind]:
    return {problem.kind for problem in check(history, excused)[0]}


def test_a_history_without_a_fault_passes_and_is_counted() -> None:
    problems, counts = check(_history(), _NOBODY)
    assert problems == []
    total = len(_PRODUCERS) * _COUNT
    acked = total - len(range(0, total, 7))
    assert counts == Counts(
        acknowledged=total, in_topics=total, read=total, consumed=total, acked=acked
    )


def test_messages_sent_again_after_a_reconnect_pass_and_are_counted() -> None:
    history = _history()
    # The last two of p2 were stored, and their receipts lost: they come once more, at the end.
    again = [
        Delivery(_position(100 + at), Message("p2", number), 200.0)
        for at, number in enumerate((48, 49))
    ]
    history.acknowledged = [
        each for each in history.acknowledged if each.message not in {a.message for a in again}
    ] + [Acknowledged(each.message, each.position) for each in again]
    for deliveries in (
        history.content,
        history.readers["r"],
        history.subscriptions["s"].deliveries,
    ):
        deliveries.extend(again)
    problems, counts = check(history, _NOBODY)
    assert problems == []
    assert counts.copies == 2


def _known_already(history: History) -> None:
    """The receipt of the last message of p2 was lost; the topic knew it when it was sent again."""
    history.acknowledged[-1] = Acknowledged(Message("p2", _COUNT - 1), Position(-1, -1, -1))


def test_a_message_that_was_known_already_passes_wherever_it_is() -> None:
    history = _history()
    _known_already(history)
    problems, counts = check(history, _NOBODY)
    assert (problems, counts.known_already, counts.copies) == ([], 1, 0)


def _lose_what_was_known(history: History) -> None:
    _known_already(history)
    for deliveries in (
        history.content,
        history.readers["r"],
        history.subscriptions["s"].deliveries,
    ):
        del deliveries[-1:]


def _lose(history: History) -> None:
    """An acknowledged message is gone, for everybody."""
    lost = history.content[40]
    for deliveries in (
        history.content,
        history.readers["r"],
        history.subscriptions["s"].deliveries,
    ):
        deliveries.remove(lost)
    history.subscriptions["s"].acked = []


def _lose_the_end(history: History) -> None:
    for deliveries in (
        history.content,
        history.readers["r"],
        history.subscriptions["s"].deliveries,
    ):
        del deliveries[-3:]


def _move(history: History) -> None:
    acknowledged = history.acknowledged
    acknowledged[30] = acknowledged[30]._replace(position=Position(9, 999, -1))
    del acknowledged[31:]


def _acknowledge_two_at_one_position(history: History) -> None:
    history.acknowledged[31] = history.acknowledged[31]._replace(
        position=history.acknowledged[30].position
    )


def _swap_in_the_topic(history: History) -> None:
    content = history.content
    content[20], content[22] = (
        content[20]._replace(message=content[22].message),
        content[22]._replace(message=content[20].message),
    )
    history.acknowledged = []
    history.readers = {"r": list(content)}
    history.subscriptions = {}


def _acknowledge_backwards(history: History) -> None:
    acknowledged = history.acknowledged
    acknowledged[20], acknowledged[22] = (
        acknowledged[20]._replace(position=acknowledged[22].position),
        acknowledged[22]._replace(position=acknowledged[20].position),
    )


def _acknowledge_twice(history: History) -> None:
    history.acknowledged.insert(21, history.acknowledged[20])


def _invent(history: History) -> None:
    history.sent["p1"] = _COUNT - 1


def _repeat_a_position(history: History) -> None:
    history.content.insert(31, history.content[30])


def _read_twice(history: History) -> None:
    history.readers["r"].insert(31, history.readers["r"][30])


def _read_back(history: History) -> None:
    deliveries = history.readers["r"]
    history.readers["r"] = deliveries[:60] + deliveries[50:]


def _skip(history: History) -> None:
    del history.readers["r"][33]


def _skip_the_first(history: History) -> None:
    del history.readers["r"][0]


def _stop_short(history: History) -> None:
    del history.readers["r"][-1]


def _read_what_is_gone(history: History) -> None:
    ghost = Delivery(Position(8, 10_000, -1), Message("p1", 49), 60.0)
    deliveries = history.readers["r"]
    deliveries.insert(60, ghost)


def _read_another(history: History) -> None:
    deliveries = history.readers["r"]
    deliveries[10] = deliveries[10]._replace(message=Message("p1", 49))


def _consume_what_is_gone(history: History) -> None:
    ghost = Delivery(Position(11, 0, -1), Message("p1", 49), 500.0)
    history.subscriptions["s"].deliveries.append(ghost)


def _never_deliver(history: History) -> None:
    del history.subscriptions["s"].deliveries[33]


def _deliver_out_of_order(history: History) -> None:
    deliveries = history.subscriptions["s"].deliveries
    deliveries[40], deliveries[41] = deliveries[41], deliveries[40]
    history.subscriptions["s"].acked = []


def _forget(history: History) -> None:
    again = history.subscriptions["s"].deliveries[36]._replace(at_s=300.0)
    history.subscriptions["s"].deliveries.append(again)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_lose, Kind.MISSING),
        (_lose_the_end, Kind.MISSING),
        (_lose_what_was_known, Kind.MISSING),
        (_move, Kind.MOVED),
        (_acknowledge_two_at_one_position, Kind.MOVED),
        (_swap_in_the_topic, Kind.DISORDERED),
        (_acknowledge_backwards, Kind.DISORDERED),
        (_acknowledge_twice, Kind.DISORDERED),
        (_invent, Kind.INVENTED),
        (_repeat_a_position, Kind.INVENTED),
        (_read_twice, Kind.REPEATED),
        (_read_back, Kind.REPEATED),
        (_skip, Kind.SKIPPED),
        (_skip_the_first, Kind.SKIPPED),
        (_stop_short, Kind.SKIPPED),
        (_read_what_is_gone, Kind.VANISHED),
        (_read_another, Kind.VANISHED),
        (_consume_what_is_gone, Kind.VANISHED),
        (_never_deliver, Kind.UNDELIVERED),
        (_deliver_out_of_order, Kind.DISORDERED),
        (_forget, Kind.FORGOTTEN),
    ],
)
def test_what_is_planted_is_noticed(plant: Callable[[History], None], kind: Kind) -> None:
    history = _history()
    plant(history)
    assert kind in _kinds(history)


def test_every_kind_has_a_test_that_plants_it() -> None:
    planted = {
        argument[1]
        for mark in test_what_is_planted_is_noticed.pytestmark  # type: ignore[attr-defined]
        for argument in mark.args[1]
    }
    assert planted == set(Kind)


def test_a_repeated_message_that_was_not_acknowledged_is_no_fault() -> None:
    history = _history()
    deliveries = history.subscriptions["s"].deliveries
    deliveries.append(deliveries[35]._replace(at_s=300.0))  # every seventh is left
    assert _kinds(history) == set()


def test_an_acknowledgement_is_excused_only_within_the_windows() -> None:
    history = _history()
    _forget(history)  # acknowledged at 36.5
    assert _kinds(history, Windows([(36.0, 37.0)])) == set()
    assert _kinds(history, Windows([(10.0, 20.0), (15.0, 36.5)])) == set()
    assert _kinds(history, Windows([(10.0, 20.0), (36.6, 400.0)])) == {Kind.FORGOTTEN}


def test_what_was_acknowledged_again_after_the_fault_stays_so() -> None:
    history = _history()
    _forget(history)
    subscription = history.subscriptions["s"]
    position = subscription.deliveries[-1].position
    subscription.acked.append(AckedAt(position, 300.5))
    subscription.deliveries.append(subscription.deliveries[-1]._replace(at_s=310.0))
    assert _kinds(history, Windows([(36.0, 37.0)])) == {Kind.FORGOTTEN}


def test_many_problems_of_a_kind_are_shortened() -> None:
    history = _history()
    history.content = []
    problems, _ = check(history, _NOBODY, problems_max=3)
    missing = [problem for problem in problems if problem.kind is Kind.MISSING]
    assert len(missing) == 4
    assert missing[-1].text == "97 more of the kind: missing"


def _in_batches() -> History:
    """One producer, one reader; `7:0` to `7:7`: an unbatched entry, a batch of three, in turn.

    Behind them are two batches without an unbatched entry in between, and an unbatched entry at the
    beginning of the next ledger.
    """
    positions = [
        Position(7, entry_id, index)
        for entry_id in range(8)
        for index in (range(3) if entry_id % 2 else (-1,))
    ]
    positions += [Position(7, entry_id, index) for entry_id in (8, 9) for index in range(2)]
    positions.append(Position(8, 0, -1))
    content = [
        Delivery(position, Message("p1", number), float(number))
        for number, position in enumerate(positions)
    ]
    return History("t", sent={"p1": len(content)}, content=content, readers={"r": list(content)})


def _read_again(last: tuple[int, int, int], *again: tuple[int, int, int]) -> History:
    """The reader is given these positions once more after the one named first."""
    history = _in_batches()
    deliveries = history.readers["r"]
    by_position = {each.position: each for each in deliveries}
    at = deliveries.index(by_position[Position(*last)]) + 1
    deliveries[at:at] = [by_position[Position(*each)] for each in again]
    return history


_BATCH = ((7, 3, 0), (7, 3, 1), (7, 3, 2))


@pytest.mark.parametrize("moves", [1, 2])
def test_a_batch_that_the_official_client_shows_again_passes_and_is_counted(moves: int) -> None:
    """Each move of the topic can do it, also one that finds the reader where it was."""
    problems, counts = check(_read_again(_BATCH[-1], *(_BATCH * moves)), _NOBODY)
    assert problems == []
    assert counts.batches_shown_again == moves


def test_batches_shown_again_are_counted_one_by_one() -> None:
    history = _read_again(_BATCH[-1], *_BATCH)
    deliveries = history.readers["r"]
    end = next(at for at, each in enumerate(deliveries) if each.position == (7, 5, 2)) + 1
    deliveries[end:end] = deliveries[end - 3 : end]
    problems, counts = check(history, _NOBODY)
    assert problems == []
    assert counts.batches_shown_again == 2


def test_a_batch_of_one_message_is_shown_again_like_any() -> None:
    history = _in_batches()
    history.content = [
        each for each in history.content if each.position[1:] not in {(3, 1), (3, 2)}
    ]
    deliveries = list(history.content)
    at = next(at for at, each in enumerate(deliveries) if each.position == (7, 3, 0))
    deliveries.insert(at, deliveries[at])
    history.readers = {"r": deliveries}
    problems, counts = check(history, _NOBODY)
    assert problems == []
    assert counts.batches_shown_again == 1


@pytest.mark.parametrize(
    ("last", "again"),
    [
        pytest.param(_BATCH[-1], _BATCH[:2], id="only its beginning"),
        pytest.param(_BATCH[-1], _BATCH[1:], id="only its end"),
        pytest.param(_BATCH[-1], (_BATCH[0], _BATCH[2]), id="with a gap"),
        pytest.param(_BATCH[-1], (_BATCH[0], _BATCH[2], _BATCH[1]), id="out of order"),
        pytest.param(_BATCH[-1], (*_BATCH[:2], *_BATCH), id="begun twice, ended once"),
        pytest.param(_BATCH[-1], (*_BATCH, _BATCH[0]), id="whole, and then begun"),
        pytest.param(_BATCH[1], _BATCH[:2], id="before it was read to its end"),
        pytest.param((7, 4, -1), _BATCH, id="when more was read since"),
        pytest.param(_BATCH[-1], ((7, 1, 0), (7, 1, 1), (7, 1, 2)), id="an earlier batch"),
        pytest.param(_BATCH[-1], ((7, 2, -1), *_BATCH), id="with the entry before it"),
        pytest.param((7, 2, -1), ((7, 2, -1),), id="an unbatched entry"),
        pytest.param((7, 8, 1), ((7, 8, 0), (7, 8, 1)), id="with a batch next"),
        pytest.param((7, 9, 1), ((7, 9, 0), (7, 9, 1)), id="at the end of a ledger"),
    ],
)
def test_no_other_repetition_passes_for_the_official_clients(
    last: tuple[int, int, int], again: tuple[tuple[int, int, int], ...]
) -> None:
    assert _kinds(_read_again(last, *again)) == {Kind.REPEATED}


def test_a_batch_shown_again_in_part_at_the_end_of_a_history_is_noticed() -> None:
    history = _read_again(_BATCH[-1], *_BATCH[:1])
    deliveries = history.readers["r"]
    del deliveries[next(at for at, each in enumerate(deliveries) if each.position == (7, 4, -1)) :]
    assert _kinds(history) == {Kind.REPEATED, Kind.SKIPPED}


def test_another_message_in_a_batch_shown_again_is_noticed() -> None:
    history = _read_again(_BATCH[-1], *_BATCH)
    deliveries = history.readers["r"]
    at = next(at for at, each in enumerate(deliveries) if each.position == _BATCH[-1]) + 2
    deliveries[at] = deliveries[at]._replace(message=Message("p1", 0))
    assert _kinds(history) == {Kind.VANISHED}
