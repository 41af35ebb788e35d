"""HTTP requests to brokers and to token issuers. Blocking, by urllib3.

Callers differ in how they read an answer and which server they ask next. They share how a request
is sent: bounded in time and size, and never redirected without the caller's knowledge, since a
redirect may lead credentials away from TLS.
"""

import ssl
import urllib.request
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from magnetar.sdk.errors import SdkError

_SERVERS_MAX = 100
"""Servers to which a connection is kept open; the least recently used one is closed."""


class HttpAnswer(NamedTuple):
    """An HTTP response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class NotConnectedError(SdkError):
    """The server accepts no connection, so it has not seen the request."""


class NoAnswerError(SdkError):
    """The connection broke, or the answer did not come in time; the outcome is unknown."""


class AnswerTooLargeError(SdkError):
    """The answer is larger than the caller allows."""


class HttpClient:
    """Sends requests, one at a time, and keeps a connection open to each server. For one thread."""

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        *,
        uses_proxies: bool = False,
    ) -> None:
        """Start without connections.

        `tls` makes the TLS context for https, at its first use. `uses_proxies`: use the proxies
        that the environment names (`https_proxy`, `no_proxy`). Brokers are never behind one.
        """
        self._tls = tls
        self._uses_proxies = uses_proxies
        self._pools: dict[tuple[bool, str], urllib3.PoolManager] = {}
        """Pools by whether they are for https, and by proxy ("" for none)."""

    def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout_s: float,
        answer_bytes_max: int,
    ) -> HttpAnswer:
        """Send a request and read its whole answer, whatever its status.

        `timeout_s` bounds connecting, and each wait for bytes.

        Raises:
            NotConnectedError: nothing was sent; the caller may ask another server.
            NoAnswerError: the server may have carried out the request.
            AnswerTooLargeError: the answer has more than `answer_bytes_max` bytes.
        """
        try:
            response = self._pool(url).request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            data = response.read(answer_bytes_max + 1)
            if len(data) > answer_bytes_max:
                response.close()
                raise AnswerTooLargeError(f"{url}: more than {answer_bytes_max} bytes")
            response.release_conn()
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise NotConnectedError(_reason(error)) from error
        except (HTTPError, OSError) as error:
            raise NoAnswerError(_reason(error)) from error
        found = {name.lower(): value for name, value in response.headers.items()}
        return HttpAnswer(response.status, found, data)

    def close(self) -> None:
        """Close the open connections. A later request opens new ones."""
        for pool in self._pools.values():
            pool.clear()

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy = self._proxy_for(url)
        is_secure = url.startswith("https:")
        pool = self._pools.get((is_secure, proxy))
        if pool is None:
            context = self._tls() if is_secure else None
            if proxy:
                pool = urllib3.ProxyManager(proxy, _SERVERS_MAX, ssl_context=context)
            else:
                pool = urllib3.PoolManager(_SERVERS_MAX, ssl_context=context)
            self._pools[(is_secure, proxy)] = pool
        return pool

    def _proxy_for(self, url: str) -> str:
        parts = urlsplit(url)
        if not self._uses_proxies or urllib.request.proxy_bypass(parts.hostname or ""):
            return ""
        return urllib.request.getproxies().get(parts.scheme, "")


def _reason(error: BaseException) -> str:
    """Return the operating system's error text, if there is one, without urllib3's classes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (cause.strerror or str(cause)):
            return cause.strerror or str(cause)
        cause = cause.__cause__ or cause.__context__
    return "timed out" if isinstance(error, urllib3.exceptions.TimeoutError) else str(error)
