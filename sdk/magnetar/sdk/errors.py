"""Errors of the client: the wire's tree (`magnetar.sdk.wire.errors`), and what only a client meets.

SdkError                          root; `retryable`: may the same call succeed later
├── WireError, ServiceError       see `magnetar.sdk.wire.errors`
└── ClientError
    ├── InvalidUrlError           a service URL that cannot be used
    ├── TlsFileError              a certificate or list of authorities that cannot be used
    ├── CredentialsError          what proves who we are cannot be had
    │   └── IssuerUnavailableError  … because the issuer of tokens is not there
    ├── BrokerUnavailableError    no connection, or it broke while a request was under way
    ├── OperationTimeoutError     no answer to a request in time
    ├── SendTimeoutError          no receipt in time: the message may or may not be stored
    ├── MessageTooLargeError      above the broker's limit
    ├── PendingLimitError         `send_nowait` with too much under way
    ├── CorruptMessageError       a received message that cannot be read; carries its id
    │   └── EncryptedMessageError a received message that no key at hand opens
    ├── SchemaError               schemas (`magnetar.sdk.schemas`)
    │   ├── SchemaDefinitionError a class or definition that cannot be a schema
    │   ├── SchemaValueError      a value or payload that does not fit its schema
    │   └── SchemaVersionError    a version whose definition is not known, or cannot be read
    ├── CryptoError               encryption (`magnetar.sdk.encryption`)
    │   ├── CryptoKeyError        a key that is missing or cannot be used
    │   └── DecryptionError       a message that no key at hand opens


    ├── UnknownTopicError         an id that does not tell a consumer of several topics which it is
    ├── TooSlowError              more changes waited for a reader of a table view than may
    ├── NotSupportedError         something that this client does not do, or not here
    ├── TransactionEndedError     a transaction that is committed or aborted already, or must be
    ├── ForkedError               a client that was made before a fork, in the child
    └── AlreadyClosedError        the client, producer, consumer or reader is closed
"""

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.errors import SdkError, ServiceError, WireError, service_error

__all__ = [
    "AlreadyClosedError",
    "BrokerUnavailableError",
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
    "MessageTooLargeError",
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
    """Something that happened on this side of the connection."""


class InvalidUrlError(ClientError):
    """A service URL that is not of the form pulsar://host[:port][,host[:port]…]."""


class TlsFileError(ClientError):
    """A certificate, key or list of authorities that cannot be read or does not fit."""


class CredentialsError(ClientError):
    """A token, or what else proves who we are, that cannot be read or was refused by its issuer."""


class IssuerUnavailableError(CredentialsError):
    """The issuer of tokens cannot be reached, or has trouble of its own; or what else the
    credentials come from cannot be read for now."""

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


class EncryptedMessageError(CorruptMessageError):
    """A message arrived that no key at hand opens; it is not acknowledged."""


class SchemaError(ClientError):
    """Something about schemas; the broker's own refusal is `IncompatibleSchemaError`."""


class SchemaDefinitionError(SchemaError):
    """A class or a definition that cannot be a schema here."""


class SchemaValueError(SchemaError):
    """A value, or a received payload, that does not fit its schema."""


class SchemaVersionError(SchemaError):
    """A message of a version whose definition is not known here, or is of no use to the schema."""


class CryptoError(ClientError):
    """Something about the encryption of messages."""


class CryptoKeyError(CryptoError):
    """A key that the key reader does not have, or that cannot be used."""


class DecryptionError(CryptoError):
    """A message that was encrypted for keys that are not at hand, or that was tampered with."""


class UnknownTopicError(ClientError):
    """An id does not tell a consumer of several topics of which it is: give the message."""


class TooSlowError(ClientError):
    """More changes of a table view waited to be looked at than its settings allow."""


class NotSupportedError(ClientError):
    """Something that this client does not do, or not here."""


class TransactionEndedError(ClientError):
    """The transaction is committed or aborted already, or can only be aborted."""


class ForkedError(ClientError):
    """The client was made before this process was forked: it belongs to the parent."""


class AlreadyClosedError(ClientError):
    """The client, producer, consumer or reader is closed."""
