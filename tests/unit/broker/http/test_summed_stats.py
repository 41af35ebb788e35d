"""Statistics of partitions, added up."""

from magnetar.broker.summed_stats import summed


def part(messages: int, backlog: int, name: str) -> dict[str, object]:
    return {
        "msgInCounter": messages,
        "bytesInCounter": messages * 10,
        "averageMsgSize": 10.0,
        "topicEpoch": messages,
        "ownerBroker": name,
        "publishers": [{"producerName": name}],
        "subscriptions": {"s": {"msgBacklog": backlog, "isDurable": True, "type": "Shared"}},
    }


def test_numbers_are_added_and_the_largest_of_times_counts() -> None:
    found = summed([part(1, 5, "a"), part(3, 6, "b")])
    assert found["msgInCounter"] == 4
    assert found["averageMsgSize"] == 10.0
    assert found["topicEpoch"] == 3
    assert found["subscriptions"]["s"] == {"msgBacklog": 11, "isDurable": True, "type": "Shared"}
    assert [each["producerName"] for each in found["publishers"]] == ["a", "b"]
    assert "ownerBroker" not in found


def test_of_times_of_what_waits_the_earliest_counts() -> None:
    def waiting(since_ms: int) -> dict[str, object]:
        field = "earliestMsgPublishTimeInBacklog"
        return {f"{field}s": since_ms, "subscriptions": {"s": {field: since_ms}}}

    found = summed([waiting(0), waiting(1_700_000_000_500), waiting(1_700_000_000_000), waiting(0)])
    assert found == waiting(1_700_000_000_000)


def test_the_parts_stay_as_they_are() -> None:
    first, second = part(1, 5, "a"), part(3, 6, "b")
    summed([first, second])
    assert first == part(1, 5, "a")
    assert second == part(3, 6, "b")


def test_of_nothing_there_is_nothing() -> None:
    assert summed([]) == {}
