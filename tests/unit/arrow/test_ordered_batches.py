"""Batches of several workers come in the order of their slices, and never too many of them wait."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from magnetar.arrow.ordered_batches import OrderedBatches

WAIT_S = 30.0


def _batch(number: int, *, size: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array([bytes([number]) * (size - 8)], pa.binary())})


def _number(batch: pa.RecordBatch | None) -> int | None:
    return None if batch is None else batch.column(0)[0].as_py()[0]


SIZE = _batch(0).nbytes


def _all(order: OrderedBatches) -> Iterator[int | None]:
    while (batch := order.take()) is not None:
        yield _number(batch)


class _Thread:
    """Runs a call beside the test, and gives its result."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._call()

    def joined(self) -> object:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.result

    @property
    def is_waiting(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()


def test_slices_come_in_order_whoever_was_first() -> None:
    order = OrderedBatches(3, bytes_max=100 * SIZE)
    for number in (2, 0, 1):
        order.put(number, _batch(number))
        order.put(number, _batch(10 + number))
        order.end(number)
    assert list(_all(order)) == [0, 10, 1, 11, 2, 12]


def test_slices_are_begun_in_order_and_once() -> None:
    order = OrderedBatches(2, bytes_max=1)
    assert [order.begin() for _ in range(4)] == [0, 1, None, None]


def test_no_slices_are_the_end() -> None:
    assert OrderedBatches(0, bytes_max=1).take() is None


def test_a_slice_without_rows_is_passed_over() -> None:
    order = OrderedBatches(2, bytes_max=SIZE)
    order.end(0)
    order.put(1, _batch(1))
    order.end(1)
    assert list(_all(order)) == [1]


def test_what_waits_is_bounded_and_goes_on_when_there_is_room() -> None:
    order = OrderedBatches(2, bytes_max=2 * SIZE)
    order.put(1, _batch(1))
    order.put(1, _batch(2))  # at the limit
    ahead = _Thread(lambda: order.put(1, _batch(3)))
    assert ahead.is_waiting, "beyond it"
    order.end(0)
    assert _number(order.take()) == 1
    assert ahead.joined() is True
    assert order.bytes_peak == 2 * SIZE


def test_the_slice_that_comes_next_is_never_held_up_by_others() -> None:
    order = OrderedBatches(2, bytes_max=SIZE)
    order.put(1, _batch(1))
    assert order.put(0, _batch(0)), "one batch above the limit"
    second = _Thread(lambda: order.put(0, _batch(2)))
    assert second.is_waiting, "and no more"
    assert _number(order.take()) == 0
    assert second.joined() is True
    assert order.bytes_peak == 2 * SIZE


def test_a_batch_larger_than_the_limit_comes_alone() -> None:
    order = OrderedBatches(1, bytes_max=1)
    assert order.put(0, _batch(0))
    assert _Thread(order.take).joined() is not None


def test_an_error_comes_in_the_place_of_what_could_not_be_read() -> None:
    order = OrderedBatches(3, bytes_max=100 * SIZE)
    order.put(2, _batch(2))
    order.end(2)
    order.put(1, _batch(1))
    order.end(1, ValueError("in the midst"))
    order.put(0, _batch(0))
    order.end(0)
    assert [_number(order.take()) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="in the midst"):
        order.take()


def test_nobody_waits_for_a_reader_that_has_closed() -> None:
    order = OrderedBatches(2, bytes_max=SIZE)
    order.put(1, _batch(1))
    ahead = _Thread(lambda: order.put(1, _batch(2)))
    assert ahead.is_waiting
    order.close()
    assert ahead.joined() is False
    assert order.begin() is None
    assert order.take() is None
