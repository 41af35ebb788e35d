"""The verdict of the drill of several clusters notices whatever breaks a promise."""

from dataclasses import replace

from tests.chaos.geo.verdict import Histories, Message, judge

_A0, _A1 = (Message("east", "plain", "-", number) for number in range(2))
_B0 = Message("west", "plain", "-", 0)


def _good() -> Histories:
    return Histories(
        acknowledged={_A0, _A1, _B0},
        read={"east": {"plain": [_A0, _A1, _B0]}, "west": {"plain": [_B0, _A0, _A1]}},
        delivered={"east": [_A0, _A1, _A0, _B0, _A1], "west": [_B0, _A0, _A1]},
        moved=[_B0, _A1, _A0, _A1],
    )


def test_orders_of_two_sources_may_differ_and_deliveries_may_repeat() -> None:
    assert judge(_good()) == []


def test_what_was_never_answered_may_be_there_or_not() -> None:
    seen = _good()
    seen.acknowledged.discard(_B0)
    seen.unsure.add(_B0)
    assert judge(seen) == []
    for partitions in seen.read.values():
        partitions["plain"].remove(_B0)
    assert judge(seen) == []


def test_what_is_in_one_cluster_only_is_noticed() -> None:
    seen = _good()
    seen.read["west"] = {"plain": [_B0, _A0]}
    assert any("west: 1 of 3 are lost" in each for each in judge(seen))
    unsure = replace(_good(), acknowledged={_A0, _B0}, unsure={_A1})
    unsure.read["west"] = {"plain": [_B0, _A0]}
    assert judge(unsure) == [
        "plain: the messages of east are in another order at west than at east, or others: "
        "there are 1, and not 2"
    ]


def test_a_copy_that_came_back_is_noticed() -> None:
    seen = _good()
    seen.read["east"]["plain"].append(_A1)
    assert f"east has 2 times {_A1}" in judge(seen)


def test_a_message_that_overtook_another_of_its_key_is_noticed() -> None:
    seen = _good()
    seen.read["west"] = {"plain": [_B0, _A1, _A0]}
    assert any("comes after number 1" in each for each in judge(seen))


def test_what_nobody_sent_is_noticed() -> None:
    seen = _good()
    seen.read["west"]["plain"].append(Message("east", "plain", "-", 7))
    assert any("what nobody sent" in each for each in judge(seen))


def test_a_delivery_that_is_missing_or_early_is_noticed() -> None:
    seen = _good()
    seen.delivered["west"] = [_B0, _A1, _A0]
    seen.moved = [_A0, _A1]
    assert [each.partition(":")[0] for each in judge(seen)] == [
        "the consumers at west",
        "the consumer that moves",
    ]


def test_a_message_is_what_its_payload_says() -> None:
    assert Message.decode(_A1.encode()) == _A1
