"""Credentials that change."""

from pathlib import Path

import pytest

from magnetar.sdk import ClientSettings
from magnetar.sdk.authentication import TokenAuthentication
from magnetar.sdk.errors import CredentialsError


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
