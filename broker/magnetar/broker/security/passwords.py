"""Users and passwords in an htpasswd file: lines `user:$2y$…` (bcrypt) or `user:$apr1$…`.

A check is slow on purpose. So checks run on threads, few at a time, and a keyed digest of each
password that was right is remembered. For an unknown user, the password is checked against the hash
of another user, so that the time does not tell which users exist, and the error text is that of a
wrong password.
"""

import asyncio
import hmac
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b, md5

import bcrypt

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security.identity import Identity
from magnetar.broker.security.keys import SecurityConfigError

METHOD = "basic"

_BCRYPT = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_APR1 = re.compile(r"\$apr1\$([^$]{1,8})\$[./A-Za-z0-9]{22}")
_BCRYPT_BYTES = 72
"""Bytes of a password that bcrypt uses; it ignores the rest."""
_BCRYPT_COST_MAX = 14
PASSWORD_BYTES_MAX = 1024
_WRONG = "wrong user or password"
_APR1_PREFIX = "$apr1$"
_APR1_ALPHABET = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_APR1_ROUNDS = 1000
_APR1_ORDER = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))


def parse_passwords(text: str, *, what: str) -> dict[str, str]:
    """Return the hashes by user.

    Raises:
        SecurityConfigError: a line has another form; the text names the line number only.
    """
    hashes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, separator, hashed = line.strip().partition(":")
        match = _BCRYPT.fullmatch(hashed)
        if not separator or not user or not (match or _APR1.fullmatch(hashed)):
            raise SecurityConfigError(
                f"{what}: line {number} is not user:hash with a hash of bcrypt or apr1; "
                "`htpasswd -B` makes such lines"
            )
        if match and not 4 <= int(match[1]) <= _BCRYPT_COST_MAX:
            raise SecurityConfigError(
                f"{what}: line {number}: the bcrypt cost is {int(match[1])}; allowed are 4 to "
                f"{_BCRYPT_COST_MAX}"
            )
        hashes[user] = hashed
    return hashes


def matches(password: bytes, hashed: str) -> bool:
    """Whether a hash is that of the password. Slow on purpose."""
    if hashed.startswith(_APR1_PREFIX):
        salt = hashed[len(_APR1_PREFIX) :].partition("$")[0]
        return hmac.compare_digest(_apr1_hashed(password, salt), hashed)
    return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode())


def user_and_password(data: bytes) -> tuple[str, bytes]:
    """Split `user:password`.

    Raises:
        AuthenticationError: the data has another form.
    """
    user, separator, password = data.partition(b":")
    if not separator or b"\0" in data or len(data) > PASSWORD_BYTES_MAX:
        raise AuthenticationError("credentials of the method basic are user:password")
    try:
        return user.decode(), password
    except UnicodeDecodeError:
        raise AuthenticationError(_WRONG) from None


class Passwords:
    """Checks users and passwords."""

    def __init__(
        self, *, secret: bytes, at_once: int, waiting_max: int, remembered_max: int
    ) -> None:
        """`secret`: random bytes of this process, the key of the digests."""
        self._secret = secret
        self._at_once = asyncio.Semaphore(at_once)
        self._waiting = 0
        self._waiting_max = waiting_max
        self._remembered_max = remembered_max
        self._remembered: dict[bytes, None] = {}
        self._hashes: Mapping[str, str] = {}
        self._decoys: Sequence[str] = ()

    def replace(self, hashes: Mapping[str, str]) -> None:
        """Replace the users and the hashes of their passwords."""
        self._hashes = dict(hashes)
        self._decoys = tuple(hashes.values())
        self._remembered.clear()

    async def authenticate(self, data: bytes) -> Identity:
        """Return the identity of the user in `user:password`.

        Raises:
            AuthenticationError: user or password are wrong, or too many checks are waiting.
        """
        user, password = user_and_password(data)
        hashed = self._hashes.get(user)
        digest = self._digest(data + (hashed or "").encode())
        if digest not in self._remembered:
            await self._check(password, hashed, self._decoy(user))
            if self._hashes.get(user) != hashed:
                raise AuthenticationError(_WRONG)
            self._remember(digest)
        return Identity(user, METHOD)

    def _decoy(self, user: str) -> str | None:
        """Return the hash to check an unknown user against; None if there are no users.

        It is the hash of a user, and always that of the same one for a name. One decoy for all
        would differ from users whose hashes have another cost, or are of apr1.
        """
        if not self._decoys:
            return None
        number = int.from_bytes(self._digest(user.encode()), "big")
        return self._decoys[number % len(self._decoys)]

    async def _check(self, password: bytes, hashed: str | None, decoy: str | None) -> None:
        checked = hashed or decoy
        if checked is None:
            raise AuthenticationError(_WRONG)
        if self._waiting >= self._waiting_max:
            raise AuthenticationError("too many passwords are being checked: try again")
        self._waiting += 1
        try:
            await self._at_once.acquire()
        except BaseException:
            self._waiting -= 1
            raise
        is_right = await asyncio.shield(self._begin_check(password, checked))
        if hashed is None or not is_right:
            raise AuthenticationError(_WRONG)

    def _begin_check(self, password: bytes, hashed: str) -> "asyncio.Future[bool]":
        """Begin a check on a thread.

        A thread cannot be cancelled. So a check keeps its place until it ends, even if its client
        disconnects: else a client that connects again and again could occupy all threads.
        """
        loop = asyncio.get_running_loop()
        try:
            checking = loop.run_in_executor(None, matches, password, hashed)
        except BaseException:
            self._give_place_back()  # there is no thread for it now
            raise
        checking.add_done_callback(self._check_done)
        return checking

    def _check_done(self, checking: "asyncio.Future[bool]") -> None:
        self._give_place_back()
        if not checking.cancelled():
            checking.exception()  # retrieved, even if the client has left

    def _give_place_back(self) -> None:
        self._waiting -= 1
        self._at_once.release()

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, key=self._secret, digest_size=32).digest()

    def _remember(self, digest: bytes) -> None:
        if self._remembered_max:
            while len(self._remembered) >= self._remembered_max:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[digest] = None


def _apr1_hashed(password: bytes, salt: str) -> str:
    """Return the whole text of a hash in Apache's variant of MD5-crypt, `$apr1$salt$digest`. Only
    eight characters of the salt count.

    A thousand rounds of MD5 do not stop an attacker who has the file for long. bcrypt is better;
    this is for files that exist. Source: Apache's documentation of password formats.
    """
    salt = salt[:8]
    seasoning = salt.encode()
    first = md5(password + _APR1_PREFIX.encode() + seasoning, usedforsecurity=False)
    inner = md5(password + seasoning + password, usedforsecurity=False).digest()
    for at in range(0, len(password), 16):
        first.update(inner[: min(16, len(password) - at)])
    bits = len(password)
    while bits:
        first.update(b"\x00" if bits & 1 else password[:1])
        bits >>= 1
    digest = first.digest()
    for number in range(_APR1_ROUNDS):
        round_ = md5(password if number & 1 else digest, usedforsecurity=False)
        if number % 3:
            round_.update(seasoning)
        if number % 7:
            round_.update(password)
        round_.update(digest if number & 1 else password)
        digest = round_.digest()
    return f"{_APR1_PREFIX}{salt}${_encoded(digest)}"


def _encoded(digest: bytes) -> str:
    text = ""
    for high, middle, low in _APR1_ORDER:
        text += _six_bits(digest[high] << 16 | digest[middle] << 8 | digest[low], 4)
    return text + _six_bits(digest[11], 2)


def _six_bits(value: int, characters: int) -> str:
    return "".join(_APR1_ALPHABET[(value >> 6 * each) & 63] for each in range(characters))
