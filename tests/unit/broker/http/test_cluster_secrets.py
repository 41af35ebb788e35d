"""Secrets in the records of clusters: shown as stars, and kept when stars come back."""

import pytest

from magnetar.broker.http.clusters import with_secrets, without_secrets


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("token:eyJ.x.y", "token:********"),
        ('{"userId": "a", "password": "b"}', "********"),
        ("file:///run/token", "file:///run/token"),
        ("env:TOKEN", "env:TOKEN"),
        ("", ""),
    ],
)
def test_only_where_a_secret_is_may_be_read(stored: str, shown: str) -> None:
    data = {"serviceUrl": "http://w", "authenticationParameters": stored}
    assert without_secrets(data) == {"serviceUrl": "http://w", "authenticationParameters": shown}


def test_passwords_of_key_stores_are_shown_as_stars() -> None:
    data = {"brokerClientTlsKeyStorePassword": "a", "brokerClientTlsTrustStorePassword": "b"}
    assert set(without_secrets(data).values()) == {"********"}


def test_an_update_with_what_was_shown_keeps_the_secret() -> None:
    stored = {"serviceUrl": "http://a", "authenticationParameters": "token:secret"}
    update = without_secrets(stored) | {"serviceUrl": "http://b"}
    assert with_secrets(update, stored) == stored | {"serviceUrl": "http://b"}


def test_an_update_replaces_and_removes_secrets() -> None:
    stored = {"authenticationParameters": "token:secret"}
    assert with_secrets({"authenticationParameters": "token:new"}, stored) == {
        "authenticationParameters": "token:new"
    }
    assert with_secrets({"serviceUrl": "http://b"}, stored) == {"serviceUrl": "http://b"}


def test_stars_that_nobody_was_shown_are_a_value_like_others() -> None:
    data = {"authenticationParameters": "token:********"}
    assert with_secrets(data, {"authenticationParameters": "env:TOKEN"}) == data
