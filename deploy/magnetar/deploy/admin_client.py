"""The HTTP interface of the brokers, as the commands of `magnetar admin` use it.

Any broker may be asked: who has to do it is found by redirects. Of several addresses the next is
tried when one does not answer; a request that changes something is sent on only if the one before
it took no connection at all.
"""

import http.client
import json
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import BrokerUnreachableError, SettingsError
from magnetar.sdk.wire import TopicName, TopicNameError, parse_topic_name

REDIRECTS_MAX = 10
ANSWER_BYTES_MAX = 128 << 20
"""Of one answer. The names of a million topics take less."""

_HINTS = {
    401: "say who you are: see `magnetar --help` for credentials",
    403: "ask an administrator of the tenant for the right, or use another role",
    503: "try again in a moment",
}
"""What to do about refusals whose reason cannot say it."""


class AdminClient:
    """Asks brokers, one request at a time. Blocks."""

    def __init__(
        self,
        urls: str,
        *,
        timeout_s: float = 60.0,
        credentials: ClientCredentials | None = None,
    ) -> None:
        """`urls`: http://host:port, or https://, of one or more brokers, with commas between.
        `credentials`: by default those of the environment.

        Raises:
            SettingsError: of another form.
        """
        self._urls = [_checked(each.strip()) for each in urls.split(",") if each.strip()]
        if not self._urls:
            raise SettingsError("no address of a broker: give --admin-url http://host:port")
        self._timeout_s = timeout_s
        self._credentials = credentials or ClientCredentials.of_environment()

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        """The JSON value, or text, that a GET answers.

        Raises:
            BrokerUnreachableError: nobody answered, or it was refused.
        """
        return self._call("GET", path, query or {}, None)

    def put(
        self, path: str, query: dict[str, str] | None = None, body: object | None = None
    ) -> None:
        """A PUT that answers nothing.

        Raises:
            BrokerUnreachableError: nobody answered, or it was refused.
        """
        self._call("PUT", path, query or {}, body)

    def change(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object | None = None,
    ) -> None:
        """A PUT, POST or DELETE that answers nothing.

        Raises:
            BrokerUnreachableError: nobody answered, or it was refused.
        """
        self._call(method, path, query or {}, body)

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object | None = None,
    ) -> Any:
        """The JSON value that any request answers.

        Raises:
            BrokerUnreachableError: nobody answered, or it was refused.
        """
        return self._call(method, path, query or {}, body)

    def _call(self, method: str, path: str, query: dict[str, str], body: object | None) -> Any:
        target = path + (f"?{urlencode(query)}" if query else "")
        content = None if body is None else json.dumps(body).encode()
        refusals: list[str] = []
        for url in self._urls:
            connection = self._connect(url, refusals)
            if connection is None:
                continue
            return self._exchange(connection, url, method, target, content)
        raise BrokerUnreachableError(
            f"no broker accepts connections: {'; '.join(refusals)}. "
            "Is it running, and is --admin-url its HTTP address?"
        )

    def _connect(self, url: str, refusals: list[str]) -> http.client.HTTPConnection | None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname,
                parts.port or 443,
                timeout=self._timeout_s,
                context=self._credentials.tls(),
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname, parts.port or 80, timeout=self._timeout_s
            )
        try:
            connection.connect()
        except OSError as error:
            refusals.append(f"{url}: {error.strerror or error}")
            return None
        return connection

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        url: str,
        method: str,
        target: str,
        content: bytes | None,
    ) -> Any:
        for _ in range(REDIRECTS_MAX):
            try:
                connection.request(
                    method,
                    target,
                    body=content,
                    headers={
                        "Content-Type": "application/json",
                        **self._credentials.http_headers(),
                    },
                )
                response = connection.getresponse()
                answer = response.read(ANSWER_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                raise BrokerUnreachableError(
                    f"{url} did not answer {method} {target}: {error or type(error).__name__}; "
                    "the outcome is unknown: look before you repeat it"
                ) from error
            finally:
                connection.close()
            if len(answer) > ANSWER_BYTES_MAX:
                raise BrokerUnreachableError(
                    f"{url} answers {method} {target} with more than {ANSWER_BYTES_MAX} bytes: "
                    "is it the HTTP address of a broker?"
                )
            if response.status != 307:
                return _result(url, response, answer)
            location = response.getheader("Location") or ""
            from_url = url
            url, target = _parted(location)
            if from_url.startswith("https:") and not url.startswith("https:"):
                # What follows would show credentials to everybody on the way.
                raise BrokerUnreachableError(
                    f"{from_url} redirects to {url}, which is not TLS; the request was not sent"
                )
            refusals: list[str] = []
            redirected = self._connect(url, refusals)
            if redirected is None:
                raise BrokerUnreachableError(
                    f"redirected to a broker that does not answer: {refusals[0]}"
                )
            connection = redirected
        raise BrokerUnreachableError(f"the brokers redirect in circles, {REDIRECTS_MAX} times")


def topic_argument(text: str) -> TopicName:
    """A topic from the command line.

    Raises:
        SettingsError: of no known shape.
    """
    try:
        return parse_topic_name(text)
    except TopicNameError as error:
        raise SettingsError(str(error)) from error


def namespace_argument(text: str) -> str:
    """`tenant/namespace` from the command line, safe for a path.

    Raises:
        SettingsError: of another form.
    """
    tenant, separator, namespace = text.partition("/")
    if not separator or not tenant or not namespace or "/" in namespace:
        raise SettingsError(f"bad namespace {text!r}: give tenant/namespace, as public/default")
    return f"{quote(tenant, safe='')}/{quote(namespace, safe='')}"


def topic_path(topic: TopicName) -> str:
    """`domain/tenant/namespace/name`, safe for a path."""
    parts: Sequence[str] = (topic.domain, topic.tenant, topic.namespace, topic.local_name)
    return "/".join(quote(part, safe="") for part in parts)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_usable = False
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


def _result(url: str, response: http.client.HTTPResponse, answer: bytes) -> Any:
    text = answer.decode("utf-8", "replace")
    is_json = (response.getheader("Content-Type") or "").startswith("application/json")
    try:
        value = json.loads(text) if is_json and text else text
    except ValueError:
        value = text
    if 200 <= response.status < 300:
        note = response.getheader("X-Magnetar-Note")
        if note:
            sys.stderr.write(f"magnetar: {note}\n")
        return value
    told = value if isinstance(value, dict) else {}
    reason = ": ".join(str(told[key]) for key in ("reason", "detail") if told.get(key))
    hint = _HINTS.get(response.status, "")
    raise BrokerUnreachableError(
        f"{url} answered {response.status}: {reason or text[:300]}{f'; {hint}' if hint else ''}"
    )
