"""Entries of a compacted ledger are those of the topic, with their place in front."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.arrow.compacted_ledger import unpack
from magnetar.arrow.errors import CorruptDataError
from magnetar.broker.features.compaction.compacted_ledger import pack
from magnetar.ledger.position import Position

numbers = st.integers(0, (1 << 63) - 1)


@given(numbers, numbers, st.binary())
def test_what_the_broker_writes_is_read(ledger_id: int, entry_id: int, entry: bytes) -> None:
    assert unpack(pack(Position(ledger_id, entry_id), entry)) == (ledger_id, entry_id, entry)


@pytest.mark.parametrize("stored", [b"", b"\x01", bytes(17), struct.pack(">Bqq", 2, 1, 1)])
def test_another_format_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptDataError, match="this release reads format 1"):
        unpack(stored)
