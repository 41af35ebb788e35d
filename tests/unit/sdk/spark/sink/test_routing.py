"""Partitions are those that the official clients choose."""

import hashlib
import random

import pyarrow as pa
import pytest

from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.routing import Hashing, PartitionRouter, RoutingMode
from magnetar.sdk.spark.sink.attempts import ROUND_ROBIN_ROWS, Router, runs
from magnetar.sdk.wire.key_hashes import java_string_hash


def test_a_key_always_goes_to_one_partition_and_rows_without_one_take_turns() -> None:
    keys = pa.array([b"a", None, b"b", b"a", None])
    router = Router(3, first=1, murmur=False)
    first = router.route(keys, 5).to_pylist()
    assert first[0] == first[3] == java_string_hash("a") % 3
    assert first[1] == first[4] == 1
    router.route(None, ROUND_ROBIN_ROWS - 5)
    assert set(router.route(None, ROUND_ROBIN_ROWS).to_pylist()) == {2}
    assert router.route(None, 1).to_pylist() == [0]


@pytest.mark.parametrize("hashing", Hashing)
def test_a_key_that_is_not_text_goes_where_clients_send_it(hashing: Hashing) -> None:
    """Messages of one key stay in order only if all producers agree on its partition."""
    keys = [hashlib.md5(b"%d" % number).digest() for number in range(50)]
    router = Router(8, first=0, murmur=hashing is Hashing.MURMUR3)
    found = router.route(pa.array(keys, pa.binary()), len(keys)).to_pylist()
    sdk = PartitionRouter(RoutingMode.ROUND_ROBIN, hashing, batch=None, random=random.Random(1))
    assert found == [sdk.choose(OutgoingMessage(payload=b"", key=key), 8, 0.0) for key in keys]


def test_a_retry_in_other_pieces_routes_alike() -> None:
    rows = 3 * ROUND_ROBIN_ROWS + 7
    whole = Router(4, first=2, murmur=True).route(None, rows).to_pylist()
    router, pieces = Router(4, first=2, murmur=True), []
    for size in (1, 999, 1_001, rows - 2_001):
        pieces += router.route(None, size).to_pylist()
    assert pieces == whole


def test_runs_are_of_equal_values() -> None:
    assert runs(pa.array([1, 1, 2, None, None])) == [(1, 0, 2), (2, 2, 3), (None, 3, 5)]
