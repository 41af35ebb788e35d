"""Codecs: foreign bytes, damage, and messages that would fill the memory."""

import sys
import zlib
from collections.abc import Iterator

import pytest

from magnetar.sdk.wire import MalformedPayloadError
from magnetar.sdk.wire.compression import (
    _CODECS,
    Compression,
    _module,
    check_installed,
    compress,
    decompress,
)
from magnetar.sdk.wire.errors import MissingPackageError

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
DATA = b"the same again and again, " * 40


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_data_is_smaller_and_comes_back(codec: Compression) -> None:
    packed = compress(codec, DATA)
    assert len(packed) < len(DATA)
    assert decompress(codec.wire, packed, size=len(DATA), bytes_max=1 << 20) == DATA


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_size_than_stated_is_refused(codec: Compression, difference: int) -> None:
    packed = compress(codec, DATA)
    with pytest.raises(MalformedPayloadError):
        decompress(codec.wire, packed, size=len(DATA) + difference, bytes_max=1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_size_at_the_bound_passes_and_one_more_does_not(codec: Compression) -> None:
    packed = compress(codec, DATA)
    assert decompress(codec.wire, packed, size=len(DATA), bytes_max=len(DATA)) == DATA
    with pytest.raises(MalformedPayloadError):
        decompress(codec.wire, packed, size=len(DATA), bytes_max=len(DATA) - 1)


def test_more_than_stated_is_noticed_without_unpacking_all_of_it() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(MalformedPayloadError):
        decompress(Compression.ZLIB.wire, bomb, size=10, bytes_max=100)


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(MalformedPayloadError):
        decompress(17, b"x", size=1, bytes_max=10)


def test_no_compression_leaves_the_data_alone() -> None:
    assert compress(Compression.NONE, DATA) is DATA
    assert decompress(Compression.NONE.wire, DATA, size=0, bytes_max=0) is DATA


PACKAGED = [codec for codec in CODECS if codec is not Compression.ZLIB]


@pytest.fixture(params=PACKAGED)
def absent(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compression]:
    """A codec whose package is not installed."""
    codec: Compression = request.param
    _module.cache_clear()
    monkeypatch.setitem(sys.modules, _CODECS[codec.wire].module, None)
    yield codec
    _module.cache_clear()


def test_a_codec_without_its_package_says_what_to_install(absent: Compression) -> None:
    for use in (lambda: check_installed(absent), lambda: compress(absent, DATA)):
        with pytest.raises(MissingPackageError, match=r"pip install 'magnetar\[compression\]'"):
            use()
    check_installed(Compression.ZLIB)
    check_installed(Compression.NONE)


def test_a_payload_whose_codec_is_not_installed_is_unreadable_here(absent: Compression) -> None:
    with pytest.raises(MalformedPayloadError, match="not installed"):
        decompress(absent.wire, b"x", size=1, bytes_max=10)
