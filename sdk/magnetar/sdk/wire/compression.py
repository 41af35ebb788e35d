"""Payload compression: the four codecs of the protocol.

LZ4 is a raw block without frame header, ZLIB a zlib stream, ZSTD a zstd frame, SNAPPY a raw block.
What is decompressed never grows beyond the size that the message states, and that size never beyond
the caller's bound: a small message must not fill the memory.
"""

import zlib
from enum import Enum

import lz4.block
import snappy
import zstandard

from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.pulsar_pb2 import CompressionType


class Compression(Enum):
    """Codecs; the values are the names used on command lines."""

    NONE = "none"
    LZ4 = "lz4"
    ZLIB = "zlib"
    ZSTD = "zstd"
    SNAPPY = "snappy"

    @property
    def wire(self) -> CompressionType:
        return _WIRE[self]


_WIRE = {
    Compression.NONE: CompressionType.NONE,
    Compression.LZ4: CompressionType.LZ4,
    Compression.ZLIB: CompressionType.ZLIB,
    Compression.ZSTD: CompressionType.ZSTD,
    Compression.SNAPPY: CompressionType.SNAPPY,
}


_CODEC_ERRORS = (
    lz4.block.LZ4BlockError,
    zlib.error,
    zstandard.ZstdError,
    snappy.UncompressError,
    # What C code raises for sizes and arguments that make no sense.
    ValueError,
    OverflowError,
)


def compress(codec: Compression, data: bytes) -> bytes:
    """Compress a whole payload."""
    if codec is Compression.LZ4:
        return bytes(lz4.block.compress(data, store_size=False))
    if codec is Compression.ZLIB:
        return zlib.compress(data)
    if codec is Compression.ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    if codec is Compression.SNAPPY:
        return bytes(snappy.compress(data))
    return data


def decompress(codec: int, data: bytes, *, size: int, bytes_max: int) -> bytes:
    """Decompress a payload of `size` bytes (`MessageMetadata.uncompressed_size`).

    Raises:
        MalformedPayloadError: an unknown codec, damaged data, or another size than stated.
    """
    if codec == CompressionType.NONE:
        return data
    if size > bytes_max:
        raise MalformedPayloadError(f"{size} bytes after decompression; allowed are {bytes_max}")
    try:
        result = _decompress(codec, data, size)
    except _CODEC_ERRORS as error:
        raise MalformedPayloadError(f"damaged compressed payload: {error}") from error
    if len(result) != size:
        raise MalformedPayloadError(f"{len(result)} bytes after decompression, expected {size}")
    return result


def _decompress(codec: int, data: bytes, size: int) -> bytes:
    if codec == CompressionType.LZ4:
        return bytes(lz4.block.decompress(data, uncompressed_size=size)) if size else b""
    if codec == CompressionType.ZLIB:
        # One byte more than stated is enough to notice that there is more.
        return zlib.decompressobj().decompress(data, size + 1)
    if codec == CompressionType.ZSTD:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return reader.read(size + 1)
    if codec == CompressionType.SNAPPY:
        if _snappy_size(data) != size:
            raise MalformedPayloadError("a snappy block of another size than the message states")
        return bytes(snappy.uncompress(data))
    raise MalformedPayloadError(f"unknown compression {codec}")


def _snappy_size(data: bytes) -> int:
    """The size a raw snappy block states: a varint of up to five bytes at its start."""
    size = 0
    for at, byte in enumerate(data[:5]):
        size |= (byte & 127) << (7 * at)
        if byte < 128:
            return size
    raise MalformedPayloadError("a snappy block without its size")
