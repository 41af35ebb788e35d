from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.entry_logs.packet_run import check_add
from magnetar.bookie.errors import BadAddError
from magnetar.ledger.wire import PACKET_HEADER, encode_block

small = st.integers(-2, 6)
heads = st.tuples(st.sampled_from([1, 1, 1, 2]), small, small, st.integers(0, 3))


@given(st.lists(heads, min_size=1, max_size=6), small)
def test_the_fast_check_agrees_with_the_plain_rules(
    packets: list[tuple[int, int, int, int]], first: int
) -> None:
    block = encode_block(
        [
            PACKET_HEADER.pack(ledger, entry, lac, 0) + bytes(4 + extra)
            for ledger, entry, lac, extra in packets
        ]
    )
    entries = [entry for _, entry, _, _ in packets]
    is_good = (
        first >= 0
        and entries[0] == first
        and entries == sorted(set(entries))
        and all(ledger == 1 and -1 <= lac < entry for ledger, entry, lac, _ in packets)
    )
    try:
        entry_ids, highest = check_add(1, first, block)
    except BadAddError:
        assert not is_good
    else:
        assert is_good
        assert list(entry_ids) == entries
        assert highest == max(lac for _, _, lac, _ in packets)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), small, small)
def test_arbitrary_packets_are_checked_or_refused(
    packets: list[bytes], ledger_id: int, first: int
) -> None:
    try:
        check_add(ledger_id, first, encode_block(packets))
    except BadAddError:
        pass  # what nearly all of them are
