"""HTTP client of the brokers, for the commands of `magnetar admin`.

Any broker takes any request; redirects lead to the broker that serves it. Of several addresses, the
client tries the next when one does not answer. It sends a changing request to the next address only
if the previous one accepted no connection.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    NotAllowedError,
    NotFoundError,
    SettingsError,
)
from magnetar.sdk.http_client import (
    AnswerTooLargeError,
    HttpAnswer,
    HttpClient,
    NoAnswerError,
    NotConnectedError,
)
from magnetar.sdk.wire import TopicName, TopicNameError, parse_topic_name

REDIRECTS_MAX = 10
_REDIRECT = 307
ANSWER_BYTES_MAX = 128 << 20
"""Largest answer in bytes. The names of a million topics take less."""

_HINTS = {
    401: "set MAGNETAR_TOKEN, MAGNETAR_BASIC or MAGNETAR_TLS_CERTIFICATE",
    403: "ask a tenant administrator for the permission, or use another role",
    503: "try again in a moment",
}
"""What to do about a refusal, by HTTP status, where the broker's reason cannot say it."""

_EXIT_STATUSES = {
    401: NotAllowedError.exit_status,
    403: NotAllowedError.exit_status,
    404: NotFoundError.exit_status,
}


class RequestRefusedError(BrokerRefusedError):
    """A broker answered a request with a status other than success."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        self.exit_status = _EXIT_STATUSES.get(status, BrokerRefusedError.exit_status)


class AdminClient:
    """Sends requests to brokers, one at a time. Calls block."""

    def __init__(
        self,
        urls: str,
        *,
        timeout_s: float = 60.0,
        credentials: ClientCredentials | None = None,
    ) -> None:
        """Make a client.

        Args:
            urls: http://host:port or https://host:port of one or more brokers, separated by commas.
            credentials: by default those of the environment.

        Raises:
            SettingsError: an address has another form, or there is none.
        """
        self._urls = [_checked(each.strip()) for each in urls.split(",") if each.strip()]
        if not self._urls:
            raise SettingsError("no address of a broker: give --admin-url http://host:port")
        self._timeout_s = timeout_s
        self._credentials = credentials or ClientCredentials.of_environment()
        self._http = HttpClient(self._credentials.tls)

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        """Return the JSON value, or the text, that a GET answers.

        Raises:
            BrokerUnreachableError: no broker answered, or one refused.
        """
        return self._call("GET", path, query or {}, None)

    def fetch(self, path: str, query: dict[str, str] | None = None) -> HttpAnswer:
        """Return the whole answer to a GET, with its headers.

        Raises:
            BrokerUnreachableError: no broker answered, or one refused.
        """
        return self._answer("GET", path, query or {}, None)

    def put(
        self, path: str, query: dict[str, str] | None = None, body: object | None = None
    ) -> None:
        """Send a PUT whose answer has no content.

        Raises:
            BrokerUnreachableError: no broker answered, or one refused.
        """
        self._call("PUT", path, query or {}, body)

    def change(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object | None = None,
    ) -> None:
        """Send a PUT, POST or DELETE whose answer has no content.

        Raises:
            BrokerUnreachableError: no broker answered, or one refused.
        """
        self._call(method, path, query or {}, body)

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object | None = None,
    ) -> Any:
        """Send any request and return the JSON value that it answers.

        Raises:
            BrokerUnreachableError: no broker answered, or one refused.
        """
        return self._call(method, path, query or {}, body)

    def _call(self, method: str, path: str, query: dict[str, str], body: object | None) -> Any:
        answer = self._answer(method, path, query, body)
        note = answer.headers.get("x-magnetar-note")
        if note:
            sys.stderr.write(f"magnetar: {note}\n")
        return _value_of(answer)

    def _answer(
        self, method: str, path: str, query: dict[str, str], body: object | None
    ) -> HttpAnswer:
        target = path + (f"?{urlencode(query)}" if query else "")
        content = None if body is None else json.dumps(body).encode()
        try:
            return self._ask_any(method, target, content)
        finally:
            self._http.close()  # a person runs one command at a time: no connection is kept

    def _ask_any(self, method: str, target: str, content: bytes | None) -> HttpAnswer:
        refusals: list[str] = []
        for url in self._urls:
            try:
                answer = self._send(url, method, target, content)
            except NotConnectedError as error:
                refusals.append(f"{url}: {error}")
                continue
            return self._follow(url, method, target, content, answer)
        raise BrokerUnreachableError(
            f"no broker accepts connections: {'; '.join(refusals)}. "
            "Is it running, and is --admin-url its HTTP address?"
        )

    def _follow(
        self, url: str, method: str, target: str, content: bytes | None, answer: HttpAnswer
    ) -> HttpAnswer:
        redirects = 0
        while answer.status == _REDIRECT:
            if redirects == REDIRECTS_MAX:
                raise BrokerUnreachableError(
                    f"the brokers redirect in circles, {REDIRECTS_MAX} times"
                )
            redirects += 1
            from_url = url
            url, target = _parted(answer.headers.get("location", ""))
            if from_url.startswith("https:") and not url.startswith("https:"):
                # The next request would send the credentials in clear text.
                raise BrokerUnreachableError(
                    f"{from_url} redirects to {url}, which is not TLS; the request was not sent"
                )
            try:
                answer = self._send(url, method, target, content)
            except NotConnectedError as error:
                raise BrokerUnreachableError(
                    f"redirected to a broker that does not answer: {url}: {error}"
                ) from error
        _check_success(url, answer)
        return answer

    def _send(self, url: str, method: str, target: str, content: bytes | None) -> HttpAnswer:
        """
        Raises:
            NotConnectedError: nothing was sent.
            BrokerUnreachableError: the outcome is unknown, or the answer is too large.
        """
        headers = {"Content-Type": "application/json", **self._credentials.http_headers()}
        try:
            return self._http.ask(
                method,
                url + target,
                headers=headers,
                body=content,
                timeout_s=self._timeout_s,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except NoAnswerError as error:
            raise BrokerUnreachableError(
                f"{url} did not answer {method} {target}: {error}; the outcome is unknown: check "
                "it before you repeat the command"
            ) from error
        except AnswerTooLargeError:
            raise BrokerUnreachableError(
                f"{url} answers {method} {target} with more than {ANSWER_BYTES_MAX} bytes: "
                "is it the HTTP address of a broker?"
            ) from None


def topic_argument(text: str) -> TopicName:
    """Return the topic that the command line names.

    Raises:
        SettingsError: the name has no known form.
    """
    try:
        return parse_topic_name(text)
    except TopicNameError as error:
        raise SettingsError(str(error)) from error


def namespace_argument(text: str) -> str:
    """Return `tenant/namespace` from the command line, safe for a path.

    Raises:
        SettingsError: the text has another form.
    """
    tenant, separator, namespace = text.partition("/")
    if not separator or not tenant or not namespace or "/" in namespace:
        raise SettingsError(f"bad namespace {text!r}: give tenant/namespace, as public/default")
    return f"{quote(tenant, safe='')}/{quote(namespace, safe='')}"


def topic_path(topic: TopicName) -> str:
    """Return `domain/tenant/namespace/name`, safe for a path."""
    parts: Sequence[str] = (topic.domain, topic.tenant, topic.namespace, topic.local_name)
    return "/".join(quote(part, safe="") for part in parts)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        is_usable = False
    if parts.scheme in ("pulsar", "pulsar+ssl"):
        raise SettingsError(
            f"bad admin URL {url!r}: that is a service URL; give the HTTP address, "
            "as http://host:8080"
        )
    if not is_usable:
        raise SettingsError(f"bad admin URL {url!r}: give http://host:port")
    return url.rstrip("/")


def _parted(location: str) -> tuple[str, str]:
    parts = urlsplit(location)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BrokerUnreachableError(f"redirected to {location!r}, which is not an http:// address")
    return f"{parts.scheme}://{parts.netloc}", parts.path + (
        f"?{parts.query}" if parts.query else ""
    )


def _value_of(answer: HttpAnswer) -> Any:
    """Return the JSON value, or the text, of an answer."""
    text = answer.data.decode("utf-8", "replace")
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    try:
        return json.loads(text) if is_json and text else text
    except ValueError:
        return text


def _check_success(url: str, answer: HttpAnswer) -> None:
    """Raise the error for an answer that is not a success.

    Raises:
        RequestRefusedError: with the broker's reason, and what to do.
    """
    if 200 <= answer.status < 300:
        return
    value = _value_of(answer)
    told = value if isinstance(value, dict) else {}
    reason = ": ".join(str(told[key]) for key in ("reason", "detail") if told.get(key))
    hint = _HINTS.get(answer.status, "")
    shown = reason or answer.data.decode("utf-8", "replace")[:300]
    raise RequestRefusedError(
        f"{url} answered {answer.status}: {shown}{f'; {hint}' if hint else ''}", answer.status
    )
