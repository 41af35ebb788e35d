"""Errors that WebSocket clients get: HTTP statuses, error codes, close codes. Pure.

WebSocketError
├── UpgradeRefusedError     before the session: an HTTP status and a reason
└── BadFrameError           an invalid frame of the client; `code` says in which way

Source: WebSocket sheet, section 6.
"""

from enum import IntEnum
from typing import Final

from magnetar.broker.base.errors import NamespaceNotFoundError
from magnetar.sdk.errors import (
    InvalidUrlError,
    NotSupportedError,
    OperationTimeoutError,
    SdkError,
)
from magnetar.sdk.wire.errors import (
    AuthenticationError,
    AuthorizationError,
    ConsumerAssignError,
    ConsumerBusyError,
    IncompatibleSchemaError,
    InvalidTopicNameError,
    ProducerBusyError,
    ProducerFencedError,
    ProducerQuotaExceededError,
    ProducerQuotaHoldError,
    SubscriptionNotFoundError,
    TooManyRequestsError,
    TopicNameError,
    TopicNotFoundError,
    TopicTerminatedError,
)

CLOSE_GOING_AWAY: Final = 1001
CLOSE_UNSUPPORTED: Final = 1003
CLOSE_BAD_DATA: Final = 1007
CLOSE_NOT_ALLOWED: Final = 1008
CLOSE_INTERNAL: Final = 1011


class Code(IntEnum):
    """Codes of `send-error:N`. They may not be sent as close codes: those of RFC 6455 begin at
    1000."""

    CREATE_PRODUCER = 1
    SUBSCRIBE = 2
    BAD_JSON = 3
    SERIALIZE = 4
    AUTHENTICATE = 5
    NOT_AUTHORIZED = 6
    BAD_PAYLOAD = 7
    UNKNOWN = 8

    @property
    def text(self) -> str:
        """Description of the code."""
        return _TEXTS[self]


_TEXTS = {
    Code.CREATE_PRODUCER: "failed to create producer",
    Code.SUBSCRIBE: "failed to subscribe",
    Code.BAD_JSON: "failed to de-serialize from JSON",
    Code.SERIALIZE: "failed to serialize to JSON",
    Code.AUTHENTICATE: "failed to authenticate client",
    Code.NOT_AUTHORIZED: "client is not authorized",
    Code.BAD_PAYLOAD: "invalid payload encoding",
    Code.UNKNOWN: "unknown error",
}


class WebSocketError(Exception):
    """Root of the errors of this interface."""


class UpgradeRefusedError(WebSocketError):
    """The session is refused before it begins."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class BadFrameError(WebSocketError):
    """An invalid frame; `context` is the client's own mark, if it could be read."""

    def __init__(self, code: Code, reason: str, *, context: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.context = context

    @property
    def text(self) -> str:
        """Description of the code, and what is wrong."""
        return f"{self.code.text}: {self}"


_STATUSES: tuple[tuple[type[SdkError], int], ...] = (
    (TopicNameError, 400),
    (InvalidTopicNameError, 400),
    (InvalidUrlError, 400),
    (TopicNotFoundError, 404),
    (SubscriptionNotFoundError, 404),
    (ProducerBusyError, 409),
    (ConsumerBusyError, 409),
    (ConsumerAssignError, 409),
    (ProducerFencedError, 409),
    (IncompatibleSchemaError, 409),
    (TooManyRequestsError, 429),
    (NotSupportedError, 500),
    (ProducerQuotaHoldError, 503),
    (ProducerQuotaExceededError, 503),
    (TopicTerminatedError, 503),
    (OperationTimeoutError, 504),
)


def refusal_of(error: SdkError) -> UpgradeRefusedError:
    """Return the refusal of an upgrade when a producer, consumer or reader could not be created.

    If the owner refuses the broker's own credentials (500), that says nothing about the client's,
    whose rights were checked before. The text tells the operator which setting to mend.
    """
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return UpgradeRefusedError(
            500,
            f"the topic's broker refuses this broker ({error}): "
            "broker_client_token must be the token of a super user",
        )
    if isinstance(error, OperationTimeoutError) and isinstance(
        error.__cause__, TooManyRequestsError
    ):
        error = error.__cause__
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return UpgradeRefusedError(status, str(error))


def refusal_here(error: Exception) -> UpgradeRefusedError:
    """Return the refusal of an upgrade when a lookup at this broker failed."""
    return UpgradeRefusedError(
        404 if isinstance(error, NamespaceNotFoundError) else 500, str(error)
    )
