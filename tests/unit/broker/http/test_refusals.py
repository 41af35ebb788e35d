"""Which status an error has that no route expected."""

import json
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request

from magnetar.broker.errors import BrokerMetadataError
from magnetar.broker.http import refusals
from magnetar.cursors import CursorError, CursorStateTooLargeError
from magnetar.ledger.errors import (
    LedgerError,
    LogFencedError,
    MetadataUnavailableError,
    ValueTooLargeError,
)


def _because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LogFencedError("somebody else has it"), 503),
        (LedgerError("no bookie answers"), 503),
        (CursorError("it cannot be saved now"), 503),
        (MetadataUnavailableError("away"), 503),
        (ValueTooLargeError("2000000 bytes"), 412),
        (CursorStateTooLargeError("2000000 bytes"), 412),
        (BrokerMetadataError("away"), 503),
        (_because(BrokerMetadataError("too much"), ValueTooLargeError("2000000 bytes")), 412),
    ],
)
async def test_storage_that_fails_is_an_answer_and_not_a_defect(
    error: Exception, status: int
) -> None:
    app = FastAPI()
    refusals.install(app)
    handler: Any = next(
        app.exception_handlers[kind]
        for kind in type(error).__mro__
        if kind in app.exception_handlers
    )
    answer = await handler(cast(Request, None), error)
    assert answer.status_code == status
    assert str(error) in json.loads(answer.body)["reason"]
