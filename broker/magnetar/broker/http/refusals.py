"""Refusals over HTTP: the status of each error, and the body with the reason.

The body is `{"reason": "..."}`, which Pulsar's tools show. Where clients compare it with Pulsar's
own words, `reason` holds just these words, and `detail` says the rest. Source: HTTP sheet, 1.
"""

from typing import Self
from urllib.parse import urlencode

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from magnetar.broker.base.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerMetadataError,
    BrokerPersistenceError,
    ConflictError,
    ConsumerBusyError,
    InvalidNameError,
    InvalidPolicyError,
    InvalidTopicNameError,
    NamespaceNotFoundError,
    NotAllowedError,
    NotThereError,
    PartitionCountError,
    ProducerBusyError,
    RequestError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TenantNotFoundError,
    TooManyRequestsError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.base.naming import has_control_character
from magnetar.broker.cluster.balance.bundles import BundleError
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.broker.schemas.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from magnetar.cursors import (
    CursorClosedError,
    CursorError,
    CursorFencedError,
    CursorStateTooLargeError,
)
from magnetar.ledger.errors import (
    LedgerError,
    LogClosedError,
    LogFencedError,
    MetadataError,
    SessionExpiredError,
    ValueTooLargeError,
)

_log = structlog.get_logger()

_STATUSES: tuple[tuple[type[RequestError], int], ...] = (
    (AuthenticationError, 401),
    (AuthorizationError, 403),
    (TopicNotFoundError, 404),
    (NotThereError, 404),
    (ConflictError, 409),
    (SchemaNotFoundError, 404),
    (InvalidSchemaError, 422),
    (IncompatibleSchemaError, 409),
    (InvalidNameError, 412),
    (InvalidPolicyError, 412),
    (SubscriptionNotFoundError, 404),
    (ConsumerBusyError, 412),
    (InvalidTopicNameError, 412),
    # Nothing produces over HTTP: this is a subscription name that is not valid.
    (ProducerBusyError, 412),
    (TopicConflictError, 409),
    (PartitionCountError, 406),
    (NotAllowedError, 412),
    (BrokerMetadataError, 503),
    (BrokerPersistenceError, 503),
    (ServiceNotReadyError, 503),
    (TooManyRequestsError, 503),
)

_PULSARS_WORDS: tuple[tuple[type[RequestError], str], ...] = (
    (NamespaceNotFoundError, "Namespace does not exist"),
    (TenantNotFoundError, "Tenant does not exist"),
)
"""Pulsar's words for errors, where clients compare them."""

_METHOD_NOT_ALLOWED = 405
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

_MOVED = (
    LogFencedError,
    LogClosedError,
    CursorFencedError,
    CursorClosedError,
    SessionExpiredError,
)
"""Errors of a dead handle whose topic still exists: the next request finds the current owner."""


class HttpRefusal(Exception):
    """A refusal with a status of its own.

    `detail`: the part that `reason` lacks, if `reason` has Pulsar's words.
    """

    def __init__(self, status: int, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.status = status
        self.reason = reason
        self.detail = detail


class ElsewhereError(Exception):
    """Another broker must answer the request, at its HTTP address."""

    def __init__(
        self, http_url: str, *, http_url_tls: str = "", is_authoritative: bool = True
    ) -> None:
        """`http_url_tls`: for clients that came over TLS. `is_authoritative`: the broker there
        answers without asking another one."""
        super().__init__(http_url)
        self.http_url = http_url
        self.http_url_tls = http_url_tls
        self.is_authoritative = is_authoritative

    @classmethod
    def at(cls, owner: Owner) -> Self:
        """Return the error that points to the broker that a lookup found."""
        return cls(
            owner.http_url,
            http_url_tls=owner.http_url_tls,
            is_authoritative=owner.is_authoritative,
        )


def install(app: FastAPI) -> None:
    """Make the application answer the broker's errors as refusals."""

    @app.exception_handler(HttpRefusal)
    async def on_refusal(request: Request, error: HttpRefusal) -> JSONResponse:
        answer = refusal(error.status, error.reason, error.detail)
        if error.status == _METHOD_NOT_ALLOWED:
            answer.headers["Allow"] = _allowed(request)
        return answer

    @app.exception_handler(ElsewhereError)
    async def on_elsewhere(request: Request, error: ElsewhereError) -> JSONResponse:
        if not (error.http_url_tls if request.url.scheme == "https" else error.http_url):
            return refusal(503, "the broker to ask has registered no HTTP address")
        location = _location(request, error)
        headers = {"Location": location}
        return JSONResponse({"reason": f"ask {location}"}, status_code=307, headers=headers)

    @app.exception_handler(RequestError)
    async def on_request_error(request: Request, error: RequestError) -> JSONResponse:
        status = _status_of_request(error)
        words = next((words for kind, words in _PULSARS_WORDS if isinstance(error, kind)), None)
        return refusal(status, str(error)) if words is None else refusal(status, words, str(error))

    @app.exception_handler(BundleError)
    async def on_bundle_error(request: Request, error: BundleError) -> JSONResponse:
        return refusal(412, str(error))

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(request: Request, error: ClientDisconnect) -> JSONResponse:
        """Answer although the client is gone: a disconnect is not a defect."""
        return refusal(400, "the client disconnected before it sent the whole request")

    @app.exception_handler(LedgerError)
    async def on_ledger_error(request: Request, error: LedgerError) -> JSONResponse:
        what = "the metadata store: " if isinstance(error, MetadataError) else ""
        return refusal(_status_of(request, error), f"{what}{error}")

    @app.exception_handler(CursorError)
    async def on_cursor_error(request: Request, error: CursorError) -> JSONResponse:
        return refusal(_status_of(request, error), str(error))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404 and has_control_character(request.scope["path"]):
            # No route matches a line break: the name is wrong, not the path.
            return refusal(412, "a name in the path has a control character")
        answer = refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        answer.headers.update(error.headers or {})
        if error.status_code == _METHOD_NOT_ALLOWED:
            answer.headers["Allow"] = _allowed(request)
        return answer

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        return refusal(400, f"{where}: {problem['msg']}")


def status_of(request: Request, error: Exception) -> int | None:
    """Return the status of an error in one part of an answer; None for a defect."""
    if isinstance(error, HttpRefusal):
        return error.status
    if isinstance(error, RequestError):
        return _status_of_request(error)
    if isinstance(error, (LedgerError, CursorError)):
        return _status_of(request, error)
    return None


def _status_of_request(error: RequestError) -> int:
    if _is_too_large(error):
        return 412
    return next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)


def _allowed(request: Request) -> str:
    """Return the methods of the request's path, which may belong to several routes."""
    scope = request.scope
    # The scope as it was before a mounted route took its share of the path.
    asked = {**scope, "root_path": scope.get("app_root_path", ""), "path_params": {}}
    found = {
        method
        for method in _METHODS
        for route in request.app.router.routes
        if route.matches({**asked, "method": method})[0] is Match.FULL
    }
    if "GET" in found:
        found.add("HEAD")
    return ", ".join(sorted(found))


def _status_of(request: Request, error: LedgerError | CursorError) -> int:
    """Return the status of a ledger or cursor error. Tools retry a 503, so lasting errors never get
    it."""
    if _is_too_large(error):
        return 412
    if error.retryable or isinstance(error, _MOVED):
        return 503
    _log.error("http_request_failed", path=request.url.path, exc_info=error)
    return 500


def _is_too_large(error: BaseException | None) -> bool:
    """Whether the store refuses the value for its size, so that no retry can succeed."""
    while error is not None:
        if isinstance(error, (ValueTooLargeError, CursorStateTooLargeError)):
            return True
        error = error.__cause__
    return False


def _location(request: Request, error: ElsewhereError) -> str:
    query = [each for each in request.query_params.multi_items() if each[0] != "authoritative"]
    query.append(("authoritative", "true" if error.is_authoritative else "false"))
    # The path as received, percent-encoded: topic names may hold any character.
    path = request.scope.get("raw_path") or request.url.path.encode()
    # Never redirect from TLS to a plain port: credentials travel with the request.
    base = error.http_url_tls if request.url.scheme == "https" else error.http_url
    return f"{base}{path.decode('ascii')}?{urlencode(query)}"


def refusal(status: int, reason: str, detail: str = "") -> JSONResponse:
    """Return the answer with the reason."""
    body = {"reason": reason, "detail": detail} if detail else {"reason": reason}
    return JSONResponse(body, status_code=status)
