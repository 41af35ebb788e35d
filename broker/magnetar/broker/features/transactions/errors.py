"""Errors of transactions; part of the broker's tree, see `magnetar.broker.base.errors`.

RequestError
├── CoordinatorNotFoundError           20   the coordinator is served elsewhere, or not yet
├── InvalidTransactionStatusError      21   it was ended the other way, or ends already
├── TransactionConflictError           23   another transaction has acknowledged the message
└── TransactionNotFoundError           24   there never was one of that id, or long ago
"""

from magnetar.broker.base.errors import RequestError
from magnetar.sdk.wire.pulsar_pb2 import ServerError


class CoordinatorNotFoundError(RequestError):
    """The coordinator is not here just now: look it up again."""

    code = ServerError.TransactionCoordinatorNotFound
    retryable = True


class InvalidTransactionStatusError(RequestError):
    """The transaction ends already, or has ended the other way."""

    code = ServerError.InvalidTxnStatus


class TransactionConflictError(RequestError):
    """The message is acknowledged already, for good or by another transaction."""

    code = ServerError.TransactionConflict


class AlreadyStoredError(RequestError):
    """A producer sends a message of a transaction again, which is stored: it gets its receipt."""


class TransactionNotFoundError(RequestError):
    """There never was a transaction of that id, or it ended too long ago to be remembered."""

    code = ServerError.TransactionNotFound
