"""A client of the brokers' administration interface, for the driver. Blocking.

A broker that does not serve the topic redirects the request. If a broker does not answer, the
client tries the next one of the list. If none answers, or the broker replies 503, a query that was
answered before waits and retries: brokers restart, topics move. A new query does not wait: its URL
may be wrong.
"""

import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from magnetar.arrow.stored.errors import OptionError, RefusedError, UnreachableError
from magnetar.arrow.stored.options import ConnectionOptions
from magnetar.arrow.stored.patience import PATIENCE_S, Patience
from magnetar.sdk.errors import CredentialsError, IssuerUnavailableError, TlsFileError
from magnetar.sdk.http_client import (
    AnswerTooLargeError,
    HttpAnswer,
    HttpClient,
    NoAnswerError,
    NotConnectedError,
)
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.tls import tls_context
from magnetar.sdk.wire.topic_name import TopicName

_UNAUTHORIZED = 401
_NOT_NOW = 503
_REDIRECTS_MAX = 5
_TIMEOUT_S = 30.0
_ERROR_CHARACTERS_MAX = 300
_TOPICS_PER_REQUEST = 100
"""Few enough that one request does not hold up a broker."""

_OWNERS_MAX = 100_000
ANSWER_BYTES_MAX = 128 << 20
"""Size limit of one answer, in bytes. The names of a million topics take less."""

Json = Any


class Answers(NamedTuple):
    """Answers of the brokers for many topics, by topic name."""

    found: dict[str, Json]
    refused: dict[str, RefusedError]


class AdminClient:
    """Requests to the administration interface. For one thread.

    Every method raises:
        UnreachableError: no broker of the list answers.
        RefusedError: a broker refuses the request.
        OptionError: the answer is not from a broker's HTTP interface.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._urls = [each.strip().rstrip("/") for each in options.admin_url.split(",")]
        self._urls = [each if "://" in each else f"http://{each}" for each in self._urls if each]
        self._headers = {"Accept": "application/json"}
        if options.tokens is None:
            self._headers |= options.http_headers()
        self._options = options
        self._http = HttpClient(self._tls)
        self._clock = clock or SystemClock()
        self._pause = pause
        self._owners: dict[str, str] = {}
        """Topic -> its last known broker; topics move."""
        self._was_answered = False

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Json:
        return self._ask("GET", path)

    def put(self, path: str, body: Json) -> Json:
        return self._ask("PUT", path, body)

    def post(self, path: str, body: Json) -> Json:
        return self._ask("POST", path, body)

    def delete(self, path: str) -> Json:
        return self._ask("DELETE", path)

    def ask_topics(
        self,
        what: str,
        topics: Iterable[str],
        *,
        values: Mapping[str, Json] | None = None,
        **body: Json,
    ) -> "Answers":
        """Send one request for many topics to the route named `what`.

        `topics` are full names. `values` has one value for each topic, if the route takes any.
        Final refusals of single topics are part of the answer.

        Raises:
            RefusedError: no broker could serve a topic for `PATIENCE_S`.
        """
        waiting = list(dict.fromkeys(topics))
        path = f"/magnetar/v1/topics/{what}"
        patience = self._patience(PATIENCE_S)
        answers = Answers({}, {})
        targets: dict[str, str] = {}
        rounds = 0
        while waiting:
            if len(self._owners) > _OWNERS_MAX:
                self._owners.clear()
            for topic in waiting:
                answers.refused.pop(topic, None)
            waiting = self._ask_owners(path, waiting, values, body, targets, answers)
            late = [answers.refused[topic] for topic in waiting if topic in answers.refused]
            rounds += 1
            if waiting and (late or rounds > _REDIRECTS_MAX) and not patience.wait():
                if late:
                    raise late[0]
                raise UnreachableError(
                    f"{waiting[0]}: brokers redirect the request to each other, or do not answer"
                )
        return answers

    def _ask(self, method: str, path: str, body: Json = None) -> Json:
        patience = self._patience(PATIENCE_S if self._was_answered else 0.0)
        while True:
            try:
                return self._ask_all(method, path, body)
            except (UnreachableError, RefusedError) as error:
                is_final = isinstance(error, RefusedError) and error.status != _NOT_NOW
                if is_final or not patience.wait():
                    raise

    def _patience(self, patience_s: float) -> Patience:
        return Patience(self._clock, self._pause, patience_s)

    def _ask_owners(
        self,
        path: str,
        topics: Sequence[str],
        values: Mapping[str, Json] | None,
        body: Mapping[str, Json],
        targets: dict[str, str],
        answers: "Answers",
    ) -> list[str]:
        """Run one round: ask each broker for the topics that it is believed to own.

        Returns the topics to ask for again. `targets` holds the redirects of the brokers, with
        their query.
        """
        again: list[str] = []
        groups: dict[str, list[str]] = {}
        for topic in topics:
            target = targets.pop(topic, "") or self._owners.get(topic, "")
            groups.setdefault(target, []).append(topic)
        for target, group in groups.items():
            for start in range(0, len(group), _TOPICS_PER_REQUEST):
                some = group[start : start + _TOPICS_PER_REQUEST]
                given = some if values is None else {topic: values[topic] for topic in some}
                answer = self._ask_owner(target, path, {**body, "topics": given})
                if answer is None:
                    for topic in some:
                        self._owners.pop(topic, None)
                    again += some
                    continue
                answers.found.update(answer["topics"])
                for topic, where in answer["elsewhere"].items():
                    self._owners[topic] = where["url"]
                    flag = str(where["authoritative"]).lower()
                    targets[topic] = f"{where['url']}?authoritative={flag}"
                    again.append(topic)
                for topic, refusal in answer["refused"].items():
                    status = int(refusal["status"])
                    answers.refused[topic] = RefusedError(status, f"{topic}: {refusal['reason']}")
                    if status == _NOT_NOW:
                        self._owners.pop(topic, None)
                        again.append(topic)
        return again

    def _ask_owner(self, target: str, path: str, body: Json) -> Json:
        """Send one request to a broker. Return None if the named broker does not answer, or answers
        503."""
        if not target:
            return self._ask("POST", path, body)
        base, _, query = target.partition("?")
        joined = f"{path}{'&' if '?' in path else '?'}{query}" if query else path
        try:
            return self._follow("POST", base, joined, body)
        except (NotConnectedError, NoAnswerError):
            return None
        except RefusedError as error:
            if error.status != _NOT_NOW:
                raise
            return None

    def _ask_all(self, method: str, path: str, body: Json) -> Json:
        """Try one broker after the other, until one answers."""
        problems: list[str] = []
        for base in list(self._urls):
            try:
                return self._follow(method, base, path, body)
            except (NotConnectedError, NoAnswerError) as error:
                problems.append(f"{base}: {error}")
                # The next request begins with another broker, which may answer.
                self._urls = [*(each for each in self._urls if each != base), base]
        raise UnreachableError(f"admin.url: no broker answers: {'; '.join(problems)}")

    def _follow(self, method: str, base: str, path: str, body: Json) -> Json:
        for _ in range(_REDIRECTS_MAX + 1):
            self._check_tls(base)
            status, headers, data = self._exchange(method, base, path, body)
            if status in (301, 302, 307, 308):
                target = urlsplit(headers.get("location", ""))
                base = f"{target.scheme}://{target.netloc}"
                path = target.path + (f"?{target.query}" if target.query else "")
                continue
            self._was_answered = self._was_answered or status != _NOT_NOW
            if status >= 400:
                raise RefusedError(status, f"{path.split('?')[0]}: {_reason(status, data)}")
            try:
                return json.loads(data) if data.strip() else None
            except ValueError:
                raise OptionError(
                    "admin.url",
                    f"{base}: it does not answer with JSON: is it a broker's HTTP interface?",
                ) from None
        raise UnreachableError(
            f"{path}: brokers redirected the request more than {_REDIRECTS_MAX} times"
        )

    def _check_tls(self, base: str) -> None:
        """Refuse to leave TLS: a request in plain text exposes its credentials on the network.

        Raises:
            OptionError: brokers name an address without TLS, and the user named one with it.
        """
        if base.startswith("https:") or base in self._urls:
            return
        if any(url.startswith("https:") for url in self._urls):
            raise OptionError(
                "admin.url",
                f"the broker redirects to {base}, which is not TLS; the request was not sent there",
            )

    def _exchange(self, method: str, base: str, path: str, body: Json) -> HttpAnswer:
        answer = self._send(method, base, path, body)
        tokens = self._options.tokens
        if answer.status == _UNAUTHORIZED and tokens is not None and tokens.renew():
            return self._send(method, base, path, body)
        return answer

    def _send(self, method: str, base: str, path: str, body: Json) -> HttpAnswer:
        headers = {**self._headers, **self._token()}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            return self._http.ask(
                method,
                base + path,
                headers=headers,
                body=content,
                timeout_s=_TIMEOUT_S,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except AnswerTooLargeError:
            raise OptionError(
                "admin.url", f"{base}: it answers with more than {ANSWER_BYTES_MAX} bytes"
            ) from None

    def _token(self) -> dict[str, str]:
        """Return the header with the issuer's token; empty without an issuer.

        Raises:
            OptionError: the issuer gives no token for these credentials.
            NoAnswerError: the issuer does not answer.
        """
        if self._options.tokens is None:
            return {}
        try:
            return self._options.http_headers()
        except IssuerUnavailableError as error:
            raise NoAnswerError(str(error)) from error
        except CredentialsError as error:
            raise OptionError("authentication", str(error)) from error

    def _tls(self) -> ssl.SSLContext:
        try:
            return tls_context(self._options.client_settings())
        except TlsFileError as error:
            raise OptionError("tlsTrustCertsFile", str(error)) from None


def topic_path(topic: TopicName, *rest: str) -> str:
    """Return `/admin/v2/persistent/tenant/namespace/topic/…`, escaped."""
    parts: Sequence[str] = (
        topic.domain,
        topic.tenant,
        topic.namespace,
        topic.local_name,
        *rest,
    )
    return "/admin/v2/" + "/".join(quote(each, safe="") for each in parts)


def _reason(status: int, data: bytes) -> str:
    try:
        found = json.loads(data)
        text = str(found.get("reason", found)) if isinstance(found, dict) else str(found)
    except ValueError:
        text = data.decode("utf-8", "replace")
    return f"status {status}: {text.strip()[:_ERROR_CHARACTERS_MAX]}"
