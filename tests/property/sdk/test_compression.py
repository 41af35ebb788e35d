"""Every codec gives back what it was given; damaged data is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.wire import MalformedPayloadError
from magnetar.sdk.wire.compression import Compression, compress, decompress


@pytest.mark.parametrize("codec", list(Compression))
@given(data=st.binary(max_size=500))
def test_round_trip(codec: Compression, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec.wire, packed, size=len(data), bytes_max=1_000) == data


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec.wire])
@given(data=st.binary(max_size=200), size=st.integers(0, 2_000))
def test_arbitrary_data_gives_the_stated_size_or_our_error(
    codec: Compression, data: bytes, size: int
) -> None:
    try:
        result = decompress(codec.wire, data, size=size, bytes_max=1_000)
    except MalformedPayloadError:
        return
    assert len(result) == size <= 1_000
