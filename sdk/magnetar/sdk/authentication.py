"""Client authentication: tokens, user and password, OAuth2. For certificates see `tls.py`.

The client reads its credentials at each connection, and again when the broker says that they have
expired (AUTH_CHALLENGE). A changed file, function or token issuer therefore takes effect without a
restart.
"""

import asyncio
import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from magnetar.sdk.errors import CredentialsError, IssuerUnavailableError

if TYPE_CHECKING:
    from magnetar.sdk.http_client import HttpAnswer, HttpClient

ISSUER_ANSWER_BYTES_MAX = 1 << 20
ISSUER_TIMEOUT_S = 10.0
_REDIRECTS = (301, 302, 303, 307, 308)
_REDIRECTS_MAX = 5
_RENEW_EARLY = 0.1
"""Share of a token's lifetime that is left when the client fetches a new one."""
REFUSED_AGE_MIN_S = 30.0
"""Minimum age, in seconds, of a refused token before it is replaced. It bounds the requests to an
issuer whose tokens are all refused."""


class Authentication(Protocol):
    """A method by which a client proves its identity."""

    @property
    def method_name(self) -> str:
        """Name by which brokers know the method: `token`, `basic`, …"""
        ...

    async def data(self) -> bytes:
        """Return the current credentials.

        Raises:
            CredentialsError: there are none.
            IssuerUnavailableError: the source of the credentials is temporarily away.
        """
        ...


@runtime_checkable
class RefusalListener(Protocol):
    """An `Authentication` that is notified when a broker refuses its credentials."""

    def on_refused(self) -> None:
        """Handle the refusal of the credentials by a broker. Must not block or raise."""
        ...


class TokenAuthentication:
    """A JSON Web Token, given as text, as a file, or as a function (which must not block)."""

    method_name = "token"

    def __init__(self, token: str | Callable[[], str] = "", *, path: str | Path = "") -> None:
        """Take either a token or the path of a token file.

        Raises:
            ValueError: both or neither were given.
        """
        if bool(token) == bool(path):
            raise ValueError("give either a token or the path of a token file")
        self._token, self._path = token, path
        self._was_read = False

    def __repr__(self) -> str:
        return "<TokenAuthentication>"

    async def data(self) -> bytes:
        if self._path:
            return await self._read()
        token = self._token() if callable(self._token) else self._token
        if not token.strip():
            raise CredentialsError("the token is empty")
        return token.strip().encode()

    async def _read(self) -> bytes:
        # A file that was read before is being replaced; one that never existed is a mistake.
        error_class = IssuerUnavailableError if self._was_read else CredentialsError
        try:
            token = (await asyncio.to_thread(Path(self._path).read_text)).strip()
        except UnicodeDecodeError as error:
            raise CredentialsError(f"the token in {self._path}: {error}") from error
        except OSError as error:
            raise error_class(f"the token in {self._path}: {error}") from error
        if not token:
            raise error_class(f"the token in {self._path} is empty")
        self._was_read = True
        return token.encode()


class BasicAuthentication:
    """User and password."""

    method_name = "basic"

    def __init__(self, user: str, password: str) -> None:
        """Take a user name and a password.

        Raises:
            ValueError: the user name has a colon, so the broker could not tell where it ends.
        """
        if ":" in user:
            raise ValueError("a user name must not contain a colon")
        self._data = f"{user}:{password}".encode()

    def __repr__(self) -> str:
        return "<BasicAuthentication>"

    async def data(self) -> bytes:
        return self._data


class OAuth2ClientCredentials:
    """Tokens from an issuer, by the flow "client credentials" (RFC 6749, section 4.4).

    The token endpoint comes from `<issuer>/.well-known/openid-configuration`. A token is kept until
    most of its lifetime is over, or a broker refuses it.
    """

    method_name = "token"

    def __init__(
        self,
        issuer_url: str,
        *,
        client_id: str,
        client_secret: str,
        audience: str = "",
        scope: str = "",
    ) -> None:
        """Take the issuer's URL and the client's credentials. Sends nothing yet.

        Raises:
            ValueError: `issuer_url` is not an http or https URL.
        """
        if urllib.parse.urlsplit(issuer_url).scheme not in ("http", "https"):
            raise ValueError(f"{issuer_url!r} is not an http or https URL of an issuer")
        self._issuer_url = issuer_url.rstrip("/")
        form = {
            "grant_type": "client_credentials",
            "client_id": client_id,
            "client_secret": client_secret,
            "audience": audience,
            "scope": scope,
        }
        self._form = {name: value for name, value in form.items() if value}
        self._token = b""
        self._fetched_s = self._good_until_s = 0.0

    def __repr__(self) -> str:
        return f"<OAuth2ClientCredentials of {self._issuer_url}>"

    async def data(self) -> bytes:
        now_s = asyncio.get_running_loop().time()
        if not self._token or now_s >= self._good_until_s:
            token, lives_s = await asyncio.to_thread(self.fetch)
            self._token, self._fetched_s = token.encode(), now_s
            self._good_until_s = now_s + (1 - _RENEW_EARLY) * lives_s
        return self._token

    def on_refused(self) -> None:
        """Drop a refused token, for example when the key that signs tokens was replaced."""
        if asyncio.get_running_loop().time() - self._fetched_s >= REFUSED_AGE_MIN_S:
            self._token = b""

    def fetch(self) -> tuple[str, float]:
        """Return a token and its lifetime in seconds (0 if the issuer does not say).

        Blocks: for callers without an event loop.

        Raises:
            IssuerUnavailableError: the issuer does not answer, or fails.
            CredentialsError: the issuer gives no token.
        """
        found = self._ask(f"{self._issuer_url}/.well-known/openid-configuration", None)
        endpoint = found.get("token_endpoint")
        if not isinstance(endpoint, str) or not endpoint.startswith(("http://", "https://")):
            raise CredentialsError(
                f"the discovery document of {self._issuer_url} names no token_endpoint"
            )
        if self._issuer_url.startswith("https://") and not endpoint.startswith("https://"):
            raise CredentialsError(
                f"{self._issuer_url} names a token endpoint without TLS, {endpoint}: the client "
                "secret was not sent"
            )
        answer = self._ask(endpoint, urllib.parse.urlencode(self._form).encode())
        token, lives_s = answer.get("access_token"), answer.get("expires_in", 0)
        if not isinstance(token, str) or not token:
            raise CredentialsError(f"{endpoint} answered without an access_token")
        return token, float(lives_s) if isinstance(lives_s, int | float) else 0.0

    def _ask(self, url: str, form: bytes | None) -> dict[str, object]:
        # Imported here: most clients ask no issuer.
        from magnetar.sdk.http_client import HttpClient

        http = HttpClient(uses_proxies=True)
        try:
            answer = self._send(http, url, form)
        finally:
            http.close()
        if answer.status != 200:
            text = answer.data[:300].decode(errors="replace")
            kind = IssuerUnavailableError if answer.status >= 500 else CredentialsError
            raise kind(f"{url} answered {answer.status}: {text}")
        try:
            found = json.loads(answer.data)
        except ValueError as error:
            raise CredentialsError(f"{url} did not answer with JSON") from error
        if not isinstance(found, dict):
            raise CredentialsError(f"{url} did not answer with a JSON object")
        return found

    def _send(self, http: "HttpClient", url: str, form: bytes | None) -> "HttpAnswer":
        """Send a request. Follow redirects if it has no secrets, but never leave TLS."""
        from magnetar.sdk.http_client import (
            AnswerTooLargeError,
            NoAnswerError,
            NotConnectedError,
        )

        headers = {"Accept": "application/json"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        for _ in range(_REDIRECTS_MAX):
            try:
                answer = http.ask(
                    "GET" if form is None else "POST",
                    url,
                    headers=headers,
                    body=form,
                    timeout_s=ISSUER_TIMEOUT_S,
                    answer_bytes_max=ISSUER_ANSWER_BYTES_MAX,
                )
            except (NotConnectedError, NoAnswerError) as error:
                raise IssuerUnavailableError(f"cannot reach {url}: {error}") from error
            except AnswerTooLargeError as error:
                raise CredentialsError(
                    f"the issuer did not answer with a token: {error}"
                ) from error
            if form is not None or answer.status not in _REDIRECTS:
                return answer
            target = urllib.parse.urljoin(url, answer.headers.get("location", ""))
            if not target.startswith("https://" if url.startswith("https://") else "http"):
                raise CredentialsError(f"{url} redirects to {target}, which is not TLS")
            url = target
        raise CredentialsError(f"{url} redirects again, after {_REDIRECTS_MAX} redirects")
