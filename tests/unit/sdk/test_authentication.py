"""Credentials that change."""

import asyncio
import threading
from pathlib import Path

import pytest

from magnetar.sdk import ClientSettings
from magnetar.sdk.authentication import OAuth2ClientCredentials, TokenAuthentication
from magnetar.sdk.errors import CredentialsError, IssuerUnavailableError
from tests.waiting import until


async def test_a_token_file_that_is_gone_for_a_moment_is_worth_another_try(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    authentication = TokenAuthentication(path=path)
    assert await authentication.data() == b"first"
    path.unlink()
    with pytest.raises(CredentialsError) as gone:
        await authentication.data()
    path.write_text("")
    with pytest.raises(CredentialsError) as empty:
        await authentication.data()
    assert (gone.value.retryable, empty.value.retryable) == (True, True)
    path.write_text("second")
    assert await authentication.data() == b"second"


async def test_a_token_file_that_never_was_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError) as missing:
        await TokenAuthentication(path=tmp_path / "token").data()
    assert not missing.value.retryable


def test_who_gets_credentials_elsewhere_hears_that_they_were_refused() -> None:
    class Own(TokenAuthentication):
        refusals = 0

        def on_refused(self) -> None:
            self.refusals += 1

    own = Own("token")
    ClientSettings(authentication=own).credentials_refused()
    assert own.refusals == 1
    ClientSettings(authentication=TokenAuthentication("token")).credentials_refused()
    ClientSettings().credentials_refused()


def issuer() -> OAuth2ClientCredentials:
    return OAuth2ClientCredentials("https://issuer", client_id="me", client_secret="s")


@pytest.mark.parametrize(
    ("said", "lives_s"),
    [
        (3600, 3600.0),
        ("3600", 3600.0),
        ("60.5", 60.5),
        *((odd, 0.0) for odd in (None, True, "soon", -1, "nan", float("inf"), [60])),
        pytest.param(10**400, 0.0, id="huge"),
    ],
)
def test_the_lifetime_of_a_token_is_read_as_a_number_or_as_text(
    said: object, lives_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_: object, url: str, form: bytes | None) -> dict[str, object]:
        if form is None:
            return {"token_endpoint": "https://issuer/token"}
        return {"access_token": "t", "expires_in": said}

    monkeypatch.setattr(OAuth2ClientCredentials, "_ask", ask)
    assert issuer().fetch() == ("t", lives_s)


class Issuer:
    """Answers `fetch` when it is told to, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetched = 0
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        monkeypatch.setattr(OAuth2ClientCredentials, "fetch", lambda _: self.fetch())

    def fetch(self) -> tuple[str, float]:
        self.fetched += 1
        assert self.may_answer.wait(30)
        if self.error is not None:
            raise self.error
        return f"t{self.fetched}", 3600.0


async def test_concurrent_connections_fetch_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    answering, credentials = Issuer(monkeypatch), issuer()
    asking = [asyncio.create_task(credentials.data()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    answering.may_answer.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in results] == [asyncio.CancelledError, bytes, bytes]
    assert results[1:] == [b"t1", b"t1"]
    assert await credentials.data() == b"t1"
    assert answering.fetched == 1


async def test_a_failed_fetch_is_told_to_all_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering, credentials = Issuer(monkeypatch), issuer()
    answering.may_answer.set()
    answering.error = IssuerUnavailableError("away")
    results = await asyncio.gather(*(credentials.data() for _ in range(2)), return_exceptions=True)
    assert results == [answering.error] * 2
    assert answering.fetched == 1
    answering.error = None
    assert await credentials.data() == b"t2"


async def test_event_loops_that_run_at_once_share_no_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering, credentials = Issuer(monkeypatch), issuer()
    here = asyncio.create_task(credentials.data())
    await until(lambda: answering.fetched == 1)
    there = asyncio.create_task(asyncio.to_thread(asyncio.run, credentials.data()))
    await until(lambda: answering.fetched == 2 or there.done())
    answering.may_answer.set()
    assert [await here, await there] == [b"t2", b"t2"]


def test_credentials_serve_several_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    answering, credentials = Issuer(monkeypatch), issuer()
    answering.may_answer.set()
    assert [asyncio.run(credentials.data()) for _ in range(2)] == [b"t1", b"t1"]
    credentials._token = b""
    assert asyncio.run(credentials.data()) == b"t2"
