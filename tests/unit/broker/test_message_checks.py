"""What a topic asks of messages beyond a checksum: encryption, size, sequence ids. The codes."""

from typing import Any

import pytest

from magnetar.broker.features.deduplication import Deduplication
from magnetar.broker.policies.model import DEFAULTS
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.unit.broker.memory_parts import feature_of
from tests.waiting import settle

_KEYS = [pb.EncryptionKeys(key="k", value=b"encrypted")]
_ERROR = BaseCommand.SEND_ERROR
_RECEIPT = BaseCommand.SEND_RECEIPT


async def _producing(harness: Harness, **fields: Any) -> Client:
    client = harness.client()
    assert (await client.produce(**fields)).type == BaseCommand.PRODUCER_SUCCESS
    return client


def _apply(harness: Harness, **policies: Any) -> None:
    harness.topic.apply_policies(DEFAULTS.with_values(**policies))


async def _outcome(client: Client, payload: bytes, **send: Any) -> int | None:
    """The code that one message is refused with; None: it is stored."""
    client.send_bytes(send_frame(0, 5, payload=payload, **send))
    await settle()
    command = client.take()
    if command.type == _RECEIPT:
        return None
    assert command.type == _ERROR
    assert command.send_error.sequence_id == 5
    return command.send_error.error


# Encryption


async def test_a_topic_that_requires_encryption_takes_no_other_producers() -> None:
    harness = Harness()
    await _producing(harness)
    _apply(harness, encryption_required=True)
    answer = await harness.client().produce()
    assert answer.error.error == pb.ServerError.MetadataError
    await _producing(harness, encrypted=True)


async def test_producers_that_do_not_encrypt_are_closed_when_it_is_required() -> None:
    harness = Harness()
    plain, encrypting = await _producing(harness), await _producing(harness, encrypted=True)
    _apply(harness, encryption_required=True)
    assert plain.commands() == [BaseCommand.CLOSE_PRODUCER]
    assert encrypting.commands() == []


@pytest.mark.parametrize("is_required", [False, True])
async def test_who_says_that_it_encrypts_must_do_so(is_required: bool) -> None:
    harness = Harness()
    client = await _producing(harness, encrypted=True)
    _apply(harness, encryption_required=is_required)
    assert await _outcome(client, entry(b"plain")) == pb.ServerError.MetadataError
    assert await _outcome(client, entry(b"hidden", encryption_keys=_KEYS)) is None
    assert not client.io.is_closed


async def test_others_may_encrypt() -> None:
    client = await _producing(Harness())
    assert await _outcome(client, entry(b"hidden", encryption_keys=_KEYS)) is None


# Size


@pytest.mark.parametrize(("size", "code"), [(2_000, None), (2_001, pb.ServerError.NotAllowedError)])
async def test_a_topic_may_have_a_limit_below_the_brokers(size: int, code: int | None) -> None:
    harness = Harness()
    client = await _producing(harness)
    _apply(harness, max_message_bytes=2_000)
    assert await _outcome(client, entry(b"x" * size)) == code
    _apply(harness, max_message_bytes=0)
    assert await _outcome(client, entry(b"x" * size)) is None


async def test_chunks_are_not_measured_by_it() -> None:
    harness = Harness()
    client = await _producing(harness)
    _apply(harness, max_message_bytes=2_000)
    chunk = entry(b"x" * 3_000, uuid="u", num_chunks_from_msg=2, chunk_id=0)
    assert await _outcome(client, chunk, is_chunk=True) is None


# Sequence ids


@pytest.mark.parametrize(
    ("highest", "code"), [(0, None), (4, pb.ServerError.MetadataError), (5, None), (6, None)]
)
async def test_the_lowest_sequence_id_is_not_above_the_highest(
    highest: int, code: int | None
) -> None:
    client = await _producing(Harness())
    assert await _outcome(client, entry(b"-"), highest_sequence_id=highest) == code
    assert not client.io.is_closed


@pytest.mark.parametrize(
    ("deduplication", "behind_it"),
    [(False, [_RECEIPT, _RECEIPT]), (True, [BaseCommand.CLOSE_PRODUCER])],
)
async def test_a_refusal_is_answered_in_its_place(
    deduplication: bool, behind_it: list[int]
) -> None:
    """Trap 4, with every check on. With deduplication nothing behind it is taken."""
    harness = Harness(deduplication=deduplication)
    client = await _producing(harness, encrypted=True, producer_name="p")
    harness.log.is_immediate = False
    good = [
        send_frame(0, each, payload=entry(b"-", sequence_id=each, encryption_keys=_KEYS))
        for each in range(3)
    ]
    plain = send_frame(0, 9, payload=entry(b"-", sequence_id=9))
    client.send_bytes(good[0] + plain + good[1] + good[2])
    harness.log.confirm()
    kinds = client.commands()
    assert kinds == [_RECEIPT, _ERROR, *behind_it]
    if deduplication:
        assert feature_of(harness.topic, Deduplication).last_sequence_id("p") == 0
