"""The map between wire codes and error classes."""

from magnetar.sdk.wire.errors import SERVICE_ERRORS, UnknownServiceError, service_error
from magnetar.sdk.wire.pulsar_pb2 import ServerError


def test_every_code_has_a_class() -> None:
    assert set(SERVICE_ERRORS) == set(ServerError.values())


def test_unknown_code_keeps_its_number_and_text() -> None:
    error = service_error(99, "what?")
    assert type(error) is UnknownServiceError
    assert (error.server_code, str(error)) == (99, "what?")
