"""Errors of the SDK and of the Pulsar wire protocol.

SdkError                               root; `retryable`: may the same call succeed later
├── WireError                          bytes or names that the protocol does not allow
│   ├── FrameError                     the connection that sent it must be closed
│   │   ├── FrameTooLargeError         a frame above the agreed limit
│   │   ├── MalformedFrameError        sizes that contradict each other, or no valid command
│   │   └── UnknownCommandError        a well-formed command of a type that we do not speak
│   ├── MalformedPayloadError          a SEND or MESSAGE payload (headers, metadata, batch)
│   │   └── PayloadChecksumError       its checksum does not match
│   └── TopicNameError                 a topic name of no known shape
├── MissingPackageError                a Python package that is not installed; the text says which
└── ServiceError                       the broker's answer; `code` is its number on the wire
    └── one class per ServerError code, listed in `SERVICE_ERRORS`

The client adds its own errors to this tree in `magnetar.sdk.errors`.
"""

from typing import ClassVar

from magnetar.sdk.wire.pulsar_pb2 import ServerError


class SdkError(Exception):
    """Root of the errors of the SDK."""

    retryable: ClassVar[bool] = False


class WireError(SdkError):
    """Bytes or names that the protocol does not allow."""


class FrameError(WireError):
    """The byte stream makes no sense any more: the connection must be closed."""


class FrameTooLargeError(FrameError):
    """A frame above the limit that both sides agreed on."""


class MalformedFrameError(FrameError):
    """Sizes that contradict each other, or bytes that are no command."""


class UnknownCommandError(FrameError):
    """A well-formed command of a type that this version does not speak."""


class MalformedPayloadError(WireError):
    """The part of a SEND or MESSAGE after the command breaks the format."""


class PayloadChecksumError(MalformedPayloadError):
    """The CRC32C of a payload does not match what follows it."""


class TopicNameError(WireError):
    """A topic name of no known shape; the wire code for it is InvalidTopicName."""

    code: ClassVar[ServerError] = ServerError.InvalidTopicName


class MissingPackageError(SdkError):
    """A Python package is needed and not installed; the message says what to install."""


class ServiceError(SdkError):
    """The broker refused. The message is the broker's own text.

    `code` is the class's number on the wire; `server_code` is what really arrived, which differs
    only when the broker is newer and speaks of a code that is unknown here.
    """

    code: ClassVar[ServerError] = ServerError.UnknownError
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, server_code: int | None = None) -> None:
        super().__init__(message)
        self.server_code: int = self.code if server_code is None else server_code


class UnknownServiceError(ServiceError):
    """Anything that has no code of its own."""


class BrokerMetadataError(ServiceError):
    """The broker's metadata store failed, or the message's metadata was refused."""

    code = ServerError.MetadataError


class BrokerPersistenceError(ServiceError):
    """The ledger store could not store or read."""

    code = ServerError.PersistenceError


class AuthenticationError(ServiceError):
    """The credentials are wrong."""

    code = ServerError.AuthenticationError
    retryable = False


class AuthorizationError(ServiceError):
    """The role may not do this."""

    code = ServerError.AuthorizationError
    retryable = False


class ConsumerBusyError(ServiceError):
    """The subscription is taken, is of another type, or has too many consumers."""

    code = ServerError.ConsumerBusy
    retryable = False


class ServiceNotReadyError(ServiceError):
    """The topic is moving, starting or fenced: look it up again."""

    code = ServerError.ServiceNotReady


class ProducerQuotaHoldError(ServiceError):
    """The backlog quota is used up; the policy asks the producer to hold."""

    code = ServerError.ProducerBlockedQuotaExceededError
    retryable = False


class ProducerQuotaExceededError(ServiceError):
    """The backlog quota is used up; the policy asks the producer to fail."""

    code = ServerError.ProducerBlockedQuotaExceededException
    retryable = False


class MessageChecksumError(ServiceError):
    """The message arrived damaged."""

    code = ServerError.ChecksumError
    retryable = False


class UnsupportedVersionError(ServiceError):
    """The broker does not offer this to this protocol version, or not at all."""

    code = ServerError.UnsupportedVersionError
    retryable = False


class TopicNotFoundError(ServiceError):
    """The topic does not exist and may not be created."""

    code = ServerError.TopicNotFound
    retryable = False


class SubscriptionNotFoundError(ServiceError):
    """The subscription does not exist and may not be created."""

    code = ServerError.SubscriptionNotFound
    retryable = False


class ConsumerNotFoundError(ServiceError):
    """The broker does not know the consumer."""

    code = ServerError.ConsumerNotFound
    retryable = False


class TooManyRequestsError(ServiceError):
    """The broker has too many lookups under way."""

    code = ServerError.TooManyRequests


class TopicTerminatedError(ServiceError):
    """The topic takes no more messages."""

    code = ServerError.TopicTerminatedError
    retryable = False


class ProducerBusyError(ServiceError):
    """A producer of this name is connected, or there are too many."""

    code = ServerError.ProducerBusy
    retryable = False


class InvalidTopicNameError(ServiceError):
    """The broker did not accept the topic's name."""

    code = ServerError.InvalidTopicName
    retryable = False


class IncompatibleSchemaError(ServiceError):
    """The schema does not fit the topic's."""

    code = ServerError.IncompatibleSchema
    retryable = False


class ConsumerAssignError(ServiceError):
    """The hash ranges of a Key_Shared consumer collide with another's."""

    code = ServerError.ConsumerAssignError
    retryable = False


class TransactionCoordinatorNotFoundError(ServiceError):
    """No coordinator for the transaction was found: look it up again."""

    code = ServerError.TransactionCoordinatorNotFound
    retryable = True


class InvalidTransactionStatusError(ServiceError):
    """The transaction is in a state that does not allow this."""

    code = ServerError.InvalidTxnStatus
    retryable = False


class NotAllowedError(ServiceError):
    """A policy or a limit forbids it."""

    code = ServerError.NotAllowedError
    retryable = False


class TransactionConflictError(ServiceError):
    """Another transaction has acknowledged the message."""

    code = ServerError.TransactionConflict
    retryable = False


class TransactionNotFoundError(ServiceError):
    """The transaction is unknown or over."""

    code = ServerError.TransactionNotFound
    retryable = False


class ProducerFencedError(ServiceError):
    """Another producer has, or took, exclusive access to the topic."""

    code = ServerError.ProducerFenced
    retryable = False


SERVICE_ERRORS: dict[int, type[ServiceError]] = {
    error.code: error
    for error in (
        UnknownServiceError,
        BrokerMetadataError,
        BrokerPersistenceError,
        AuthenticationError,
        AuthorizationError,
        ConsumerBusyError,
        ServiceNotReadyError,
        ProducerQuotaHoldError,
        ProducerQuotaExceededError,
        MessageChecksumError,
        UnsupportedVersionError,
        TopicNotFoundError,
        SubscriptionNotFoundError,
        ConsumerNotFoundError,
        TooManyRequestsError,
        TopicTerminatedError,
        ProducerBusyError,
        InvalidTopicNameError,
        IncompatibleSchemaError,
        ConsumerAssignError,
        TransactionCoordinatorNotFoundError,
        InvalidTransactionStatusError,
        NotAllowedError,
        TransactionConflictError,
        TransactionNotFoundError,
        ProducerFencedError,
    )
}
"""Error class of each code; a test checks that no code of the protocol is missing."""


def service_error(code: int, message: str) -> ServiceError:
    """The error for a code from the wire; unknown codes become `UnknownServiceError`."""
    return SERVICE_ERRORS.get(code, UnknownServiceError)(message, server_code=code)
