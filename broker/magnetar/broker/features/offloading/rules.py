"""Rules that follow from a topic's offload policies: when ledgers move, where they are read. Pure.

A namespace has thresholds of its own and, like a topic, a set of offload policies under Pulsar's
names. The set takes precedence over the thresholds. A topic's set falls back to its namespace's.
The operator determines where the objects go: stores and their credentials are in the settings of
the brokers, and a policy only chooses among them.

Source: tiered storage, sections 1 and 12 (rule 12.1).
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from magnetar.broker.base.errors import InvalidPolicyError
from magnetar.broker.policies.model import Policies
from magnetar.ledger.offloading.offload_choice import NEVER, OffloadRules

THRESHOLD_BYTES = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_S = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG_MS = "managedLedgerOffloadDeletionLagInMillis"
READ_PRIORITY = "managedLedgerOffloadedReadPriority"
DRIVER = "managedLedgerOffloadDriver"

OBJECTS_FIRST, BOOKIES_FIRST = "tiered-storage-first", "bookkeeper-first"

_NUMBERS = (THRESHOLD_BYTES, THRESHOLD_S, DELETION_LAG_MS)

_BUCKETS: Final = {
    "aws-s3": ("s3ManagedLedgerOffloadBucket", ("s3",)),
    "s3": ("s3ManagedLedgerOffloadBucket", ("s3",)),
    "google-cloud-storage": ("gcsManagedLedgerOffloadBucket", ("gs",)),
    "azureblob": ("managedLedgerOffloadBucket", ("az", "azure", "abfs", "abfss")),
    "filesystem": ("fileSystemURI", ("file",)),
}
"""By Pulsar's driver, in lower case: the policy field that names the bucket, and the URL
schemes."""

_SECRETS = ("credential", "secret", "keyfile", "password")


_USUAL: Final = OffloadRules()


def offload_rules(
    policies: Policies,
    *,
    small_bytes: int = _USUAL.small_bytes,
    small_wait_s: float = _USUAL.small_wait_s,
) -> OffloadRules:
    """Return the rules by which ledgers of a topic move.

    Args:
        small_bytes, small_wait_s: see `OffloadRules`.
    """
    own = policies.offload
    lag_ms = own.get(DELETION_LAG_MS, policies.offload_deletion_lag_ms)
    return OffloadRules(
        bytes_on_bookies=max(NEVER, own.get(THRESHOLD_BYTES, policies.offload_threshold_bytes)),
        time_on_bookies_s=max(NEVER, own.get(THRESHOLD_S, policies.offload_threshold_s)),
        deletion_lag_s=lag_ms / 1000 if lag_ms >= 0 else NEVER,
        small_bytes=small_bytes,
        small_wait_s=small_wait_s,
    )


def reads_objects_first(policies: Policies) -> bool:
    """Whether a ledger that is on bookies and in an object is read from the object."""
    return bool(policies.offload.get(READ_PRIORITY, BOOKIES_FIRST) == OBJECTS_FIRST)


def store_of(policies: Policies, urls: Mapping[str, str], default: str) -> str:
    """Return the name of the store for new objects of a topic; empty if there is none.

    Args:
        urls: URLs of this broker's stores, by name.
        default: name of the store that is used if no policy names one.

    Raises:
        InvalidPolicyError: the policy names a store that this broker does not have.
    """
    driver = policies.offload.get(DRIVER)
    if not driver:
        return default
    if driver in urls:
        return str(driver)
    known = ", ".join(f"{name} ({url})" for name, url in sorted(urls.items())) or "none"
    field, schemes = _BUCKETS.get(str(driver).lower(), ("managedLedgerOffloadBucket", ()))
    bucket = policies.offload.get(field) or policies.offload.get("managedLedgerOffloadBucket")
    fitting = [
        name
        for name, url in sorted(urls.items())
        if urlsplit(url).scheme in schemes and (not bucket or _bucket_of(url) == str(bucket))
    ]
    if len(fitting) == 1:
        return fitting[0]
    which = f"{driver!r}, bucket {bucket!r}" if bucket else repr(driver)
    raise InvalidPolicyError(
        f"object store {which}: {len(fitting)} of this broker's stores fit; it has {known}. Add "
        "the store to `object_stores` in the brokers' settings, or name one of them as "
        f"{DRIVER}"
    )


def _bucket_of(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.scheme == "file" else parts.netloc


def check_offload(value: Mapping[str, Any]) -> None:
    """Refuse invalid offload policies.

    Raises:
        InvalidPolicyError
    """
    for name, each in value.items():
        is_secret = any(word in name.lower() for word in _SECRETS)
        if is_secret and each not in (None, ""):
            raise InvalidPolicyError(
                f"{name}: credentials do not belong in policies, where everybody who may read them "
                "finds them; give them to the brokers, by the environment of their processes"
            )
    for name in _NUMBERS:
        number = value.get(name)
        if number is not None and type(number) is not int:
            raise InvalidPolicyError(f"{name} must be a whole number, got {number!r}")
    priority = value.get(READ_PRIORITY)
    if priority not in (None, OBJECTS_FIRST, BOOKIES_FIRST):
        raise InvalidPolicyError(
            f"{READ_PRIORITY} must be {OBJECTS_FIRST} or {BOOKIES_FIRST}, got {priority!r}"
        )
