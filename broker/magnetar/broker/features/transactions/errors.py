"""Errors of transactions; part of the broker's tree, see `magnetar.broker.base.errors`.

RequestError
├── AlreadyStoredError                      the message is stored; the producer gets a receipt
├── CoordinatorNotFoundError           20   another broker serves the coordinator, or none yet
├── InvalidTransactionStatusError      21   the transaction has ended, or is ending
├── NotAllowedError
│   └── TransactionsDisabledError      22   the settings switch transactions off
├── TransactionConflictError           23   another transaction has acknowledged the message
└── TransactionNotFoundError           24   the id is unknown, or the transaction ended long ago
"""

from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.sdk.wire.pulsar_pb2 import ServerError


class TransactionsDisabledError(NotAllowedError):
    """The brokers' settings switch transactions off."""

    def __init__(self) -> None:
        super().__init__(
            "transactions are disabled on this broker: set transaction_coordinator_enabled on all "
            "brokers to use them"
        )


class CoordinatorNotFoundError(RequestError):
    """The broker does not serve the coordinator now; the client has to look it up again."""

    code = ServerError.TransactionCoordinatorNotFound
    retryable = True


class InvalidTransactionStatusError(RequestError):
    """The transaction is ending, or has ended the other way."""

    code = ServerError.InvalidTxnStatus


class TransactionConflictError(RequestError):
    """The message is acknowledged already, for good or by another transaction."""

    code = ServerError.TransactionConflict


class AlreadyStoredError(RequestError):
    """A producer sends a stored message of a transaction again; it gets the receipt."""


class TransactionNotFoundError(RequestError):
    """No transaction has this id, or it ended so long ago that it is forgotten."""

    code = ServerError.TransactionNotFound
