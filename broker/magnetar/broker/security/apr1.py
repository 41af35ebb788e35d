"""Apache's variant of MD5-crypt, `$apr1$salt$digest`, as in many password files. Pure.

A thousand rounds of MD5: it stops nobody for long who has the file, so bcrypt is better; it is here
for files that exist. Source: the algorithm's description in Apache's documentation of password
formats.
"""

from hashlib import md5

PREFIX = "$apr1$"

_ALPHABET = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ROUNDS = 1000
_ORDER = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))


def hashed(password: bytes, salt: str) -> str:
    """The whole text of a hash; of the salt, eight characters count."""
    salt = salt[:8]
    seasoning = salt.encode()
    first = md5(password + PREFIX.encode() + seasoning, usedforsecurity=False)
    inner = md5(password + seasoning + password, usedforsecurity=False).digest()
    for at in range(0, len(password), 16):
        first.update(inner[: min(16, len(password) - at)])
    bits = len(password)
    while bits:
        first.update(b"\x00" if bits & 1 else password[:1])
        bits >>= 1
    digest = first.digest()
    for number in range(_ROUNDS):
        round_ = md5(password if number & 1 else digest, usedforsecurity=False)
        if number % 3:
            round_.update(seasoning)
        if number % 7:
            round_.update(password)
        round_.update(digest if number & 1 else password)
        digest = round_.digest()
    return f"{PREFIX}{salt}${_encoded(digest)}"


def _encoded(digest: bytes) -> str:
    text = ""
    for high, middle, low in _ORDER:
        text += _six_bits(digest[high] << 16 | digest[middle] << 8 | digest[low], 4)
    return text + _six_bits(digest[11], 2)


def _six_bits(value: int, characters: int) -> str:
    return "".join(_ALPHABET[(value >> 6 * each) & 63] for each in range(characters))
