"""Payload compression: the four codecs of the protocol.

LZ4 is a raw block without frame header, ZLIB a zlib stream, ZSTD a zstd frame, SNAPPY a raw block.
Decompressed data never grow beyond the size that the message states, and that size never beyond the
caller's bound: a small message must not fill the memory.

The package of a codec is loaded when the codec is first used: a client need not have all of them.
"""

import zlib
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from magnetar.sdk.wire.errors import MalformedPayloadError, MissingPackageError
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


class _Codec(NamedTuple):
    """Source of a codec."""

    module: str
    error: str
    """Name of the module's error for damaged data."""
    package: str


_CODECS: dict[int, _Codec] = {
    CompressionType.LZ4: _Codec("lz4.block", "LZ4BlockError", "lz4"),
    CompressionType.ZLIB: _Codec("zlib", "error", ""),
    CompressionType.ZSTD: _Codec("zstandard", "ZstdError", "zstandard"),
    CompressionType.SNAPPY: _Codec("snappy", "UncompressError", "python-snappy"),
}


@cache
def _module(codec: int) -> Any:
    """Return the module of a codec. Any: most of them have no types.

    Raises:
        MissingPackageError: the package is not installed.
    """
    wanted = _CODECS[codec]
    try:
        return import_module(wanted.module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"compression {wanted.module.partition('.')[0]} needs the package {wanted.package}, "
            "which is not installed: pip install 'magnetar[compression]'"
        ) from error


def check_installed(codec: Compression) -> None:
    """Load the package of a codec.

    Raises:
        MissingPackageError: the package is not installed; the message says how to install it.
    """
    if codec is not Compression.NONE:
        _module(codec.wire)


def compress(codec: Compression, data: bytes) -> bytes:
    """Compress a whole payload.

    Raises:
        MissingPackageError: the package of the codec is not installed.
    """
    if codec is Compression.LZ4:
        return bytes(_module(codec.wire).compress(data, store_size=False))
    if codec is Compression.ZLIB:
        return zlib.compress(data)
    if codec is Compression.ZSTD:
        return bytes(_module(codec.wire).ZstdCompressor().compress(data))
    if codec is Compression.SNAPPY:
        return bytes(_module(codec.wire).compress(data))
    return data


def decompress(codec: int, data: bytes, *, size: int, bytes_max: int) -> bytes:
    """Decompress a payload of `size` bytes (`MessageMetadata.uncompressed_size`).

    Raises:
        MalformedPayloadError: the codec is unknown, the data are damaged, the size differs from the
            stated one, or the codec's package is not installed, so the payload is unreadable here.
    """
    if codec == CompressionType.NONE:
        return data
    if size > bytes_max:
        raise MalformedPayloadError(f"{size} bytes after decompression; allowed are {bytes_max}")
    if codec not in _CODECS:
        raise MalformedPayloadError(f"unknown compression {codec}")
    try:
        module = _module(codec)
    except MissingPackageError as error:
        raise MalformedPayloadError(str(error)) from error
    # The last two are raised by C code for impossible sizes and arguments.
    failures = (getattr(module, _CODECS[codec].error), ValueError, OverflowError)
    try:
        result = _decompress(module, codec, data, size)
    except failures as error:
        raise MalformedPayloadError(f"damaged compressed payload: {error}") from error
    if len(result) != size:
        raise MalformedPayloadError(f"{len(result)} bytes after decompression, expected {size}")
    return result


def _decompress(module: Any, codec: int, data: bytes, size: int) -> bytes:
    if codec == CompressionType.LZ4:
        return bytes(module.decompress(data, uncompressed_size=size)) if size else b""
    if codec == CompressionType.ZLIB:
        # One byte more than stated is enough to notice excess data.
        return zlib.decompressobj().decompress(data, size + 1)
    if codec == CompressionType.ZSTD:
        with module.ZstdDecompressor().stream_reader(data) as reader:
            return bytes(reader.read(size + 1))
    if _snappy_size(data) != size:
        raise MalformedPayloadError("a snappy block of another size than the message states")
    return bytes(module.uncompress(data))


def _snappy_size(data: bytes) -> int:
    """Return the size stated by a raw snappy block: a varint of up to five bytes at its start."""
    size = 0
    for at, byte in enumerate(data[:5]):
        size |= (byte & 127) << (7 * at)
        if byte < 128:
            return size
    raise MalformedPayloadError("a snappy block without its size")
