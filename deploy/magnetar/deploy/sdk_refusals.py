"""Translates errors of the SDK for the command line: one line that says what to do, and a
status."""

from magnetar.deploy.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    DeployError,
    NotAllowedError,
    NotFoundError,
    SettingsError,
)
from magnetar.sdk.errors import (
    BrokerUnavailableError,
    CredentialsError,
    InvalidUrlError,
    OperationTimeoutError,
    SdkError,
    SendTimeoutError,
    TlsFileError,
)
from magnetar.sdk.wire.errors import (
    AuthenticationError,
    AuthorizationError,
    SubscriptionNotFoundError,
    TopicNameError,
    TopicNotFoundError,
)

_CREDENTIALS = "set MAGNETAR_TOKEN=file:///PATH, MAGNETAR_BASIC or MAGNETAR_TLS_CERTIFICATE"
_RIGHTS = "ask a tenant administrator for the permission, or use another role"


def refusal_of(error: SdkError) -> DeployError:
    """Return the error that ends the command."""
    text = " ".join(str(error).split())
    match error:
        case InvalidUrlError() | TlsFileError():
            return SettingsError(text)
        case TopicNameError():
            return SettingsError(f"{text}: give TOPIC, or TENANT/NAMESPACE/TOPIC")
        case AuthenticationError():
            return NotAllowedError(f"{text}; {_CREDENTIALS}")
        case CredentialsError():
            return NotAllowedError(text)
        case AuthorizationError():
            return NotAllowedError(f"{text}; {_RIGHTS}")
        case TopicNotFoundError() | SubscriptionNotFoundError():
            return NotFoundError(text)
        case BrokerUnavailableError() | OperationTimeoutError() | SendTimeoutError():
            return BrokerUnreachableError(text)
    return BrokerRefusedError(text)
