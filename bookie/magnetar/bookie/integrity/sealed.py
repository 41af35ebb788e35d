"""Small JSON files that notice when a byte of them was changed: the text, and its CRC32C. Pure.

`text`, a line feed, the CRC of `text` as 8 hex digits, a line feed.
"""

import google_crc32c

_SEAL_BYTES = 10


def seal(text: bytes) -> bytes:
    """The bytes of the file."""
    return b"%s\n%08x\n" % (text, google_crc32c.value(text))


def open_sealed(data: bytes) -> bytes | None:
    """The text; None if the file is damaged."""
    text = data[:-_SEAL_BYTES]
    return text if data == seal(text) else None
