"""Which ledgers hold the index of delayed messages: a property of the topic's log. Pure."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from magnetar.broker.base.errors import BrokerPersistenceError

PROPERTY = "magnetar.delayed.buckets"

COMPONENT = "delayed-index"
"""In the custom metadata of those ledgers; the orphan sweep knows them by it."""

FORMAT = 1


class StoredBucket(BaseModel):
    """One ledger of the index. Its entries are segments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_id: int
    records: int
    starts_ms: list[int]
    """When the first record of each segment is due, ms since the epoch."""
    last: tuple[int, int]
    """The highest position in it: ledger, entry."""


class BucketList(BaseModel):
    """The value of the property."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    buckets: list[StoredBucket] = []


def buckets_in(properties: Mapping[str, str], *, of: str) -> Sequence[StoredBucket]:
    """The buckets that the properties of a log name; `of`: whose they are, for the error.

    Raises:
        BrokerPersistenceError: the value is not one for this release.
    """
    value = properties.get(PROPERTY)
    if value is None:
        return ()
    try:
        stored = BucketList.model_validate_json(value)
    except ValidationError as error:
        raise BrokerPersistenceError(
            f"{of}: the list of its delayed messages cannot be understood: {error}"
        ) from error
    if stored.format != FORMAT:
        raise BrokerPersistenceError(
            f"{of}: the list of its delayed messages has format {stored.format}; this release "
            f"knows {FORMAT}"
        )
    return stored.buckets


def property_of(buckets: Sequence[StoredBucket]) -> dict[str, str | None]:
    """The change of the log's properties that names these."""
    if not buckets:
        return {PROPERTY: None}
    return {PROPERTY: BucketList(buckets=list(buckets)).model_dump_json()}
