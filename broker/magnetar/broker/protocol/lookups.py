"""Requests about topics in general: partition metadata, lookup, topic lists, schemas.

A lookup neither needs a topic nor creates one. Local failures are answered with MetadataError,
never with ServiceNotReady, on which clients close their whole connection (trap 11).
"""

import asyncio
from collections.abc import Callable
from functools import partial

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import RequestError, TopicNotFoundError
from magnetar.broker.features.transactions.ids import COORDINATORS, is_coordinator
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.schemas.model import (
    SchemaType,
    schema_of_wire,
    version_of_bytes,
    version_to_bytes,
    wire_of_schema,
)
from magnetar.broker.schemas.record import schema_id
from magnetar.broker.security import Action, Namespace, Topic
from magnetar.broker.topics import topic_lists
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.pulsar_pb2 import (
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    ServerError,
)


class Lookups:
    """Answers of one connection to requests that concern no producer or consumer."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._services = services
        self._login = login
        # What is read may be a copy per request, and be kept while a client reads nothing. So as
        # many are read at once as have room as answers; the room itself is for answers that are
        # built, so that a slow read holds up only others of its kind.
        settings = services.settings
        room_bytes = settings.write_buffer_bytes_max
        self._list_reads = asyncio.Semaphore(max(1, room_bytes // settings.message_bytes_max))
        self._schema_reads = asyncio.Semaphore(max(1, room_bytes // settings.schema_bytes_max))

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.PARTITIONED_METADATA: self._on_partition_metadata,
            BaseCommand.LOOKUP: self._on_lookup,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: self._on_topics,
            BaseCommand.GET_SCHEMA: self._on_schema,
            BaseCommand.GET_OR_CREATE_SCHEMA: self._on_create_schema,
        }

    def _on_partition_metadata(self, command: BaseCommand) -> None:
        request = command.partitionMetadata
        self._link.start(
            self._partition_metadata(request),
            partial(_refuse_partition_metadata, request.request_id),
        )

    async def _partition_metadata(self, request: CommandPartitionedTopicMetadata) -> None:
        topics = self._services.topics
        name = naming.topic_of(request.topic)
        if name == COORDINATORS and self._services.coordinators.is_enabled:
            # Any connected client may use transactions: what they contain is checked.
            partitions = await self._services.coordinators.prepare()
            self._link.write(replies.partition_metadata(request.request_id, partitions))
            return
        await self._login.check(Action.LOOKUP, Topic(name), principal=request.original_principal)
        partitions = await topics.creation.partitions_of(
            name, may_create=request.metadata_auto_creation_enabled
        )
        self._link.write(replies.partition_metadata(request.request_id, partitions))

    def _on_lookup(self, command: BaseCommand) -> None:
        request = command.lookupTopic
        self._link.start(self._lookup(request), partial(_refuse_lookup, request.request_id))

    async def _lookup(self, request: CommandLookupTopic) -> None:
        services = self._services
        name = naming.base_topic_of(request.topic)
        if not is_coordinator(name):
            await self._login.check(
                Action.LOOKUP, Topic(name), principal=request.original_principal
            )
        await services.topics.check_namespace(name.namespace_name)
        listener = request.advertised_listener_name
        naming.check_text(listener)
        owner = await services.ownership.owner_of(
            name, is_authoritative=request.authoritative, listener=listener
        )
        self._link.listener = listener
        answer = replies.lookup_redirect if owner.is_redirect else replies.lookup_connect
        self._link.write(
            answer(
                request.request_id,
                service_url=owner.service_url,
                service_url_tls=owner.service_url_tls,
                is_authoritative=owner.is_authoritative,
            )
        )

    def _on_topics(self, command: BaseCommand) -> None:
        request = command.getTopicsOfNamespace
        self._link.start(self._topics(request), partial(_refuse, request.request_id))

    async def _topics(self, request: CommandGetTopicsOfNamespace) -> None:
        services = self._services
        naming.check_text(request.namespace)
        await self._login.check(Action.LIST_TOPICS, Namespace(request.namespace))
        bytes_max = services.settings.message_bytes_max
        async with self._list_reads:
            names = await topic_lists.names_of(
                services.topics, request.namespace, request.mode, bytes_max
            )
            async with self._link.room(topic_lists.size_of(names)):
                self._answer_topics(request, names)

    def _answer_topics(self, request: CommandGetTopicsOfNamespace, names: list[str]) -> None:
        current = topic_lists.topics_hash(names)
        # Not filtered by the pattern: clients do that themselves.
        is_changed = not request.topics_hash or request.topics_hash != current
        self._link.write(
            replies.topics_of_namespace(
                request.request_id,
                names if is_changed else [],
                topics_hash=current,
                is_changed=is_changed,
            )
        )

    def _on_schema(self, command: BaseCommand) -> None:
        request = command.getSchema
        refuse = partial(_refuse_schema, request.request_id)
        self._link.start(self._schema(request), refuse)

    async def _schema(self, request: CommandGetSchema) -> None:
        services = self._services
        name = naming.topic_of(request.topic)
        await self._login.check(Action.LOOKUP, Topic(name))
        await services.topics.check_namespace(name.namespace_name)
        async with self._schema_reads:
            if request.HasField("schema_version"):
                version = version_of_bytes(request.schema_version)
                found = await services.schemas.get(name, version)
            else:
                found = await services.schemas.latest(name)
            async with self._link.room(found.schema.size_bytes):
                schema = wire_of_schema(found.schema, schema_id(name))
                version_bytes = version_to_bytes(found.version)
                self._link.write(replies.schema(request.request_id, schema, version_bytes))

    def _on_create_schema(self, command: BaseCommand) -> None:
        request = command.getOrCreateSchema
        refuse = partial(_refuse_create_schema, request.request_id)
        self._link.start(self._create_schema(request), refuse)

    async def _create_schema(self, request: CommandGetOrCreateSchema) -> None:
        """Register a schema of a topic that is loaded here, for a producer that has several
        schemas."""
        services = self._services
        name = naming.topic_of(request.topic)
        await self._login.check(Action.PRODUCE, Topic(name))
        topic = services.topics.served(name)
        if topic is None:
            raise TopicNotFoundError(f"Topic {name} not found: it is not in use here")
        schema = schema_of_wire(request.schema)
        version = b""
        if schema.type is not SchemaType.NONE:
            policies = topic.policies
            number = await services.schemas.put(
                name, schema, policies, may_add=policies.allows_schema_update
            )
            version = version_to_bytes(number)
        self._link.write(replies.get_or_create_schema(request.request_id, version))


def _refuse(request_id: int, error: RequestError) -> bytes:
    return replies.error(request_id, error.code, str(error))


def _refuse_schema(request_id: int, error: RequestError) -> bytes:
    return replies.schema_failed(request_id, _lookup_code(error), str(error))


def _refuse_create_schema(request_id: int, error: RequestError) -> bytes:
    return replies.get_or_create_schema_failed(request_id, error.code, str(error))


def _refuse_partition_metadata(request_id: int, error: RequestError) -> bytes:
    return replies.partition_metadata_failed(request_id, _lookup_code(error), str(error))


def _refuse_lookup(request_id: int, error: RequestError) -> bytes:
    return replies.lookup_failed(request_id, _lookup_code(error), str(error))


def _lookup_code(error: RequestError) -> ServerError:
    if error.code == ServerError.ServiceNotReady:
        return ServerError.MetadataError
    return error.code
