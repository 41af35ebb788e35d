"""Packets come in order, whatever the order in which requests are answered."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.offloading.reads_ahead import packets_ahead
from magnetar.ledger.reading.entry_fetcher import Packets
from magnetar.ledger.wire import encode_block

READ_BYTES = 100
AT_ONCE = 3


class Ledger:
    """Entries of these sizes, of which a request brings as many as fit into `READ_BYTES`."""

    def __init__(self, sizes: list[int]) -> None:
        self.payloads = [number.to_bytes(4) + bytes(size) for number, size in enumerate(sizes)]
        self.metadata = LedgerMetadata(
            ledger_id=7,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            state=LedgerState.CLOSED,
            last_entry_id=len(sizes) - 1,
            length=sum(map(len, self.payloads)),
            ensembles=(Fragment(0, ("bookie",)),),
            created_ms=0,
            creation_token=1,
        )
        self.under_way: set[int] = set()
        self.most = 0
        self.answered = 0
        self.fails_at = -1

    async def read(self, first: int, last: int) -> Packets:
        self.under_way.add(first)
        self.most = max(self.most, len(self.under_way))
        try:
            for _ in range(7 * first % 5):  # later requests may be answered first
                await asyncio.sleep(0)
            if first <= self.fails_at <= last:
                raise LookupError(first)
            taken = [self.payloads[first]]
            for payload in self.payloads[first + 1 : last + 1]:
                if sum(map(len, taken)) + len(payload) > READ_BYTES:
                    break
                taken.append(payload)
        finally:
            self.under_way.discard(first)
        self.answered += 1
        return Packets(encode_block(taken), taken)

    async def all(self) -> list[bytes]:
        reading = packets_ahead(
            self.read, self.metadata, read_bytes=READ_BYTES, reads_at_once=AT_ONCE
        )
        async with aclosing(reading):
            return [payload async for packets in reading for payload in packets.payloads]


@given(st.lists(st.integers(0, 250), max_size=60))
def test_every_entry_comes_once_and_in_order_with_so_many_requests_under_way(
    sizes: list[int],
) -> None:
    ledger = Ledger(sizes)
    assert asyncio.run(ledger.all()) == ledger.payloads
    assert ledger.most <= AT_ONCE
    assert not ledger.under_way


async def test_requests_go_ahead_of_the_one_that_is_waited_for() -> None:
    ledger = Ledger([46] * 40)
    await ledger.all()
    assert ledger.most == AT_ONCE
    assert ledger.answered == 20


async def test_a_request_that_fails_ends_it_and_leaves_none_behind() -> None:
    ledger = Ledger([46] * 40)
    ledger.fails_at = 11
    with pytest.raises(LookupError):
        await ledger.all()
    assert not ledger.under_way


async def test_whoever_stops_leaves_no_request_behind() -> None:
    ledger = Ledger([46] * 40)
    reading = packets_ahead(
        ledger.read, ledger.metadata, read_bytes=READ_BYTES, reads_at_once=AT_ONCE
    )
    async with aclosing(reading):
        async for _ in reading:
            break
    assert not ledger.under_way
