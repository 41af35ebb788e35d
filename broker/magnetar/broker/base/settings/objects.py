"""Settings of tiered storage: the object stores, and how ledgers move to them."""

import re

from pydantic import Field, model_validator

from magnetar.ledger.offloading.object_key_file import KEY_ID_PATTERN
from magnetar.ledger.offloading.object_store import is_key
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.settings import ObjectReadSettings


class ObjectSettings(ObjectReadSettings):
    """Object stores, and the limits of moving ledgers to them and reading them back."""

    object_stores: tuple[ObjectStoreSettings, ...] = Field(
        default=(),
        description='Object stores of the cluster, as JSON: [{"name": "main", "url": '
        '"s3://bucket"}]. Never change a name, because each ledger records the name of its store. '
        "Credentials come from the environment of the process. Set the same stores on all "
        "brokers.",
    )
    offload_store: str = Field(
        default="",
        description="Name of the object store that ledgers are offloaded to, unless a policy "
        "names another one.",
    )
    object_prefix: str = Field(
        default="",
        description="Prefix of the keys of all objects; empty, or ending with a slash.",
    )
    object_prefixes_former: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="Former values of object_prefix, as JSON. The broker reads objects under them "
        "in any case. It deletes the unused ones only if their prefix is named here.",
    )
    object_key_file: str = Field(
        default="",
        description="File with keys that encrypt objects, one per line: an id, and 64 hex digits. "
        "Nobody but its owner and a group may be able to read it. Every key decrypts objects. The "
        "broker reads the file at startup.",
    )
    object_key_id: str = Field(
        default="",
        description="Id of the key in object_key_file that encrypts new objects; empty: new "
        "objects are not encrypted.",
    )
    object_bytes_min: int = Field(
        default=1 << 20,
        ge=0,
        description="Ledgers of fewer bytes wait for object_small_wait_s before they are "
        "offloaded: an object costs the same number of requests, whatever its size.",
    )
    object_small_wait_s: float = Field(
        default=24 * 60 * 60,
        ge=0,
        description="How long ledgers below object_bytes_min wait before they are offloaded.",
    )
    offload_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two searches for ledgers to offload; 0: never.",
    )
    offload_retry_s: float = Field(
        default=1.0,
        gt=0,
        description="Delay before a failed offload is retried; it doubles up to "
        "offload_retry_s_max.",
    )
    offload_retry_s_max: float = Field(
        default=300.0, gt=0, description="Longest delay before a failed offload is retried."
    )
    offload_copies_at_once: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Ledgers that a broker copies to object stores in parallel.",
    )
    offload_bytes_per_s_max: int = Field(
        default=200 << 20,
        ge=0,
        description="Bytes per second that a broker reads from bookies to offload ledgers; 0: no "
        "limit.",
    )
    manifest_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Shortest time between two manifests of a topic, which describe its objects. "
        "After a ledger was offloaded, the next manifest is written immediately.",
    )
    object_sweep_interval_s: float = Field(
        default=3600.0,
        ge=0,
        description="Time between two sweeps, which delete unused objects: those that no topic "
        "refers to. 0: never.",
    )
    object_grace_s: float = Field(
        default=3600.0,
        ge=0,
        description="How long an unused object is kept, because readers may still use it.",
    )

    object_sweep_keys_max: int = Field(
        default=100_000,
        ge=1_000,
        description="Unused objects that a sweep remembers until object_grace_s is over, per "
        "store and prefix, about 400 bytes each. Further ones have to wait.",
    )
    object_scrub_days: float = Field(
        default=30.0,
        ge=0,
        description="Period in which the broker that owns a topic reads back each of its objects "
        "in full once. It replaces a damaged object if bookies still have the ledger. 0: never.",
    )
    object_scrub_bytes_per_s_max: int = Field(
        default=20 << 20,
        ge=0,
        description="Bytes per second that a broker reads from object stores for "
        "object_scrub_days; 0: no limit. 20 MiB/s are 50 TB in 30 days.",
    )

    @model_validator(mode="after")
    def _names_fit(self) -> "ObjectSettings":
        names = [store.name for store in self.object_stores]
        if len(set(names)) != len(names):
            raise ValueError(f"object_stores has two stores of one name: {', '.join(names)}")
        if self.offload_store and self.offload_store not in names:
            raise ValueError(
                f"offload_store {self.offload_store!r} is none of object_stores, which has "
                f"{', '.join(names) or 'none'}"
            )
        if self.object_key_id and not self.object_key_file:
            raise ValueError("object_key_id needs object_key_file, which has the keys")
        if self.object_key_id and not re.fullmatch(KEY_ID_PATTERN, self.object_key_id):
            # Not shown: the value may be the key itself.
            raise ValueError("object_key_id is the id of a key: at most 64 letters, digits and ._-")
        _check_prefix("object_prefix", self.object_prefix)
        for former in self.object_prefixes_former:
            _check_prefix("object_prefixes_former", former)
        if len({self.object_prefix, *self.object_prefixes_former}) <= len(
            self.object_prefixes_former
        ):
            raise ValueError(
                "object_prefixes_former names a prefix twice, or the present object_prefix"
            )
        return self

    @property
    def object_scrub_period_s(self) -> float:
        """object_scrub_days in seconds."""
        return self.object_scrub_days * 24 * 60 * 60


def _check_prefix(field: str, prefix: str) -> None:
    if prefix and not (prefix.endswith("/") and is_key(f"{prefix}x")):
        raise ValueError(
            f"{field} {prefix!r} must end with a slash, and have characters that every store takes "
            "in a key"
        )
