"""Messages that clients encrypt themselves: their keys and parameters pass through the broker.
Pure.

The broker encrypts and decrypts nothing: it holds no keys. Source: WebSocket sheet, sections 3 and
4.
"""

import binascii
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from magnetar.broker.websocket.errors import BadFrameError, Code, UpgradeRefusedError
from magnetar.sdk.message import Message
from magnetar.sdk.wire.pulsar_pb2 import (
    CompressionType,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
)

_SIZE_MAX = (1 << 31) - 1
_COMPRESSIONS = {
    "NONE": CompressionType.NONE,
    "LZ4": CompressionType.LZ4,
    "ZLIB": CompressionType.ZLIB,
    "ZSTD": CompressionType.ZSTD,
    "SNAPPY": CompressionType.SNAPPY,
}


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A data key, encrypted with the public key of that name."""

    name: str
    value: bytes
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encryption and compression that a client has applied to one payload."""

    param: bytes = b""
    compression: "CompressionType" = CompressionType.NONE
    uncompressed_bytes: int | None = None


def parse_keys(text: str) -> tuple[EncryptionKey, ...]:
    """Parse `encryptionKeys`: the base64 of a JSON object of keys by name.

    Raises:
        UpgradeRefusedError: 400, also for names alone: the broker cannot encrypt with them.
    """
    if not text:
        return ()
    try:
        body = json.loads(b64decode(text.replace(" ", "+"), validate=True).decode())
    except (ValueError, RecursionError):
        raise UpgradeRefusedError(
            400,
            "encryptionKeys: the base64 of an object with the encrypted keys by their names; "
            "messages are not encrypted here",
        ) from None
    try:
        return tuple(_key(name, value) for name, value in body.items())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UpgradeRefusedError(400, f"encryptionKeys: {error!r}") from None


def _key(name: str, body: Any) -> EncryptionKey:
    metadata = tuple((body.get("metadata") or {}).items())
    for text in (name, *(part for pair in metadata for part in pair)):
        if not isinstance(text, str):
            raise ValueError("a key's metadata is text")
        text.encode()  # Half a surrogate pair is not text.
    return EncryptionKey(name, b64decode(body["keyValue"], validate=True), metadata)


def parse_encoding(body: dict[str, Any], context: str | None) -> Encoding | None:
    """Return the encoding of a publish; None if it has none. Raises: BadFrameError."""
    param, codec = body.get("encryptionParam"), body.get("compressionType")
    size = body.get("uncompressedMessageSize")
    if param is None and codec is None and size is None:
        return None
    if (codec is None) != (size is None):
        raise BadFrameError(
            Code.BAD_JSON,
            "compressionType and uncompressedMessageSize belong together",
            context=context,
        )
    compression = CompressionType.NONE
    if codec is not None:
        if not isinstance(codec, str) or codec not in _COMPRESSIONS:
            raise BadFrameError(Code.BAD_JSON, "an unknown compressionType", context=context)
        compression = _COMPRESSIONS[codec]
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _SIZE_MAX:
            raise BadFrameError(Code.BAD_JSON, "uncompressedMessageSize", context=context)
    try:
        data = b64decode(param or "", validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadFrameError(
            Code.BAD_PAYLOAD, f"encryptionParam: {error}", context=context
        ) from None
    return Encoding(data, compression, size)


def add_to(
    metadata: MessageMetadata, keys: tuple[EncryptionKey, ...], encoding: Encoding | None
) -> None:
    """Write keys and encoding into the metadata of a message."""
    for key in keys:
        metadata.encryption_keys.append(
            EncryptionKeys(
                key=key.name,
                value=key.value,
                metadata=[KeyValue(key=name, value=value) for name, value in key.metadata],
            )
        )
    if encoding is not None:
        metadata.encryption_param = encoding.param
        if encoding.uncompressed_bytes is not None:
            metadata.compression = encoding.compression
            metadata.uncompressed_size = encoding.uncompressed_bytes


def context_of(message: Message) -> dict[str, object]:
    """Return the `encryptionContext` of a message that is still encrypted."""
    metadata = message.metadata
    is_batch = metadata.HasField("num_messages_in_batch")
    return {
        "keys": {
            key.key: {
                "keyValue": b64encode(key.value).decode(),
                "metadata": {pair.key: pair.value for pair in key.metadata},
            }
            for key in metadata.encryption_keys
        },
        "param": b64encode(metadata.encryption_param).decode(),
        "algorithm": metadata.encryption_algo,
        "compressionType": CompressionType.Name(metadata.compression),
        "uncompressedMessageSize": metadata.uncompressed_size,
        "batchSize": metadata.num_messages_in_batch if is_batch else None,
    }
