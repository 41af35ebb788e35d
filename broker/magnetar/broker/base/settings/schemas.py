"""Bounds of schemas."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section

_MIB = 1 << 20


class SchemaSettings(Section):
    """A part of `BrokerSettings`."""

    schema_bytes_max: int = Field(
        default=_MIB,
        ge=1,
        le=4 * _MIB,
        description="Largest schema, its properties included; it is one entry of a ledger.",
    )
    schema_versions_max: int = Field(
        default=1_000,
        ge=1,
        le=4_000,
        description="Versions of one topic's schema, deletions included; its node names each.",
    )
    schema_cache_bytes_max: int = Field(
        default=8 * _MIB,
        ge=0,
        description="Schemas that are remembered, as clients wrote them; 0 = none is.",
    )
