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
        description="Object stores of the cluster, under names that stay: each ledger remembers "
        'which one it went to. As JSON, [{"name": "main", "url": "s3://bucket"}]. Credentials '
        "come from the environment of the process. All brokers have the same stores.",
    )
    offload_store: str = Field(
        default="",
        description="Name of the store that ledgers go to, unless a policy names another one.",
    )
    object_prefix: str = Field(
        default="",
        description="What the keys of all objects begin with; empty, or with a slash at its end.",
    )
    object_prefixes_former: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="What object_prefix was before, as JSON. Objects under it are read in any "
        "case; named here, those that no topic needs any more are deleted, too.",
    )
    object_key_file: str = Field(
        default="",
        description="File with keys that encrypt objects, one per line: an id, and 64 hex digits. "
        "Only its owner, and a group, may read it. All keys open objects. It is read at the start.",
    )
    object_key_id: str = Field(
        default="",
        description="Id of the key in object_key_file for new objects; empty: they stay plain.",
    )
    object_bytes_min: int = Field(
        default=1 << 20,
        ge=0,
        description="Smaller ledgers wait for object_small_wait_s before they are moved: an object "
        "costs the same number of requests, whatever its size.",
    )
    object_small_wait_s: float = Field(
        default=24 * 60 * 60, ge=0, description="How long small ledgers wait before they move."
    )
    offload_check_interval_s: float = Field(
        default=10.0, ge=0, description="Time between two looks at what is to be moved; 0: none."
    )
    offload_retry_s: float = Field(
        default=1.0, gt=0, description="Pause after a failure; it doubles up to the maximum."
    )
    offload_retry_s_max: float = Field(
        default=300.0, gt=0, description="Longest pause after a failure."
    )
    offload_copies_at_once: int = Field(
        default=2, ge=1, le=64, description="Ledgers that a broker copies at the same time."
    )
    offload_bytes_per_s_max: int = Field(
        default=200 << 20,
        ge=0,
        description="Bytes per second that a broker reads from bookies for copies; 0: no bound.",
    )
    manifest_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Least time between two manifests of a topic, which say what its objects are. "
        "When a ledger came into the store, the next one is written at once.",
    )
    object_sweep_interval_s: float = Field(
        default=3600.0,
        ge=0,
        description="Time between two passes that delete objects which no topic names; 0: none.",
    )
    object_grace_s: float = Field(
        default=3600.0,
        ge=0,
        description="How long an object is kept that no topic names: readers may still use it.",
    )

    object_sweep_keys_max: int = Field(
        default=100_000,
        ge=1_000,
        description="Objects that no topic names which a pass remembers until object_grace_s is "
        "over, for each store and prefix, at about 400 bytes. Further ones have to wait.",
    )
    object_scrub_days: float = Field(
        default=30.0,
        ge=0,
        description="Each object is read back in full once in this time, by the broker that owns "
        "its topic, and replaced if it is damaged while bookies have the ledger; 0: never.",
    )
    object_scrub_bytes_per_s_max: int = Field(
        default=20 << 20,
        ge=0,
        description="Bytes per second that a broker reads from object stores for that; 0: no "
        "bound. 20 MiB/s are 50 TB in 30 days.",
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
