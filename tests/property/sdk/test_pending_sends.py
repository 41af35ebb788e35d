"""The pending queue against a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.pending_sends import PendingSend, PendingSends
from magnetar.sdk.wire.pulsar_pb2 import CommandSendReceipt

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("receipt"), st.integers(0, 30)),
        st.tuples(st.just("refuse"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(STEPS)
def test_queue_behaves_as_a_list(steps: list[tuple[str, int]]) -> None:
    pending = PendingSends()
    model: list[tuple[int, int]] = []
    next_id = 0
    for what, number in steps:
        if what == "add":
            last = next_id + number - 1
            pending.add(PendingSend(next_id, last, b"", b"", number, True, number, 0.0))
            model.append((next_id, last))
            next_id += number
        elif what == "receipt":
            receipt = CommandSendReceipt(producer_id=0, sequence_id=number)
            taken, well = pending.take([receipt])
            assert well == (not model or number <= model[0][1])
            expected = model.pop(0) if model and model[0][0] <= number <= model[0][1] else None
            got = [(send.sequence_id, send.highest_sequence_id) for send, _ in taken]
            assert got == ([] if expected is None else [expected])
        else:
            refused = pending.take_sequence(number)
            found = next(((a, b) for a, b in model if a <= number <= b), None)
            assert (not refused) == (found is None)
            if found is not None:
                model.remove(found)
        assert [(send.sequence_id, send.highest_sequence_id) for send in pending] == model
        assert pending.messages == sum(b - a + 1 for a, b in model)
