"""The commands that the broker sends, except the hot ones (`magnetar.sdk.wire.hot_commands`).

Plain functions from values to frames. Fields that clients insist on although the protocol calls
them optional are always set (traps 1 and 14 of the protocol sheet's appendix C).
"""

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import Message

from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb

NO_REQUEST = (1 << 64) - 1
"""Request id of commands that answer no request: -1."""

REFRESH_CHALLENGE = b"PulsarAuthRefresh"
"""Challenge to a client whose credentials have expired."""

_MASK_64 = (1 << 64) - 1


_FIELDS: Final = {
    field.message_type.name: field.name
    for field in BaseCommand.DESCRIPTOR.fields
    if field.message_type
}
"""Field of `BaseCommand` for each command's message type."""


TAKES_ACKS = " (takes acks)"
"""Suffix of the server's version that tells replicators that the broker takes markers of type
4001."""

WITHOUT_LEASE = " (no lease)"
"""Suffix of the server's version in the handshake of a broker that serves nothing at present."""


def _frame(kind: BaseCommand.Type, command: Message) -> bytes:
    fields: dict[str, Any] = {_FIELDS[command.DESCRIPTOR.name]: command}
    return encode_command(BaseCommand(type=kind, **fields))


def connected(
    *,
    server_version: str,
    protocol_version: int,
    message_bytes_max: int,
    has_layouts: bool = True,
    has_coordinator_watches: bool = True,
) -> bytes:
    """Return CONNECTED, with the feature flags that this broker honours.

    Clients of Pulsar 5 need `has_layouts` for everything, and `has_coordinator_watches` for
    transactions.
    """
    flags = pb.FeatureFlags(
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_repl_dedup_by_lid_and_eid=True,
        supports_topic_watchers=True,
        supports_topic_watcher_reconcile=True,
        supports_scalable_topics=has_layouts,
        supports_tc_metadata_discovery=has_coordinator_watches,
    )
    return _frame(
        BaseCommand.CONNECTED,
        pb.CommandConnected(
            server_version=server_version,
            protocol_version=protocol_version,
            max_message_size=message_bytes_max,
            feature_flags=flags,
        ),
    )


def auth_challenge(method: str, *, server_version: str, protocol_version: int) -> bytes:
    """Return AUTH_CHALLENGE, which asks for new credentials of the same method."""
    return _frame(
        BaseCommand.AUTH_CHALLENGE,
        pb.CommandAuthChallenge(
            server_version=server_version,
            challenge=pb.AuthData(auth_method_name=method, auth_data=REFRESH_CHALLENGE),
            protocol_version=protocol_version,
        ),
    )


def error(request_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.ERROR, pb.CommandError(request_id=request_id, error=code, message=message)
    )


def success(request_id: int) -> bytes:
    return _frame(BaseCommand.SUCCESS, pb.CommandSuccess(request_id=request_id))


def producer_success(
    request_id: int,
    *,
    producer_name: str,
    last_sequence_id: int = -1,
    topic_epoch: int | None = None,
    is_ready: bool = True,
    schema_version: bytes = b"",
) -> bytes:
    """Return PRODUCER_SUCCESS.

    Args:
        last_sequence_id: -1 without deduplication: a new producer then starts at 0.
        is_ready: whether the producer may send. If not, it waits for a second such command.
    """
    return _frame(
        BaseCommand.PRODUCER_SUCCESS,
        pb.CommandProducerSuccess(
            request_id=request_id,
            producer_name=producer_name,
            last_sequence_id=last_sequence_id,
            schema_version=schema_version,
            topic_epoch=topic_epoch,
            producer_ready=is_ready,
        ),
    )


def send_error(producer_id: int, sequence_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.SEND_ERROR,
        pb.CommandSendError(
            producer_id=producer_id, sequence_id=sequence_id, error=code, message=message
        ),
    )


def close_producer(producer_id: int, service_url: str = "") -> bytes:
    """Return CLOSE_PRODUCER.

    With a `service_url`, the client reconnects there at once. Without one, it looks the topic up
    after a while.
    """
    return _frame(
        BaseCommand.CLOSE_PRODUCER,
        pb.CommandCloseProducer(
            producer_id=producer_id,
            request_id=NO_REQUEST,
            assignedBrokerServiceUrl=service_url or None,
        ),
    )


def close_consumer(consumer_id: int, service_url: str = "") -> bytes:
    """Return CLOSE_CONSUMER.

    With a `service_url`, the client reconnects there at once. Without one, it looks the topic up
    after a while.
    """
    return _frame(
        BaseCommand.CLOSE_CONSUMER,
        pb.CommandCloseConsumer(
            consumer_id=consumer_id,
            request_id=NO_REQUEST,
            assignedBrokerServiceUrl=service_url or None,
        ),
    )


def partition_metadata(request_id: int, partitions: int) -> bytes:
    return _frame(
        BaseCommand.PARTITIONED_METADATA_RESPONSE,
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=request_id,
            partitions=partitions,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        ),
    )


def partition_metadata_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.PARTITIONED_METADATA_RESPONSE,
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=code,
            message=message,
        ),
    )


def lookup_connect(
    request_id: int, *, service_url: str, is_authoritative: bool, service_url_tls: str = ""
) -> bytes:
    return _frame(
        BaseCommand.LOOKUP_RESPONSE,
        pb.CommandLookupTopicResponse(
            request_id=request_id,
            brokerServiceUrl=service_url,
            brokerServiceUrlTls=service_url_tls or None,
            response=pb.CommandLookupTopicResponse.Connect,
            authoritative=is_authoritative,
            proxy_through_service_url=False,
        ),
    )


def lookup_redirect(
    request_id: int, *, service_url: str, is_authoritative: bool, service_url_tls: str = ""
) -> bytes:
    return _frame(
        BaseCommand.LOOKUP_RESPONSE,
        pb.CommandLookupTopicResponse(
            request_id=request_id,
            brokerServiceUrl=service_url,
            brokerServiceUrlTls=service_url_tls or None,
            response=pb.CommandLookupTopicResponse.Redirect,
            authoritative=is_authoritative,
        ),
    )


def lookup_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.LOOKUP_RESPONSE,
        pb.CommandLookupTopicResponse(
            request_id=request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=code,
            message=message,
        ),
    )


def ack_response(
    consumer_id: int,
    request_id: int,
    *,
    code: pb.ServerError | None = None,
    message: str | None = None,
) -> bytes:
    return _frame(
        BaseCommand.ACK_RESPONSE,
        pb.CommandAckResponse(
            consumer_id=consumer_id, request_id=request_id, error=code, message=message
        ),
    )


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    return _frame(
        BaseCommand.ACTIVE_CONSUMER_CHANGE,
        pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active),
    )


def message_id(
    position: Position,
    *,
    partition: int = -1,
    batch_index: int | None = None,
    first_chunk: Position | None = None,
) -> pb.MessageIdData:
    """Return a message id; a negative ledger or entry id travels as 2^64 plus it (trap 2)."""
    return pb.MessageIdData(
        ledgerId=position.ledger_id & _MASK_64,
        entryId=position.entry_id & _MASK_64,
        partition=partition,
        batch_index=batch_index,
        first_chunk_message_id=(
            None if first_chunk is None else message_id(first_chunk, partition=partition)
        ),
    )


def last_message_id(
    request_id: int, *, last: pb.MessageIdData, mark_delete: pb.MessageIdData | None
) -> bytes:
    return _frame(
        BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
        pb.CommandGetLastMessageIdResponse(
            request_id=request_id,
            last_message_id=last,
            consumer_mark_delete_position=mark_delete,
        ),
    )


def consumer_stats(response: pb.CommandConsumerStatsResponse) -> bytes:
    return _frame(BaseCommand.CONSUMER_STATS_RESPONSE, response)


def topics_of_namespace(
    request_id: int, topics: Sequence[str], *, topics_hash: str, is_changed: bool
) -> bytes:
    return _frame(
        BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        pb.CommandGetTopicsOfNamespaceResponse(
            request_id=request_id,
            topics=topics,
            filtered=False,
            topics_hash=topics_hash,
            changed=is_changed,
        ),
    )


def watch_topic_list_success(
    request_id: int, watcher_id: int, topics: Sequence[str], *, topics_hash: str
) -> bytes:
    return _frame(
        BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
        pb.CommandWatchTopicListSuccess(
            request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
        ),
    )


def watch_topic_update(
    watcher_id: int, new: Sequence[str], deleted: Sequence[str], *, topics_hash: str
) -> bytes:
    return _frame(
        BaseCommand.WATCH_TOPIC_UPDATE,
        pb.CommandWatchTopicUpdate(
            watcher_id=watcher_id,
            new_topics=new,
            deleted_topics=deleted,
            topics_hash=topics_hash,
        ),
    )


def schema_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.GET_SCHEMA_RESPONSE,
        pb.CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=message),
    )


def schema(request_id: int, found: pb.Schema, version: bytes) -> bytes:
    return _frame(
        BaseCommand.GET_SCHEMA_RESPONSE,
        pb.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version),
    )


def get_or_create_schema(request_id: int, version: bytes) -> bytes:
    return _frame(
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version),
    )


def get_or_create_schema_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        pb.CommandGetOrCreateSchemaResponse(
            request_id=request_id, error_code=code, error_message=message
        ),
    )


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Return REACHED_END_OF_TOPIC.

    Do not send it to clients whose name starts with Pulsar-CPP: they end the connection on it.
    """
    return _frame(
        BaseCommand.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    )


def scalable_topic_update(session_id: int, dag: pb.ScalableTopicDAG, name: str) -> bytes:
    """Return SCALABLE_TOPIC_UPDATE with the whole layout of a topic, named `topic://…`."""
    return _frame(
        BaseCommand.SCALABLE_TOPIC_UPDATE,
        pb.CommandScalableTopicUpdate(session_id=session_id, dag=dag, resolved_topic_name=name),
    )


def scalable_topic_failed(session_id: int, code: pb.ServerError, message: str) -> bytes:
    """Return SCALABLE_TOPIC_UPDATE with an error, which ends the session."""
    return _frame(
        BaseCommand.SCALABLE_TOPIC_UPDATE,
        pb.CommandScalableTopicUpdate(session_id=session_id, error=code, message=message),
    )


def scalable_topic_subscribed(request_id: int, assignment: pb.ScalableConsumerAssignment) -> bytes:
    return _frame(
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
        pb.CommandScalableTopicSubscribeResponse(request_id=request_id, assignment=assignment),
    )


def scalable_topic_subscribe_failed(request_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
        pb.CommandScalableTopicSubscribeResponse(
            request_id=request_id, error=code, message=message
        ),
    )


def scalable_topic_assignment(consumer_id: int, assignment: pb.ScalableConsumerAssignment) -> bytes:
    return _frame(
        BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE,
        pb.CommandScalableTopicAssignmentUpdate(consumer_id=consumer_id, assignment=assignment),
    )


def scalable_topics(watch_id: int, names: Sequence[str]) -> bytes:
    """Return WATCH_SCALABLE_TOPICS_UPDATE with all scalable topics of a namespace."""
    return _frame(
        BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE,
        pb.CommandWatchScalableTopicsUpdate(
            watch_id=watch_id, snapshot=pb.ScalableTopicsSnapshot(topics=names)
        ),
    )


def scalable_topics_changed(watch_id: int, new: Sequence[str], deleted: Sequence[str]) -> bytes:
    """Return WATCH_SCALABLE_TOPICS_UPDATE with new and deleted scalable topics."""
    return _frame(
        BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE,
        pb.CommandWatchScalableTopicsUpdate(
            watch_id=watch_id, diff=pb.ScalableTopicsDiff(added=new, removed=deleted)
        ),
    )


def scalable_topics_failed(watch_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE,
        pb.CommandWatchScalableTopicsUpdate(watch_id=watch_id, error=code, message=message),
    )


def coordinator_assignments(watch_id: int, snapshot: pb.TcAssignmentsSnapshot) -> bytes:
    """Return WATCH_TC_ASSIGNMENTS_UPDATE: the broker of each transaction coordinator."""
    return _frame(
        BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE,
        pb.CommandWatchTcAssignmentsUpdate(watch_id=watch_id, snapshot=snapshot),
    )


def coordinator_assignments_failed(watch_id: int, code: pb.ServerError, message: str) -> bytes:
    return _frame(
        BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE,
        pb.CommandWatchTcAssignmentsUpdate(watch_id=watch_id, error=code, message=message),
    )
