"""Copies of the source's schemas at the target, and the version there for each version here.

Versions are registered in order before the first message, so they get the same numbers. That is
impossible if the source has forgotten versions (a schema that was deleted). The numbers in messages
are then translated, and the difference is reported.
"""

import asyncio
from typing import Any, Final
from urllib.parse import quote

from magnetar.deploy.admin_client import topic_path
from magnetar.deploy.errors import MigrationDiffersError
from magnetar.deploy.migration.sides import Side, is_magnetar
from magnetar.sdk.errors import SdkError, service_error
from magnetar.sdk.wire import BaseCommand, TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.errors import TopicNotFoundError

_VERSION_BYTES: Final = 8
_DECODED_AGAIN: Final = frozenset("+%")
"""Characters of a name that change when it is decoded although it is not encoded."""


class SchemaRefusedError(MigrationDiffersError):
    """The target does not accept a schema of the source."""


class SchemaCopies:
    """The schemas of all topics. Partitions share the schemas of their topic."""

    def __init__(self, source: Side, target: Side) -> None:
        self._source = source
        self._target = target
        self._versions: dict[TopicName, dict[bytes, bytes]] = {}
        self._locks: dict[TopicName, asyncio.Lock] = {}

    def known(self, topic: TopicName, version: bytes) -> bytes | None:
        """Return the version at the target for one in a message; None if it is not known yet."""
        return self._versions.get(topic.partitioned, {}).get(version)

    async def version_there(self, topic: TopicName, version: bytes) -> bytes:
        """Return the version at the target for one in a message. A version that the source no
        longer knows is kept as it is.

        Raises:
            SdkError: one of the clusters does not answer.
            SchemaRefusedError
        """
        return (
            self.known(topic, version)
            or (await self.copy(topic)).get(version)
            or await self._single(topic, version)
        )

    async def copy(self, topic: TopicName) -> dict[bytes, bytes]:
        """Register all versions that the source has; return the target's version for each.

        Args:
            topic: a topic or partition that exists.

        Raises:
            SdkError, BrokerUnreachableError: one of the clusters does not answer.
            SchemaRefusedError
        """
        base = topic.partitioned
        versions = self._versions.setdefault(base, {})
        async with self._locks.setdefault(base, asyncio.Lock()):
            for each in await versions_at(self._source, base):
                version = int(each["version"]).to_bytes(_VERSION_BYTES, "big")
                if version not in versions:
                    await self._register(topic, version, versions)
        return versions

    async def _single(self, topic: TopicName, version: bytes) -> bytes:
        """Register a version that the source does not list but may have; return the target's
        version."""
        versions = self._versions[topic.partitioned]
        async with self._locks[topic.partitioned]:
            if version not in versions:
                await self._register(topic, version, versions)
            return versions[version]

    async def _register(
        self, topic: TopicName, version: bytes, versions: dict[bytes, bytes]
    ) -> None:
        schema = await self._schema(topic, version)
        if schema is None:
            versions[version] = version
            return
        connection = await self._target.connection_for(topic)
        request_id = connection.next_request_id()
        command = pb.CommandGetOrCreateSchema(
            request_id=request_id, topic=str(topic), schema=schema
        )
        answer = await connection.request(
            request_id,
            BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=command),
        )
        response = answer.getOrCreateSchemaResponse
        if response.HasField("error_code"):
            error = service_error(response.error_code, str(response.error_message))
            if error.retryable:
                raise error
            raise SchemaRefusedError(
                f"{topic.partitioned}: the target refuses version {int.from_bytes(version, 'big')} "
                f"of the schema: {error}. Is schemaCompatibilityStrategy of the namespace there "
                "ALWAYS_COMPATIBLE, as the migration sets it?"
            )
        versions[version] = bytes(response.schema_version)

    async def _schema(self, topic: TopicName, version: bytes) -> pb.Schema | None:
        """Return a version of a schema at the source; None if there is none."""
        connection = await self._source.connection_for(topic)
        request_id = connection.next_request_id()
        answer = await connection.request(
            request_id,
            BaseCommand(
                type=BaseCommand.GET_SCHEMA,
                getSchema=pb.CommandGetSchema(
                    request_id=request_id, topic=str(topic), schema_version=version
                ),
            ),
        )
        response = answer.getSchemaResponse
        if not response.HasField("error_code"):
            return response.schema
        error: SdkError = service_error(response.error_code, str(response.error_message))
        if isinstance(error, TopicNotFoundError):
            return None
        raise error


async def versions_at(side: Side, topic: TopicName) -> list[dict[str, Any]]:
    """Return the versions of a topic's schema, oldest first.

    Raises:
        BrokerUnreachableError: the cluster does not answer.
    """
    found = await side.get(_path(side, topic))
    listed = (found or {}).get("getSchemaResponses") or []
    return sorted(listed, key=lambda each: int(each["version"]))


def _path(side: Side, topic: TopicName) -> str:
    _, tenant, namespace, name = topic_path(topic).split("/")
    if _DECODED_AGAIN.intersection(topic.local_name) and not is_magnetar(side):
        # Pulsar decodes the name in these paths twice, and would look for another topic.
        name = quote(name, safe="")
    return f"schemas/{tenant}/{namespace}/{name}/schemas"


def comparable(versions: list[dict[str, Any]]) -> list[Any]:
    """Return the parts of the versions that must be the same on both sides."""
    return [
        [each["version"], each["type"], each["data"], each.get("properties") or {}]
        for each in versions
    ]
