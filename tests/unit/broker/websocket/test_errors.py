"""HTTP status that an upgrade is refused with."""

import pytest

from magnetar.broker.websocket.errors import refusal_of
from magnetar.sdk.errors import BrokerUnavailableError, OperationTimeoutError, SdkError
from magnetar.sdk.wire import errors


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.TopicNameError, 400),
        (errors.InvalidTopicNameError, 400),
        (errors.TopicNotFoundError, 404),
        (errors.SubscriptionNotFoundError, 404),
        (errors.ProducerBusyError, 409),
        (errors.ConsumerBusyError, 409),
        (errors.ConsumerAssignError, 409),
        (errors.ProducerFencedError, 409),
        (errors.IncompatibleSchemaError, 409),
        (errors.TooManyRequestsError, 429),
        (errors.ProducerQuotaHoldError, 503),
        (errors.ProducerQuotaExceededError, 503),
        (errors.TopicTerminatedError, 503),
        (OperationTimeoutError, 504),
        (errors.NotAllowedError, 500),
        (BrokerUnavailableError, 500),
    ],
)
def test_each_cause_has_its_status(kind: type[SdkError], status: int) -> None:
    refusal = refusal_of(kind("why"))
    assert (refusal.status, str(refusal)) == (status, "why")


@pytest.mark.parametrize("kind", [errors.AuthenticationError, errors.AuthorizationError])
def test_a_broker_whose_own_credentials_are_refused_says_which_setting_is_wrong(
    kind: type[SdkError],
) -> None:
    refusal = refusal_of(kind("credentials are required"))
    assert refusal.status == 500
    assert str(refusal) == (
        "the topic's broker refuses this broker (credentials are required): "
        "broker_client_token must be the token of a super user"
    )


def test_who_was_told_to_come_later_until_the_time_was_over_hears_that() -> None:
    error = OperationTimeoutError("not ready")
    error.__cause__ = errors.TooManyRequestsError("too many lookups")
    assert refusal_of(error).status == 429
