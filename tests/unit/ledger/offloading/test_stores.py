"""A store is opened by the settings that name it, and obstore is needed for buckets alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from obstore.store import S3Store
from pydantic import ValidationError

from magnetar.ledger.errors import ObjectStoreConfigError
from magnetar.ledger.offloading.bucket_store import BucketStore
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.store_url import PREFIX_BYTES_MAX, StoreUrl, parse_store_url
from magnetar.ledger.offloading.stores import open_object_store
from tests.processes import ROOT, magnetar_environment


def settings(**given: object) -> ObjectStoreSettings:
    return ObjectStoreSettings.model_validate({"name": "cold", **given})


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://ledgers", StoreUrl("s3", "ledgers", "")),
        ("s3://ledgers/", StoreUrl("s3", "ledgers", "")),
        ("s3://my.ledgers-1/a/b_c/", StoreUrl("s3", "my.ledgers-1", "a/b_c")),
        ("gs://ledgers/a", StoreUrl("gs", "ledgers", "a")),
        ("az://ledgers/a", StoreUrl("az", "ledgers", "a")),
        ("file:///srv/my%20objects", StoreUrl("file", "", "/srv/my objects")),
        ("memory://", StoreUrl("memory", "", "")),
        (f"s3://ledgers/{'a' * PREFIX_BYTES_MAX}", StoreUrl("s3", "ledgers", "a" * 100)),
    ],
)
def test_a_url_names_scheme_bucket_and_prefix(text: str, url: StoreUrl) -> None:
    assert parse_store_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ledgers",
        "/srv/objects",
        "http://ledgers/a",
        "s3://",
        "s3:///a",
        "s3:ledgers",
        "s3://Ledgers",
        "s3://a",
        "s3://ledgers:9000/a",
        "s3://ledgers//a",
        "s3://ledgers/../a",
        "s3://ledgers/a%2Fb",
        "s3://ledgers/a b",
        "s3://ledgers/ä",
        f"s3://ledgers/{'a' * (PREFIX_BYTES_MAX + 1)}",
        "s3://[ledgers",
        "file://objects",
        "file://srv/objects",
        "file:///",
        "memory://ledgers",
        "memory:///a",
    ],
)
def test_another_url_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ObjectStoreConfigError, match="url of an object store"):
        parse_store_url(text)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "s3://key:hidden@ledgers/a"},
        {"url": "s3://key:hid/hidden@ledgers/a"},
        {"url": "az://ledgers/a?sig=hidden"},
        {"url": "az://ledgers/a#hidden"},
        {"url": "hidden"},
        {"url": "s3://ledgers", "endpoint": "https://key:hidden@example.com"},
        {"url": "s3://ledgers", "endpoint": "https://example.com?key=hidden"},
        {"url": "s3://ledgers", "secret_access_key": "hidden"},
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_shown(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**given)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "memory://", "endpoint": "https://example.com"}, "for a bucket"),
        ({"url": "s3://ledgers", "endpoint": "http://example.com"}, "allow_http"),
        ({"url": "s3://ledgers", "endpoint": "example.com"}, "https://host:port"),
        ({"url": "s3://ledgers", "endpoint": "https://"}, "https://host:port"),
        ({"url": "s3://ledgers", "endpoint": "https://a:x"}, "https://host:port"),
        ({"url": "s3://ledgers", "timeout_s": 1}, "connect_timeout_s"),
        ({"url": "s3://ledgers", "part_bytes": 1}, "part_bytes"),
        ({"url": "s3://ledgers", "name": "a/b"}, "name"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(**given)


def test_each_scheme_has_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert isinstance(open_object_store(settings(url=f"file://{tmp_path}")), DirectoryStore)
    for url in ("s3://ledgers/a", "gs://ledgers/a", "az://ledgers/a", "memory://"):
        store = open_object_store(settings(url=url))
        assert repr(store) == f"BucketStore({url})"


def test_an_endpoint_has_the_bucket_in_its_path_or_in_its_host() -> None:
    given = {"url": "s3://ledgers", "endpoint": "https://example.com:9000/"}
    for path_style, endpoint in (
        (True, "https://example.com:9000"),
        (False, "https://ledgers.example.com:9000"),
    ):
        store = BucketStore.open(settings(**given, path_style=path_style))
        assert isinstance(store._bucket, S3Store)
        assert store._bucket.config["endpoint"] == endpoint


def test_an_azure_store_without_an_account_says_where_one_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in os.environ if each.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ObjectStoreConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_object_store(settings(url="az://ledgers"))


def test_a_bucket_without_obstore_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [each for each in sys.modules if each.startswith("magnetar.ledger.offloading.")]:
        if name.endswith(("bucket_store", "bucket_errors", "multipart")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ObjectStoreConfigError, match=r"pip install 'magnetar\[objects\]'"):
        open_object_store(settings(url="s3://ledgers"))
    assert isinstance(open_object_store(settings(url=f"file://{tmp_path}")), DirectoryStore)


def test_nobody_imports_obstore_who_opens_no_bucket() -> None:
    program = (
        "import sys, magnetar.ledger.client, magnetar.ledger.log, "
        "magnetar.ledger.offloading.stores; sys.exit('obstore' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", program], env=magnetar_environment(), cwd=ROOT, check=True
    )
