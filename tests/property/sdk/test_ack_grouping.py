"""Whatever the order of acknowledgements, an entry is acknowledged exactly when all of it is."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.batch import mask_from_words

SIZE = 5


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, SIZE - 1), st.booleans()), max_size=60),
)
def test_entries_are_acknowledged_once_all_their_messages_are(
    batch_index_ack: bool, steps: list[tuple[int, int, bool]]
) -> None:
    acks = AckGrouping(batch_index_ack=batch_index_ack)
    wanted: dict[int, set[int]] = {}
    whole: set[int] = set()
    parts: dict[int, int] = {}

    def collect() -> None:
        for command in acks.take(0).commands(0):
            for data in command.message_id:
                if data.ack_set:
                    parts[data.entryId] = mask_from_words(data.ack_set)
                else:
                    whole.add(data.entryId)

    for entry_id, index, sends in steps:
        if len(wanted.get(entry_id, ())) < SIZE:
            wanted.setdefault(entry_id, set()).add(index)
            acks.add(1, entry_id, index, SIZE)
        if sends:
            collect()
    collect()
    assert whole == {entry for entry, indexes in wanted.items() if len(indexes) == SIZE}
    if batch_index_ack:
        for entry, indexes in wanted.items():
            if entry not in whole:
                assert parts[entry] == sum(1 << i for i in range(SIZE) if i not in indexes)
    else:
        assert not parts
