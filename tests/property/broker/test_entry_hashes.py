"""A producer and the broker agree about the entry bucket of a key."""

from hypothesis import assume, given
from hypothesis import strategies as st

from magnetar.broker.topic.sticky_key import entry_hash_of
from magnetar.sdk.pending_sends import PendingSend
from magnetar.sdk.producing.batch_container import BatchContainer
from magnetar.sdk.producing.message_encoder import MessageEncoder
from magnetar.sdk.producing.outgoing import OutgoingMessage, entry_hash_fields_of
from magnetar.sdk.settings import ProducerSettings
from magnetar.sdk.wire.frames import FrameDecoder


def _entry_of(send: PendingSend) -> bytes:
    ((_, entry),) = FrameDecoder().feed(send.prefix + send.body)
    return bytes(entry)


@given(
    st.none() | st.text(max_size=20) | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
)
def test_a_batch_that_says_its_hashes_is_in_the_bucket_of_a_single_message_with_its_key(
    key: str | bytes | None, ordering_key: bytes | None
) -> None:
    extra = OutgoingMessage(payload=b"x", key=key, ordering_key=ordering_key).metadata()
    assume(extra is not None)
    assert extra is not None
    encoder = MessageEncoder("t", ProducerSettings(), None)
    encoder.attach(3, "p", b"", 10_000)
    container = BatchContainer(
        messages_max=10, bytes_max=1_000, by_key=False, entry_buckets=(0x8000,)
    )
    container.add(b"x", extra, None, now_s=0.0)
    (batch,) = (
        encoder.batch(each, 1, transaction=None, publish_time_ms=1) for each in container.take()
    )
    (single,) = encoder.single(
        b"x",
        extra.SerializePartialToString() + entry_hash_fields_of(extra),
        0,
        on_sent=None,
        sent_at_s=0.0,
        publish_time_ms=1,
    )
    assert entry_hash_of(_entry_of(batch)) == entry_hash_of(_entry_of(single))


@given(st.text(max_size=20), st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20))
def test_all_messages_of_a_key_are_in_one_bucket(
    key: str, one: bytes | None, other: bytes | None
) -> None:
    """Whatever their ordering keys; and an entry of a client that says no hash is in it, too."""
    first, second = (
        OutgoingMessage(payload=b"x", key=key, ordering_key=each).metadata()
        for each in (one, other)
    )
    assert first is not None
    assert second is not None
    assert entry_hash_fields_of(first) == entry_hash_fields_of(second)
    encoder = MessageEncoder("t", ProducerSettings(), None)
    encoder.attach(3, "p", b"", 10_000)
    plain = OutgoingMessage(payload=b"x", key=key).metadata()
    assert plain is not None
    unsaid, said = (
        encoder.single(
            b"x",
            plain.SerializePartialToString() + fields,
            0,
            on_sent=None,
            sent_at_s=0.0,
            publish_time_ms=1,
        )[0]
        for fields in (b"", entry_hash_fields_of(plain))
    )
    assert entry_hash_of(_entry_of(unsaid)) == entry_hash_of(_entry_of(said))
