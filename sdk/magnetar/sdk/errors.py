"""Errors of the client: the wire's tree (`magnetar.sdk.wire.errors`), and what only a client meets.

SdkError                          root; `retryable`: may the same call succeed later
├── WireError, ServiceError       see `magnetar.sdk.wire.errors`
└── ClientError
    ├── InvalidUrlError           a service URL that cannot be used
    ├── TlsFileError              a certificate or list of authorities that cannot be used
    ├── BrokerUnavailableError    no connection, or it broke while a request was under way
    ├── OperationTimeoutError     no answer to a request in time
    ├── SendTimeoutError          no receipt in time: the message may or may not be stored
    ├── MessageTooLargeError      above the broker's limit
    ├── PendingLimitError         `send_nowait` with too much under way
    ├── CorruptMessageError       a received message that cannot be read; carries its id
    ├── NotSupportedError         something that this client does not do yet
    └── AlreadyClosedError        the client, producer, consumer or reader is closed
"""

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import SdkError, ServiceError, WireError, service_error

__all__ = [
    "AlreadyClosedError",
    "BrokerUnavailableError",
    "ClientError",
    "CorruptMessageError",
    "InvalidUrlError",
    "MessageTooLargeError",
    "NotSupportedError",
    "OperationTimeoutError",
    "PendingLimitError",
    "SdkError",
    "SendTimeoutError",
    "ServiceError",
    "TlsFileError",
    "WireError",
    "service_error",
]


class ClientError(SdkError):
    """Something that happened on this side of the connection."""


class InvalidUrlError(ClientError):
    """A service URL that is not of the form pulsar://host[:port][,host[:port]…]."""


class TlsFileError(ClientError):
    """A certificate, key or list of authorities that cannot be read or does not fit."""


class BrokerUnavailableError(ClientError):
    """The broker could not be reached, or the connection broke before it answered."""

    retryable = True


class OperationTimeoutError(ClientError):
    """The broker did not answer a request in time; it may have been carried out."""

    retryable = True


class SendTimeoutError(ClientError):
    """No receipt came within the send timeout: the message may or may not have been stored."""

    retryable = True


class MessageTooLargeError(ClientError):
    """The message, as it would travel, is larger than the broker accepts."""


class PendingLimitError(ClientError):
    """As much is under way as the producer's settings allow: wait, or use `send`."""

    retryable = True


class CorruptMessageError(ClientError):
    """A message arrived that cannot be read: wrong checksum, bad compression, broken batch.

    It is not acknowledged: whether to skip it is for the application to decide.
    """

    def __init__(self, message_id: MessageId, reason: str) -> None:
        super().__init__(f"message {message_id}: {reason}")
        self.message_id = message_id


class NotSupportedError(ClientError):
    """Something that this client does not do yet."""


class AlreadyClosedError(ClientError):
    """The client, producer, consumer or reader is closed."""
