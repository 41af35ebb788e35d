"""HTTP status of an error that no route expected."""

import json
from typing import Any

import pytest
from fastapi import FastAPI, Request
from structlog.testing import capture_logs

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.http import refusals
from magnetar.cursors.errors import (
    CorruptCursorRecordError,
    CursorClosedError,
    CursorFencedError,
    CursorStateTooLargeError,
    CursorUnavailableError,
)
from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    LogClosedError,
    LogDataLossError,
    LogFencedError,
    MetadataAccessError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    ValueTooLargeError,
)


def _because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LogFencedError("somebody else has it"), 503),
        (LogClosedError("it is handed over"), 503),
        (CursorFencedError("somebody else has it"), 503),
        (CursorClosedError("it is handed over"), 503),
        (NotEnoughBookiesError("2 of 3"), 503),
        (CursorUnavailableError("it cannot be saved now"), 503),
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
    with capture_logs() as events:
        answer = await _answer(error)
    assert answer.status_code == status
    assert str(error) in json.loads(answer.body)["reason"]
    assert events == []


@pytest.mark.parametrize(
    "error",
    [
        LogDataLossError("ledger 7 is gone"),
        CorruptCursorRecordError("nonsense"),
        InvalidLedgerMetadataError("no ensemble"),
        MetadataAccessError("not for this user"),
    ],
)
async def test_what_no_second_try_helps_is_not_called_passing_and_is_logged(
    error: Exception,
) -> None:
    with capture_logs() as events:
        answer = await _answer(error)
    assert answer.status_code == 500
    assert str(error) in json.loads(answer.body)["reason"]
    assert [(each["path"], each["exc_info"]) for each in events] == [("/admin/v2/x", error)]


async def _answer(error: Exception) -> Any:
    app = FastAPI()
    refusals.install(app)
    handler: Any = next(
        app.exception_handlers[kind]
        for kind in type(error).__mro__
        if kind in app.exception_handlers
    )
    request = Request({"type": "http", "method": "GET", "path": "/admin/v2/x", "headers": []})
    return await handler(request, error)
