"""From credentials to an identity: methods, the anonymous role, proxies, headers of requests."""

import asyncio
import base64
import threading
from queue import Queue
from typing import Any

import bcrypt
import jwt
import pytest

from magnetar.broker.base.errors import AuthenticationError
from magnetar.broker.security import NOBODY, Credentials, Identity
from magnetar.broker.security.authenticator import credentials_of
from magnetar.broker.security.keys import SecurityConfigError
from magnetar.broker.security.passwords import Passwords, parse_passwords
from tests.unit.broker.harness import Harness

SECRET = b"s" * 32
KEY = f"data:;base64,{base64.b64encode(SECRET).decode()}"


def harness(**settings: Any) -> Harness:
    made = Harness(token_secret_key=KEY, **settings)
    made.security.load()
    return made


def token(role: str) -> bytes:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256").encode()


async def who(harness: Harness, *credentials: Any, **more: Any) -> Identity:
    given = Credentials(*credentials, **more)
    return await harness.security.authenticator.authenticate(given, address="test:1")


async def test_while_it_is_off_everybody_is_nobody_whatever_they_send() -> None:
    made = Harness()
    assert await who(made, "token", b"nonsense") is NOBODY
    assert not made.security.authorizer.is_on


async def test_a_method_that_is_not_configured_is_refused_with_those_that_are() -> None:
    with pytest.raises(AuthenticationError, match="'basic' is not accepted here: accepted: token"):
        await who(harness(), "basic", b"user:password")


@pytest.mark.parametrize("method", ["", "none", "tls"])
async def test_without_credentials_there_is_nothing_to_be_had(method: str) -> None:
    with pytest.raises(AuthenticationError, match="credentials are required"):
        await who(harness(), method)


async def test_without_credentials_one_is_the_anonymous_role_if_there_is_one() -> None:
    made = harness(anonymous_role="guest")
    assert (await who(made, "none")).role == "guest"
    with pytest.raises(AuthenticationError):  # a wrong token is not no token
        await who(made, "token", b"wrong")


@pytest.mark.parametrize("method", ["unknown", "basic", "tls"])
async def test_a_method_that_is_not_configured_is_the_anonymous_role_if_there_is_one(
    method: str,
) -> None:
    made = harness(anonymous_role="guest")
    for data in (b"", b"x"):
        assert (await who(made, method, data)).role == "guest"


async def test_a_certificate_is_a_role_only_if_the_settings_say_so() -> None:
    with pytest.raises(AuthenticationError):
        await who(harness(), "none", certificate_role="alice")


async def test_a_proxy_speaks_for_others_and_never_for_itself() -> None:
    made = harness(proxy_roles=("proxy", "proxy2"))
    identity = await who(made, "token", token("proxy"), original_principal="alice")
    assert identity.role == "alice"
    assert identity.roles == ("alice", "proxy")
    for principal, reason in (("", "give the original principal"), ("proxy2", "another proxy")):
        with pytest.raises(AuthenticationError, match=reason):
            await who(made, "token", token("proxy"), original_principal=principal)


async def test_nobody_else_may_speak_for_others() -> None:
    made = harness(proxy_roles=("proxy",))
    with pytest.raises(AuthenticationError, match="'mallory' is not a proxy"):
        await who(made, "token", token("mallory"), original_principal="root")
    own = await who(made, "token", token("alice"), original_principal="alice")
    assert own.roles == ("alice",)


async def test_a_proxy_names_another_principal_for_a_single_request() -> None:
    made = harness(proxy_roles=("proxy",))
    identity = await who(made, "token", token("proxy"), original_principal="alice")
    other = made.security.authenticator.acting_for(identity, "bob")
    assert other.roles == ("bob", "proxy")
    assert made.security.authenticator.acting_for(identity, "").roles == ("alice", "proxy")
    with pytest.raises(AuthenticationError, match="not valid UTF-8"):
        made.security.authenticator.acting_for(identity, b"\xff")  # type: ignore[arg-type]


def test_headers_hold_credentials() -> None:
    basic = base64.b64encode(b"user:pass").decode()
    assert credentials_of({"authorization": "Bearer abc"}).data == b"abc"
    assert credentials_of({"authorization": f"basic {basic}"}).data == b"user:pass"
    assert credentials_of({}, query_token="abc").data == b"abc"
    assert credentials_of({}, query_token="Bearer abc").data == b"abc"
    assert credentials_of({"authorization": "Bearer x"}, query_token="y").data == b"x"
    assert credentials_of({"x-original-principal": "p"}).original_principal == "p"
    assert credentials_of({"authorization": "Digest x"}).method == "Digest"
    with pytest.raises(AuthenticationError):
        credentials_of({"authorization": "Basic !!"})


def test_credentials_show_nothing_of_themselves() -> None:
    assert "secret" not in repr(Credentials("token", b"secret"))


# Passwords

BCRYPT = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(rounds=4)).decode()
APR1 = "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"
"""Of "secret", as `openssl passwd -apr1 -salt abcdefgh secret` makes it."""


def passwords(waiting_max: int = 10) -> Passwords:
    made = Passwords(secret=b"k" * 32, at_once=1, waiting_max=waiting_max, remembered_max=2)
    made.replace(parse_passwords(f"# users\nbasil:{BCRYPT}\n\nanna:{APR1}\n", what="test"))
    return made


async def test_both_kinds_of_hashes_are_checked() -> None:
    found = passwords()
    assert (await found.authenticate(b"basil:open sesame")).role == "basil"
    assert (await found.authenticate(b"basil:open sesame")).method == "basic"
    assert (await found.authenticate(b"anna:secret")).role == "anna"


@pytest.mark.parametrize("wrong", [b"basil:wrong", b"nobody:x", b"anna:", b"basil:secret", b":"])
async def test_a_wrong_user_and_a_wrong_password_get_the_same_words(wrong: bytes) -> None:
    with pytest.raises(AuthenticationError, match=r"^wrong user or password$"):
        await passwords().authenticate(wrong)


async def test_an_unknown_user_takes_as_long_as_one_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []

    def matches(_: bytes, hashed: str) -> bool:
        checked.append(hashed)
        return True  # As if it were the password of that user.

    monkeypatch.setattr("magnetar.broker.security.passwords.matches", matches)
    found = passwords()
    for name in [f"unknown{n}" for n in range(20)] * 2:
        with pytest.raises(AuthenticationError, match=r"^wrong user or password$"):
            await found.authenticate(f"{name}:open sesame".encode())
    assert set(checked) == {BCRYPT, APR1}
    assert checked[:20] == checked[20:]  # A name always takes the same time, as a user does.


@pytest.mark.parametrize("wrong", [b"", b"basil", b"a:\0b", b"a:" + b"x" * 1023])
async def test_what_is_no_user_and_password_is_refused(wrong: bytes) -> None:
    with pytest.raises(AuthenticationError):
        await passwords().authenticate(wrong)


async def test_a_password_that_was_changed_is_not_remembered() -> None:
    found = passwords()
    await found.authenticate(b"basil:open sesame")
    found.replace({})
    with pytest.raises(AuthenticationError):
        await found.authenticate(b"basil:open sesame")


async def test_passwords_wait_for_each_other_up_to_a_bound() -> None:
    found = passwords(waiting_max=2)
    tried = await asyncio.gather(
        *(found.authenticate(b"basil:wrong%d" % n) for n in range(3)), return_exceptions=True
    )
    assert ["too many" in str(each) for each in tried] == [False, False, True]


async def test_a_check_holds_its_place_until_it_ends_though_the_client_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = Queue[bytes](), threading.Event()

    def matches(password: bytes, _: str) -> bool:
        begun.put(password)
        assert may_end.wait(10)
        return True

    monkeypatch.setattr("magnetar.broker.security.passwords.matches", matches)
    found = passwords(waiting_max=2)
    left = asyncio.create_task(found.authenticate(b"basil:first"))
    assert await asyncio.to_thread(begun.get, timeout=10) == b"first"
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    waiting = asyncio.create_task(found.authenticate(b"basil:second"))
    await asyncio.sleep(0)  # It begins, and waits for the place.
    with pytest.raises(AuthenticationError, match="too many"):
        await found.authenticate(b"basil:third")
    assert begun.empty()
    may_end.set()
    assert (await waiting).role == "basil"
    assert begun.get_nowait() == b"second"


async def test_a_client_that_leaves_before_its_check_frees_its_place() -> None:
    found = passwords(waiting_max=2)
    first = asyncio.create_task(found.authenticate(b"basil:open sesame"))
    left = asyncio.create_task(found.authenticate(b"basil:wrong"))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert (await found.authenticate(b"anna:secret")).role == "anna"
    assert (await first).role == "basil"


async def test_a_check_for_which_there_is_no_thread_frees_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = passwords(waiting_max=1)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
        with pytest.raises(RuntimeError, match="thread"):
            await found.authenticate(b"basil:open sesame")
    async with asyncio.timeout(10):
        assert (await found.authenticate(b"basil:open sesame")).role == "basil"


@pytest.mark.parametrize(
    "line",
    ["basil", "basil:plain", ":hash", f"x:{BCRYPT}x", "x:$2b$31$" + "a" * 53],
    ids=["no hash", "plain text", "no name", "too long", "too many rounds"],  # salts differ
)
def test_a_line_that_is_no_hash_is_named_by_its_number(line: str) -> None:
    with pytest.raises(SecurityConfigError, match="line 2") as caught:
        parse_passwords(f"basil:{BCRYPT}\n{line}\n", what="test")
    assert "plain" not in str(caught.value)
