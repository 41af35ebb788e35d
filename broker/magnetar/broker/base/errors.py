"""Errors of the broker.

BrokerError                        root
├── ProtocolViolationError         the client broke the protocol: its connection is closed
├── ListenError                    an address to listen on is taken or not ours
├── NotRegisteredError             the broker cannot be one of the cluster's brokers
└── RequestError                   one request is refused; `code` travels in the answer
    ├── UnknownFailureError            0   anything without a code of its own
    ├── BrokerMetadataError            1   metadata trouble, or arguments that make no sense
    │   └── UnreadableRecordError          a value in the store is of no known form
    ├── BrokerPersistenceError         2   the ledger store cannot store or read just now
    ├── AuthenticationError            3   the client did not prove its identity
    ├── AuthorizationError             4   the role may not do that
    ├── ConsumerBusyError              5   the subscription is taken, or of another type
    ├── ServiceNotReadyError           6   the topic is loading, moving or closing: try again
    ├── BacklogQuotaHoldError          7   the backlog is above its quota: producers are held
    ├── BacklogQuotaExceptionError     8   the backlog is above its quota: producers get an error
    ├── MessageChecksumError           9   a message arrived damaged
    ├── UnsupportedVersionError       10   a command that this broker does not speak
    ├── TopicNotFoundError            11   no such topic
    │   └── NamespaceNotFoundError         no such tenant or namespace
    ├── SubscriptionNotFoundError     12   no such subscription
    ├── ConsumerNotFoundError         13   no such consumer
    ├── TooManyRequestsError          14   a limit on concurrent requests is reached
    ├── TopicTerminatedError          15   the topic takes no more messages, for good
    ├── ProducerBusyError             16   the producer's name is taken; a bad subscription name
    ├── InvalidTopicNameError         17   not a valid topic name
    ├── schemas.IncompatibleSchemaError 18  the schema does not fit those of the topic
    │   └── schemas.InvalidSchemaError     it is no definition of its type
    ├── schemas.SchemaNotFoundError   11   the topic has no schema, or none of that version
    ├── ConsumerAssignError           19   the hash ranges of a consumer are invalid or taken
    ├── NotAllowedError               22   a feature that is not built yet, or a limit
    │   ├── TopicConflictError             a topic of that name exists, or is of the other kind
    │   └── PartitionCountError            too many partitions, or too few
    ├── NotThereError                      HTTP: what is managed does not exist
    │   └── TenantNotFoundError            HTTP: no such tenant
    ├── ConflictError                      HTTP: it exists already, or is in use
    ├── InvalidNameError                   HTTP: a name that is not valid
    └── ProducerFencedError           25   another producer has exclusive access to the topic

Callers decide on the class and on `retryable`, never on the text. The text goes to the client.
"""

from typing import ClassVar

from magnetar.sdk.wire.pulsar_pb2 import ServerError


class BrokerError(Exception):
    """Root of the component's errors."""


class ProtocolViolationError(BrokerError):
    """The client sent what the protocol does not allow: the connection must be closed."""


class ListenError(BrokerError):
    """An address to listen on is taken or does not belong to this host."""


class NotRegisteredError(BrokerError):
    """The broker cannot join the others: its name is taken, or the store does not let it."""


class RequestError(BrokerError):
    """One request is refused. `code` and the text are the answer."""

    code: ClassVar[ServerError] = ServerError.UnknownError
    retryable: ClassVar[bool] = False


class UnknownFailureError(RequestError):
    """Anything without a code of its own."""

    retryable = True


class BrokerMetadataError(RequestError):
    """Metadata trouble, or arguments that make no sense."""

    code = ServerError.MetadataError
    retryable = True


class UnreadableRecordError(BrokerMetadataError):
    """A value in the metadata store is not of a known form; only an operator can mend that."""

    retryable = False


class BrokerPersistenceError(RequestError):
    """The ledger store cannot store or read just now."""

    code = ServerError.PersistenceError
    retryable = True


class AuthenticationError(RequestError):
    """Credentials are missing, wrong, or not valid any more. The text never holds any of them."""

    code = ServerError.AuthenticationError


class AuthorizationError(RequestError):
    """The role was not granted what it asks for, or nobody may do it."""

    code = ServerError.AuthorizationError


class ConsumerBusyError(RequestError):
    """The subscription is taken, or its consumers use it with another type."""

    code = ServerError.ConsumerBusy


class ConsumerAssignError(RequestError):
    """The hash ranges of a consumer are invalid, or another consumer has them."""

    code = ServerError.ConsumerAssignError


class ServiceNotReadyError(RequestError):
    """The topic is loading, moving or closing: look it up again."""

    code = ServerError.ServiceNotReady
    retryable = True


class BacklogQuotaHoldError(RequestError):
    """The backlog of the topic is above its quota; producers wait until it is below."""

    code = ServerError.ProducerBlockedQuotaExceededError
    retryable = True


class BacklogQuotaExceptionError(RequestError):
    """The backlog of the topic is above its quota; producers get an error."""

    code = ServerError.ProducerBlockedQuotaExceededException
    retryable = True


class MessageChecksumError(RequestError):
    """A message does not match its checksum."""

    code = ServerError.ChecksumError


class UnsupportedVersionError(RequestError):
    """A command that this broker does not speak."""

    code = ServerError.UnsupportedVersionError


class TopicNotFoundError(RequestError):
    """No such topic, tenant or namespace, and it may not be created."""

    code = ServerError.TopicNotFound


class NamespaceNotFoundError(TopicNotFoundError):
    """No such tenant or namespace. On the wire it is a topic that is not there."""


class NotThereError(RequestError):
    """A tenant, cluster or policy that somebody manages does not exist. HTTP only."""

    code = ServerError.TopicNotFound


class TenantNotFoundError(NotThereError):
    """No such tenant. HTTP only."""


class ConflictError(RequestError):
    """What is to be made exists already, or what is to be taken away is in use. HTTP only."""

    code = ServerError.NotAllowedError


class InvalidNameError(RequestError):
    """A name that cannot be one, or that names nothing where something must be. HTTP only."""

    code = ServerError.NotAllowedError


class InvalidPolicyError(RequestError):
    """A policy cannot have this value. HTTP only, with `status`; `detail` says what the text, which
    has Pulsar's words then, does not."""

    code = ServerError.NotAllowedError

    def __init__(self, text: str, detail: str = "", *, status: int = 412) -> None:
        super().__init__(text)
        self.detail = detail
        self.status = status


class SubscriptionNotFoundError(RequestError):
    """No such subscription."""

    code = ServerError.SubscriptionNotFound


class ConsumerNotFoundError(RequestError):
    """No such consumer on this connection."""

    code = ServerError.ConsumerNotFound


class TooManyRequestsError(RequestError):
    """A limit on concurrent requests is reached."""

    code = ServerError.TooManyRequests
    retryable = True


class TopicTerminatedError(RequestError):
    """The topic was terminated: it can only be read."""

    code = ServerError.TopicTerminatedError


class ProducerBusyError(RequestError):
    """The producer's name is taken. The protocol also uses this code for bad subscription names."""

    code = ServerError.ProducerBusy


class InvalidTopicNameError(RequestError):
    """The topic name is not valid."""

    code = ServerError.InvalidTopicName


class NotAllowedError(RequestError):
    """A feature that is not built yet, or a limit that is exceeded."""

    code = ServerError.NotAllowedError


class TopicConflictError(NotAllowedError):
    """A topic of that name exists already, or it is of the other kind: partitioned, or not."""


class PartitionCountError(NotAllowedError):
    """A topic cannot have so many partitions, or so few."""


class ProducerFencedError(RequestError):
    """Another producer has, or had meanwhile, exclusive access. Final for the client."""

    code = ServerError.ProducerFenced
