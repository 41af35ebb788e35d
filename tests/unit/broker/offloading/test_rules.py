"""What offload policies mean: thresholds, the store, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from magnetar.broker.base.errors import InvalidPolicyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.offloading.rules import (
    check_offload,
    offload_rules,
    reads_objects_first,
    store_of,
)
from magnetar.broker.policies.model import Policies
from magnetar.deploy.config import component_settings
from magnetar.deploy.errors import SettingsError

STORE = {"name": "main", "url": "file:///objects"}
URLS = {
    "main": "s3://one/prefix",
    "second": "s3://two",
    "google": "gs://one",
    "disk": "file:///var/objects",
}


def test_nothing_moves_unless_a_policy_says_so() -> None:
    rules = offload_rules(Policies())
    assert (rules.bytes_on_bookies, rules.time_on_bookies_s) == (-1, -1)
    assert rules.deletion_lag_s == 4 * 60 * 60


def test_thresholds_of_the_namespace_count_where_the_set_says_nothing() -> None:
    policies = Policies(
        offload_threshold_bytes=10, offload_threshold_s=20, offload_deletion_lag_ms=3_000
    )
    rules = offload_rules(policies)
    assert (rules.bytes_on_bookies, rules.time_on_bookies_s, rules.deletion_lag_s) == (10, 20, 3)
    own = {
        "managedLedgerOffloadThresholdInBytes": 1,
        "managedLedgerOffloadThresholdInSeconds": 2,
        "managedLedgerOffloadDeletionLagInMillis": 500,
    }
    rules = offload_rules(policies.with_values(offload=own))
    assert (rules.bytes_on_bookies, rules.time_on_bookies_s, rules.deletion_lag_s) == (1, 2, 0.5)


def test_a_negative_lag_keeps_ledgers_on_bookies_for_ever() -> None:
    assert offload_rules(Policies(offload_deletion_lag_ms=-1)).deletion_lag_s < 0


@pytest.mark.parametrize(
    ("offload", "expected"),
    [
        ({}, "main"),
        ({"managedLedgerOffloadDriver": "second"}, "second"),
        ({"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "two"}, "second"),
        ({"managedLedgerOffloadDriver": "S3", "managedLedgerOffloadBucket": "one"}, "main"),
        ({"managedLedgerOffloadDriver": "google-cloud-storage"}, "google"),
        ({"managedLedgerOffloadDriver": "filesystem"}, "disk"),
    ],
)
def test_a_policy_chooses_among_the_stores_of_the_broker(
    offload: dict[str, Any], expected: str
) -> None:
    assert store_of(Policies(offload=offload), URLS, "main") == expected


@pytest.mark.parametrize(
    "offload",
    [
        {"managedLedgerOffloadDriver": "azureblob"},
        {"managedLedgerOffloadDriver": "aws-s3"},  # two would fit
        {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "three"},
        {"managedLedgerOffloadDriver": "unknown"},
    ],
)
def test_a_store_that_is_not_there_is_refused_with_those_that_are(offload: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError, match=r"main \(s3://one/prefix\).*object_stores"):
        store_of(Policies(offload=offload), URLS, "main")


@pytest.mark.parametrize(
    "offload",
    [
        {"s3ManagedLedgerOffloadCredentialSecret": "hidden"},
        {"s3ManagedLedgerOffloadCredentialId": "hidden"},
        {"gcsManagedLedgerOffloadServiceAccountKeyFile": "/hidden"},
    ],
)
def test_credentials_are_refused_and_not_repeated(offload: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError, match="environment") as caught:
        check_offload(offload)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "offload",
    [
        {"managedLedgerOffloadThresholdInBytes": "10"},
        {"managedLedgerOffloadDeletionLagInMillis": True},
        {"managedLedgerOffloadedReadPriority": "fastest-first"},
    ],
)
def test_values_that_cannot_be_meant_are_refused(offload: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError):
        check_offload(offload)


def test_what_tools_send_for_nothing_is_taken() -> None:
    check_offload({"s3ManagedLedgerOffloadCredentialSecret": None, "offloadersDirectory": "./x"})
    check_offload({"s3ManagedLedgerOffloadCredentialId": ""})


def test_bookies_are_read_first_unless_the_policy_says_otherwise() -> None:
    assert not reads_objects_first(Policies())
    first = {"managedLedgerOffloadedReadPriority": "tiered-storage-first"}
    assert reads_objects_first(Policies(offload=first))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"offload_store": "main"}, "none of object_stores"),
        ({"object_stores": [STORE, STORE]}, "two stores of one name"),
        ({"object_stores": [STORE], "object_prefix": "no-slash"}, "must end with a slash"),
        ({"object_stores": [STORE], "object_prefix": "ümlaut/"}, "every store takes"),
        ({"object_prefixes_former": ["no-slash"]}, "must end with a slash"),
        ({"object_prefixes_former": ["a/", "a/"]}, "twice"),
        ({"object_prefix": "a/", "object_prefixes_former": ["a/"]}, "twice, or the present"),
        ({"object_prefixes_former": [""]}, "twice, or the present"),
        ({"object_prefixes_former": [f"{each}/" for each in range(17)]}, "at most 16"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        ObjectSettings(**settings)


def test_settings_that_fit_are_taken() -> None:
    settings = ObjectSettings.model_validate(
        {"object_stores": [STORE], "offload_store": "main", "object_prefix": "magnetar/"}
    )
    assert settings.object_stores[0].url == "file:///objects"


def test_former_prefixes_are_taken_up_to_their_bound() -> None:
    former = ("", *(f"{each}/" for each in range(15)))
    settings = ObjectSettings(object_prefix="now/", object_prefixes_former=former)
    assert settings.object_prefixes_former == former


def test_a_secret_in_the_place_of_a_url_is_not_repeated() -> None:
    table = {"object_stores": [{"name": "main", "url": "s3://hidden:hidden@bucket"}]}
    with pytest.raises(SettingsError, match="without credentials") as caught:
        component_settings(BrokerSettings, "broker", tables={"broker": table}, environment={})
    assert "hidden" not in str(caught.value)


def test_a_key_for_new_objects_needs_a_file_and_an_id_that_is_none_of_the_keys() -> None:
    assert ObjectSettings(object_key_file="/keys", object_key_id="2026-01").object_key_id
    assert not ObjectSettings(object_key_file="/keys").object_key_id, "old objects are read"
    with pytest.raises(ValidationError, match="needs object_key_file"):
        ObjectSettings(object_key_id="2026-01")
    ObjectSettings(object_key_file="/keys", object_key_id="i" * 64)
    with pytest.raises(ValidationError, match="at most 64 letters"):
        ObjectSettings(object_key_file="/keys", object_key_id="i" * 65)


def test_an_id_of_a_key_that_is_a_key_is_not_shown() -> None:
    secret = "0123456789abcdef" * 4 + "=="
    table = {"object_key_file": "/keys", "object_key_id": secret}
    with pytest.raises(SettingsError) as caught:
        component_settings(BrokerSettings, "broker", tables={"broker": table}, environment={})
    assert secret not in str(caught.value)
