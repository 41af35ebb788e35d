"""Errors of the client: the tree of `magnetar.sdk.wire.errors`, and what only a client raises.

SdkError                          root; `retryable`: may the same call succeed later
├── WireError, ServiceError, MissingPackageError  see `magnetar.sdk.wire.errors`
└── ClientError
    ├── InvalidUrlError           a service URL that cannot be used
    ├── TlsFileError              a certificate or list of authorities that cannot be used
    ├── CredentialsError          the credentials cannot be read, or were refused
    │   └── IssuerUnavailableError  the token issuer cannot be reached
    ├── BrokerUnavailableError    no connection, or it broke while a request was under way
    ├── OperationTimeoutError     no answer to a request in time
    ├── SendTimeoutError          no receipt in time: the message may or may not be stored
    ├── MessageTooLargeError      above the broker's limit
    ├── PendingLimitError         `send_nowait` beyond the limit of pending messages
    ├── CorruptMessageError       a received message that cannot be read; carries its id
    │   └── EncryptedMessageError a received message that none of the keys decrypts
    ├── SchemaError               schemas (`magnetar.sdk.schemas`)
    │   ├── SchemaDefinitionError a class or definition that cannot be a schema
    │   ├── SchemaValueError      a value or payload that does not fit its schema
    │   └── SchemaVersionError    a version whose definition is not known, or cannot be read
    ├── CryptoError               encryption (`magnetar.sdk.encryption`)
    │   ├── CryptoKeyError        a key that is missing or cannot be used
    │   └── DecryptionError       a message that none of the keys decrypts
    ├── LayoutError               a layout, or an assignment of segments, that cannot be used
    ├── CheckpointError           bytes that are no checkpoint
    ├── UnknownTopicError         a message id that does not identify its topic
    ├── TooSlowError              a reader of a table view fell behind too far
    ├── NotSupportedError         not supported by this client, or not here
    ├── TransactionEndedError     the transaction has ended, or can only be aborted
    ├── ForkedError               use of a parent's client after a fork
    └── AlreadyClosedError        the client, producer, consumer or reader is closed
"""

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import (
    MissingPackageError,
    SdkError,
    ServiceError,
    WireError,
    service_error,
)

__all__ = [
    "AlreadyClosedError",
    "BrokerUnavailableError",
    "CheckpointError",
    "ClientError",
    "CorruptMessageError",
    "CredentialsError",
    "CryptoError",
    "CryptoKeyError",
    "DecryptionError",
    "EncryptedMessageError",
    "ForkedError",
    "InvalidUrlError",
    "IssuerUnavailableError",
    "LayoutError",
    "MessageTooLargeError",
    "MissingPackageError",
    "NotSupportedError",
    "OperationTimeoutError",
    "PendingLimitError",
    "SchemaDefinitionError",
    "SchemaError",
    "SchemaValueError",
    "SchemaVersionError",
    "SdkError",
    "SendTimeoutError",
    "ServiceError",
    "TlsFileError",
    "TooSlowError",
    "TransactionEndedError",
    "UnknownTopicError",
    "WireError",
    "service_error",
]


class ClientError(SdkError):
    """Root of the errors that the client itself finds; the others come from the broker."""


class InvalidUrlError(ClientError):
    """A service URL that is not of the form `pulsar://host[:port][,host[:port]…]`."""


class TlsFileError(ClientError):
    """A certificate, key or list of authorities that cannot be read or does not fit."""


class CredentialsError(ClientError):
    """The client's credentials cannot be read, or their issuer refused them."""


class IssuerUnavailableError(CredentialsError):
    """The token issuer, or another source of the credentials, cannot be reached or fails now."""

    retryable = True


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
    """The message, after compression and encryption, is larger than the broker accepts."""


class PendingLimitError(ClientError):
    """The limit of pending messages of the producer is reached: wait, or use `send`."""

    retryable = True


class CorruptMessageError(ClientError):
    """A received message cannot be read: wrong checksum, bad compression, broken batch.

    The message is not acknowledged: the application decides whether to skip it.
    """

    def __init__(self, message_id: MessageId, reason: str) -> None:
        super().__init__(f"message {message_id}: {reason}")
        self.message_id = message_id


class EncryptedMessageError(CorruptMessageError):
    """None of the keys decrypts a received message; the message is not acknowledged."""


class SchemaError(ClientError):
    """Root of schema errors; the broker's own refusal is `IncompatibleSchemaError`."""


class SchemaDefinitionError(SchemaError):
    """A class or definition cannot be a schema here."""


class SchemaValueError(SchemaError):
    """A value, or a received payload, does not fit its schema."""


class SchemaVersionError(SchemaError):
    """The schema version of a message is unknown here, or cannot be resolved by the schema."""


class CryptoError(ClientError):
    """Root of the errors in message encryption."""


class CryptoKeyError(CryptoError):
    """The key reader does not have a key, or the key cannot be used."""


class DecryptionError(CryptoError):
    """A message was encrypted for other keys, or was tampered with."""


class LayoutError(ClientError):
    """A broker sent a layout of a topic, or an assignment of segments, that cannot be used."""


class CheckpointError(ClientError):
    """The bytes are no checkpoint of a topic, or have a version that this client does not know."""


class UnknownTopicError(ClientError):
    """A consumer of several topics cannot tell the topic of a message id: pass the message."""


class TooSlowError(ClientError):
    """The reader of a table view's changes fell behind by more than `changes_max`."""


class NotSupportedError(ClientError):
    """The client does not support the call, or not with these settings or topics."""


class TransactionEndedError(ClientError):
    """The transaction is committed or aborted already, or can only be aborted."""


class ForkedError(ClientError):
    """The client was made before this process was forked: it belongs to the parent."""


class AlreadyClosedError(ClientError):
    """The client, producer, consumer or reader is closed."""
