"""Errors of the SDK and of the Pulsar wire protocol.

SdkError                               root; `retryable`: may the same call succeed later
├── WireError                          bytes or names that the protocol does not allow
│   ├── FrameError                     the connection that sent it must be closed
│   │   ├── FrameTooLargeError         a frame above the agreed limit
│   │   ├── MalformedFrameError        sizes that contradict each other, or no valid command
│   │   └── UnknownCommandError        a well-formed command of a type that is not known here
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
    """The byte stream is no longer valid: the connection must be closed."""


class FrameTooLargeError(FrameError):
    """A frame is above the limit that both sides agreed on."""


class MalformedFrameError(FrameError):
    """Sizes contradict each other, or bytes are not a command."""


class UnknownCommandError(FrameError):
    """A well-formed command has a type that this version does not know."""


class MalformedPayloadError(WireError):
    """The part of a SEND or MESSAGE after the command breaks the format."""


class PayloadChecksumError(MalformedPayloadError):
    """The CRC32C of a payload does not match what follows it."""


class TopicNameError(WireError):
    """A topic name has no known form; the wire code for it is InvalidTopicName."""

    code: ClassVar[ServerError] = ServerError.InvalidTopicName


class MissingPackageError(SdkError):
    """A Python package is needed and not installed; the message says what to install."""


class ServiceError(SdkError):
    """The broker refused a request. The message is the broker's own text.

    `code` is the class's number on the wire. `server_code` is the received number, which differs
    only if a newer broker sends a code that is unknown here.
    """

    code: ClassVar[ServerError] = ServerError.UnknownError
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, server_code: int | None = None) -> None:
        super().__init__(message)
        self.server_code: int = self.code if server_code is None else server_code


class UnknownServiceError(ServiceError):
    """An error without a code of its own, or with an unknown code."""


class BrokerMetadataError(ServiceError):
    """The broker's metadata store failed, or the broker refused the message's metadata."""

    code = ServerError.MetadataError


class BrokerPersistenceError(ServiceError):
    """The ledger store failed to store or read."""

    code = ServerError.PersistenceError


class AuthenticationError(ServiceError):
    """The credentials are wrong."""

    code = ServerError.AuthenticationError
    retryable = False


class AuthorizationError(ServiceError):
    """The role is not permitted to do this."""

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
    """The backlog quota is exceeded; the policy asks the producer to hold."""

    code = ServerError.ProducerBlockedQuotaExceededError
    retryable = False


class ProducerQuotaExceededError(ServiceError):
    """The backlog quota is exceeded; the policy asks the producer to fail."""

    code = ServerError.ProducerBlockedQuotaExceededException
    retryable = False


class MessageChecksumError(ServiceError):
    """The message arrived damaged."""

    code = ServerError.ChecksumError
    retryable = False


class UnsupportedVersionError(ServiceError):
    """The broker does not offer the feature, or not to this protocol version."""

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
    """The broker has too many lookups in progress."""

    code = ServerError.TooManyRequests


class TopicTerminatedError(ServiceError):
    """The topic takes no more messages."""

    code = ServerError.TopicTerminatedError
    retryable = False


class ProducerBusyError(ServiceError):
    """A producer of this name is connected, or the topic has too many producers."""

    code = ServerError.ProducerBusy
    retryable = False


class InvalidTopicNameError(ServiceError):
    """The broker did not accept the topic's name."""

    code = ServerError.InvalidTopicName
    retryable = False


class IncompatibleSchemaError(ServiceError):
    """The schema does not fit the topic's schemas."""

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
    """The transaction's state does not allow the request."""

    code = ServerError.InvalidTxnStatus
    retryable = False


class NotAllowedError(ServiceError):
    """A policy or a limit forbids the request."""

    code = ServerError.NotAllowedError
    retryable = False


class TransactionConflictError(ServiceError):
    """The message is acknowledged already, perhaps by another transaction."""

    code = ServerError.TransactionConflict
    retryable = False


class TransactionNotFoundError(ServiceError):
    """The transaction is unknown or has ended."""

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
    """Return the error for a code from the wire; an unknown code gives an `UnknownServiceError`."""
    return SERVICE_ERRORS.get(code, UnknownServiceError)(message, server_code=code)
