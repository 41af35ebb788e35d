"""Decryption of messages that their producers have encrypted, with private keys from files.

A plan holds the path of the keys, and no key; executors read them. `{name}` in the path is replaced
by the name of a key, which a message carries. A path without it is one key for all names. If its
file does not exist, the task ends at once: this is a mistake, not a matter of single messages that
`mode` could skip.
"""

from functools import lru_cache
from pathlib import Path

from magnetar.arrow.stored.entries import Decrypt
from magnetar.arrow.stored.errors import OptionError
from magnetar.sdk.errors import MissingPackageError

_OPTION = "privateKeyFile"
_FILES_MAX = 16
"""Most paths whose decrypted data keys a process keeps: decrypting one costs a millisecond."""


def decryption_of(path: str) -> Decrypt | None:
    """Return a function that decrypts messages with the keys at a path; None if the path is empty.

    Raises:
        OptionError: the file cannot be read, or a package is missing.
    """
    if not path:
        return None
    if "{name}" not in path:
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise OptionError(_OPTION, f"{path}: {error.strerror}") from None
    try:
        return _opened(path)
    except MissingPackageError as error:
        raise OptionError(_OPTION, str(error)) from None


@lru_cache(maxsize=_FILES_MAX)
def _opened(path: str) -> Decrypt:
    # Imported here: few tasks need it, and it has to load much.
    from magnetar.sdk.encryption import FileKeyReader, MessageDecryptor

    return MessageDecryptor(FileKeyReader(private_path=path)).decrypt
