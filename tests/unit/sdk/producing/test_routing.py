"""Hashes as the official clients have them, and which partition a message goes to."""

from itertools import pairwise
from random import Random

import pytest

from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.producing.routing import (
    Hashing,
    PartitionRouter,
    Router,
    RoutingMode,
)


def router(
    routing: RoutingMode | Router = RoutingMode.ROUND_ROBIN,
    batch: tuple[int, int, float] | None = None,
    hashing: Hashing = Hashing.JAVA_STRING,
) -> PartitionRouter:
    return PartitionRouter(routing, hashing, batch=batch, random=Random(1))


def choices(of: PartitionRouter, times_s: list[float], size: int = 1, partitions: int = 3) -> str:
    """How often in a row each choice was made, as in 2,2,1."""
    message = OutgoingMessage(payload=bytes(size))
    chosen = [of.choose(message, partitions, now_s) for now_s in times_s]
    runs = [1]
    for before, after in pairwise(chosen):
        assert after in (before, (before + 1) % partitions)
        if after == before:
            runs[-1] += 1
        else:
            runs.append(1)
    return ",".join(map(str, runs))


def test_without_batches_each_message_goes_to_the_next_partition() -> None:
    assert choices(router(), [0.0] * 7) == "1,1,1,1,1,1,1"


def test_with_batches_the_next_partition_comes_when_a_batch_is_full_or_its_delay_over() -> None:
    assert choices(router(batch=(2, 1_000, 1.0)), [10.0] * 5) == "2,2,1"
    assert choices(router(batch=(9, 10, 1.0)), [10.0] * 5, size=5) == "2,2,1"
    assert choices(router(batch=(9, 1_000, 1.0)), [10.0, 10.5, 11.0, 11.5, 12.0]) == "2,2,1"
    assert choices(router(batch=(9, 1_000, 0.0)), [10.0, 10.0005, 10.0015]) == "2,1"


def test_a_single_partition_stays_the_same_and_is_not_always_the_first() -> None:
    of = router(RoutingMode.SINGLE_PARTITION)
    assert len({of.choose(OutgoingMessage(payload=b""), 3, float(at)) for at in range(9)}) == 1
    starts = {
        PartitionRouter(
            RoutingMode.SINGLE_PARTITION, Hashing.MURMUR3, batch=None, random=Random(seed)
        ).choose(OutgoingMessage(payload=b""), 3, 0.0)
        for seed in range(30)
    }
    assert starts == {0, 1, 2}


def test_a_single_partition_stays_the_same_when_partitions_are_added() -> None:
    for seed in range(30):
        of = PartitionRouter(
            RoutingMode.SINGLE_PARTITION, Hashing.MURMUR3, batch=None, random=Random(seed)
        )
        message = OutgoingMessage(payload=b"")
        chosen = [of.next_run(3), of.choose(message, 3, 0.0)]
        chosen += [of.next_run(8), of.choose(message, 8, 0.0)]
        assert len(set(chosen)) == 1
        assert of.choose(message, 1, 0.0) == 0  # The segments of a scalable topic can be merged.


@pytest.mark.parametrize("mode", list(RoutingMode))
@pytest.mark.parametrize("hashing", list(Hashing))
def test_a_key_decides_in_every_mode(mode: RoutingMode, hashing: Hashing) -> None:
    of = router(mode, hashing=hashing)
    for key in ("k1", "hello", "ä"):
        message = OutgoingMessage(payload=b"", key=key)
        assert of.choose(message, 7, 0.0) == hashing.of(key) % 7
    binary = OutgoingMessage(payload=b"", key=b"\xff")  # travels, and counts, as base64
    assert of.choose(binary, 7, 0.0) == hashing.of("/w==") % 7


def test_an_application_chooses_for_itself_within_bounds() -> None:
    of = router(lambda message, partitions: len(message.payload))
    assert of.choose(OutgoingMessage(payload=b"ab", key="k1"), 3, 0.0) == 2
    with pytest.raises(ValueError, match="partition 3; there are 3"):
        of.choose(OutgoingMessage(payload=b"abc"), 3, 0.0)
