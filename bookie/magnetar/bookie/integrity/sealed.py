"""Small files of JSON with a checksum that detects a changed byte. Pure.

Content: the text, a line feed, the CRC32C of the text as 8 hex digits, a line feed.
"""

import google_crc32c

_SEAL_BYTES = 10


def seal(text: bytes) -> bytes:
    """Return the content of the file for a text."""
    return b"%s\n%08x\n" % (text, google_crc32c.value(text))


def open_sealed(data: bytes) -> bytes | None:
    """Return the text; None if the file is damaged."""
    text = data[:-_SEAL_BYTES]
    return text if data == seal(text) else None
