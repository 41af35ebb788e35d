"""The file with the operator's keys for objects: one key per line, `ID HEX`.

    # openssl rand -hex 32
    2026-01 8f0c…

Several keys are for rotation: new objects get the one that the settings name, and all of them open
old objects. The file is read once, when a process starts. Errors show only ids from it.

Source: tiered storage, section 22.
"""

import os
import re
import stat
from pathlib import Path

from magnetar.ledger.errors import ObjectKeyConfigError
from magnetar.ledger.offloading.object_encryption import KEY_BYTES, ObjectKeyRing

FILE_BYTES_MAX = 256 << 10
"""Largest file that is read: more than a thousand keys."""

_KEY_DIGITS = f"[0-9A-Fa-f]{{{2 * KEY_BYTES}}}"
KEY_ID_PATTERN = rf"(?!{_KEY_DIGITS}\Z)[A-Za-z0-9][A-Za-z0-9._-]{{0,63}}"
"""Pattern of ids, which are shown. An id that looks like a key is refused: it may be a key in the
wrong place."""

_TOO_OPEN = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
"""Permissions that the file must not give. A group may read, since Kubernetes gives mounted secrets
to one."""

_KEY_ID = re.compile(KEY_ID_PATTERN)
_KEY = re.compile(_KEY_DIGITS)


def read_object_keys(
    path: Path, *, new_key_id: str = "", source: str = "object_key_file"
) -> ObjectKeyRing:
    """Read the keys of a process.

    Args:
        new_key_id: the key for new objects; empty: those stay plain.
        source: the setting or option that names the file, for errors.

    Raises:
        ObjectKeyConfigError: the file cannot be read, has too open permissions or a wrong form, or
            lacks that key.
    """
    text = _read(path, source)
    keys = parse_object_keys(text, where=f"{source} {path}")
    if new_key_id and new_key_id not in keys:
        raise ObjectKeyConfigError(
            f"{source} {path} has no key {new_key_id!r} for new objects (it has "
            f"{', '.join(map(repr, keys))}): add it, or name one of these as object_key_id"
        )
    return ObjectKeyRing(keys, new_key_id, source, os.urandom)


def parse_object_keys(text: str, *, where: str) -> dict[str, bytes]:
    """Return the keys in the text of a file, by their ids; at least one. Pure.

    Raises:
        ObjectKeyConfigError: names the line, and shows nothing of it.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()
        if len(words) != 2 or not _KEY_ID.fullmatch(words[0]) or not _KEY.fullmatch(words[1]):
            raise ObjectKeyConfigError(
                f"{where}, line {number}: expected `ID HEX`, an id of letters, digits and ._- (at "
                f"most 64) and a key of {2 * KEY_BYTES} hex digits, as `openssl rand -hex "
                f"{KEY_BYTES}` makes it"
            )
        key_id, secret = words[0], bytes.fromhex(words[1])
        if key_id in keys:
            raise ObjectKeyConfigError(
                f"{where}, line {number}: the key {key_id!r} is there twice; give each an id"
            )
        keys[key_id] = secret
    if not keys:
        raise ObjectKeyConfigError(f"{where} has no key; make one with `openssl rand -hex 32`")
    return keys


def _read(path: Path, source: str) -> str:
    try:
        # Mode and bytes of the same file, even if its name is reused meanwhile. O_NONBLOCK: opening
        # a pipe or a device may block, and reading one may never end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ObjectKeyConfigError(f"{source} {path} is not a file")
            mode = stat.S_IMODE(found.st_mode)
            if mode & _TOO_OPEN:
                raise ObjectKeyConfigError(
                    f"{source} {path} has the mode {mode:04o}: others may read or change it. Keep "
                    f"it to its owner: chmod 600 {path}"
                )
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ObjectKeyConfigError(f"{source}: cannot read {path}: {reason}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ObjectKeyConfigError(f"{source} {path} is longer than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ObjectKeyConfigError(f"{source} {path} is not a text in ASCII") from None
