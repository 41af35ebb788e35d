"""Errors of the broker.

BrokerError                        root
├── ProtocolViolationError         the client broke the protocol: its connection is closed
├── ListenError                    an address to listen on is taken, or not of this host
├── NotRegisteredError             the broker cannot register with the cluster
└── RequestError                   one request is refused; `code` travels in the answer
    ├── UnknownFailureError            0   any failure without a code of its own
    ├── BrokerMetadataError            1   metadata trouble, or arguments that make no sense
    │   └── UnreadableRecordError          a value in the metadata store has no known form
    ├── BrokerPersistenceError         2   the ledger store cannot store or read at present
    ├── AuthenticationError            3   the client did not prove its identity
    ├── AuthorizationError             4   the role lacks the permission
    ├── ConsumerBusyError              5   the subscription is taken, or of another type
    ├── ServiceNotReadyError           6   the topic is loading, moving or closing: try again
    ├── BacklogQuotaHoldError          7   the backlog is above its quota: producers are held
    ├── BacklogQuotaExceptionError     8   the backlog is above its quota: producers get an error
    ├── MessageChecksumError           9   a message arrived damaged
    ├── UnsupportedVersionError       10   the broker does not support the command
    ├── TopicNotFoundError            11   no such topic
    │   └── NamespaceNotFoundError         no such tenant or namespace
    ├── SubscriptionNotFoundError     12   no such subscription
    ├── ConsumerNotFoundError         13   no such consumer
    ├── TooManyRequestsError          14   a limit on concurrent requests is reached
    ├── TopicTerminatedError          15   the topic takes no more messages, for good
    ├── ProducerBusyError             16   the producer's name is taken; a bad subscription name
    ├── InvalidTopicNameError         17   not a valid topic name
    ├── schemas.IncompatibleSchemaError 18  the schema does not fit those of the topic
    │   └── schemas.InvalidSchemaError     the schema is no definition of its type
    ├── schemas.SchemaNotFoundError   11   the topic has no schema, or none of that version
    ├── ConsumerAssignError           19   the hash ranges of a consumer are invalid or taken
    ├── NotAllowedError               22   a feature that is not built yet, or a limit
    │   ├── TopicConflictError             a topic of that name exists, or is of the other kind
    │   └── PartitionCountError            too many partitions, or too few
    ├── NotThereError                      HTTP: the managed object does not exist
    │   └── TenantNotFoundError            HTTP: no such tenant
    ├── ConflictError                      HTTP: the object exists already, or is in use
    ├── InvalidNameError                   HTTP: a name that is not valid
    └── ProducerFencedError           25   another producer has exclusive access to the topic

Callers decide on the class and on `retryable`, never on the text. The text goes to the client.
"""

from typing import ClassVar

from magnetar.sdk.wire.pulsar_pb2 import ServerError


class BrokerError(Exception):
    """Root of the component's errors."""


class ProtocolViolationError(BrokerError):
    """The client broke the protocol: its connection must be closed."""


class ListenError(BrokerError):
    """An address to listen on is taken or does not belong to this host."""


class NotRegisteredError(BrokerError):
    """The broker cannot register with the cluster: its name is taken, or the store refuses it."""


class RequestError(BrokerError):
    """One request is refused. `code` and the text go into the answer."""

    code: ClassVar[ServerError] = ServerError.UnknownError
    retryable: ClassVar[bool] = False


class UnknownFailureError(RequestError):
    """Any failure without a code of its own."""

    retryable = True


class BrokerMetadataError(RequestError):
    """Metadata trouble, or arguments that make no sense."""

    code = ServerError.MetadataError
    retryable = True


class UnreadableRecordError(BrokerMetadataError):
    """A value in the metadata store has no known form; only an operator can repair it."""

    retryable = False


class BrokerPersistenceError(RequestError):
    """The ledger store cannot store or read at present."""

    code = ServerError.PersistenceError
    retryable = True


class AuthenticationError(RequestError):
    """Credentials are missing, wrong, or no longer valid. The text never contains credentials."""

    code = ServerError.AuthenticationError


class AuthorizationError(RequestError):
    """The role lacks the permission for the request, or nobody may do it."""

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
    """The broker does not support the command."""

    code = ServerError.UnsupportedVersionError


class TopicNotFoundError(RequestError):
    """No such topic, tenant or namespace, and it may not be created."""

    code = ServerError.TopicNotFound


class NamespaceNotFoundError(TopicNotFoundError):
    """No such tenant or namespace. Clients get the code of a missing topic."""


class NotThereError(RequestError):
    """A tenant, cluster or policy that a request manages does not exist. HTTP only."""

    code = ServerError.TopicNotFound


class TenantNotFoundError(NotThereError):
    """No such tenant. HTTP only."""


class ConflictError(RequestError):
    """The object to create exists already, or the object to delete is in use. HTTP only."""

    code = ServerError.NotAllowedError


class InvalidNameError(RequestError):
    """A name is not valid, or is missing where one is required. HTTP only."""

    code = ServerError.NotAllowedError


class InvalidPolicyError(RequestError):
    """A policy cannot have this value. HTTP only, with `status`.

    If `detail` is given, the text has Pulsar's words, and `detail` adds what they leave out.
    """

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


class PartitionedTopicError(NotAllowedError):
    """The name is that of a partitioned topic, which has no log: its partitions have."""


class PartitionCountError(NotAllowedError):
    """A topic cannot have that many partitions, or that few."""


class ProducerFencedError(RequestError):
    """Another producer has exclusive access, or had it in the meantime. Final for the client."""

    code = ServerError.ProducerFenced
