"""Implementation of `magnetar doctor`: checks everything between this machine and a cluster.

The checks change nothing: they create no topic and publish nothing. Each one has a time limit.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magnetar.deploy.admin_client import AdminClient, RequestRefusedError
from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import DeployError
from magnetar.deploy.findings import (
    Finding,
    State,
    bookies_finding,
    clock_finding,
    disk_finding,
    token_finding,
)
from magnetar.sdk.connection import ConnectionPool
from magnetar.sdk.errors import InvalidUrlError, SdkError
from magnetar.sdk.http_client import AnswerTooLargeError, HttpClient, NoAnswerError
from magnetar.sdk.ports import SystemNetwork
from magnetar.sdk.service_url import Address, ServiceUrl
from magnetar.sdk.tls import tls_context

TIMEOUT_S = 5.0
"""Time limit of each check."""
BROKERS_MAX = 200
"""Most advertised addresses that are tried."""
_ANSWER_BYTES_MAX = 1 << 20
_UNREACHABLE, _NOT_ALLOWED, _METADATA = 8, 15, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Addresses and directories to check."""

    url: str
    admin_url: str
    metadata: str = ""
    """URL of the metadata store; empty: the store is not checked."""
    data: Path | None = None
    """Data directory of a server on this machine."""


class Doctor:
    """Checks one cluster."""

    def __init__(self, examined: Examined, credentials: ClientCredentials) -> None:
        self._examined = examined
        self._credentials = credentials

    async def findings(self) -> AsyncIterator[Finding]:
        """Yield the findings as they are made."""
        if self._credentials.token:
            yield token_finding(self._credentials.token, now_s=time.time())
        if self._examined.data is not None:
            yield self._of_disk(self._examined.data)
        async for each in self._of_connections():
            yield each
        for finding in await asyncio.to_thread(lambda: list(self._of_http())):
            yield finding
        if self._examined.metadata:
            yield await self._of_metadata(self._examined.metadata)

    def _of_disk(self, data: Path) -> Finding:
        try:
            usage = shutil.disk_usage(data)
        except OSError as error:
            return Finding("disk", State.FAILED, f"{data}: {error.strerror}", 7)
        return disk_finding(str(data), free=usage.free, total=usage.total)

    # -- over HTTP

    def _of_http(self) -> Iterator[Finding]:
        url = self._examined.admin_url
        yield from self._of_clock(url)
        try:
            admin = AdminClient(url, timeout_s=TIMEOUT_S, credentials=self._credentials)
            version = admin.get("/admin/v2/brokers/version")
        except RequestRefusedError as error:
            yield Finding("http", State.FAILED, str(error), error.exit_status)
            return
        except DeployError as error:
            yield Finding("http", State.FAILED, str(error), error.exit_status)
            return
        yield Finding("http", State.OK, f"{url} answers: {version}")
        try:
            yield from bookies_finding(admin.get("/magnetar/v1/bookies"))
        except RequestRefusedError as error:
            yield Finding("bookies", State.WARNING, f"not shown: {error}")
        except DeployError as error:
            yield Finding("bookies", State.FAILED, str(error), error.exit_status)

    def _of_clock(self, url: str) -> Iterator[Finding]:
        client = HttpClient(self._credentials.tls)
        before_s = time.time()
        try:
            # Any answer has a date, a refusal too.
            answer = client.ask(
                "GET",
                f"{url.split(',')[0].rstrip('/')}/health",
                headers={},
                timeout_s=TIMEOUT_S,
                answer_bytes_max=_ANSWER_BYTES_MAX,
            )
        except (SdkError, DeployError, NoAnswerError, AnswerTooLargeError, ValueError):
            return  # the check of the HTTP interface reports what is wrong
        finally:
            client.close()
        found = clock_finding(
            answer.headers.get("date", ""), before_s=before_s, after_s=time.time()
        )
        if found is not None:
            yield found

    # -- over the binary protocol

    async def _of_connections(self) -> AsyncIterator[Finding]:
        try:
            service = ServiceUrl.parse(self._examined.url)
        except InvalidUrlError as error:
            yield Finding("service", State.FAILED, str(error), 2)
            return
        settings = self._credentials.client_settings(operation_timeout_ms=int(TIMEOUT_S * 1000))
        try:
            network = SystemNetwork((lambda: tls_context(settings)) if service.is_tls else None)
            pool = ConnectionPool(settings, network)
        except SdkError as error:
            yield Finding("service", State.FAILED, str(error), 2)
            return
        try:
            for address in service.addresses:
                yield await _connected("service", address, pool)
            if service.is_tls:
                return  # brokers list their addresses without TLS only
            for finding in await self._of_advertised(pool, service):
                yield finding
        finally:
            await pool.close()

    async def _of_advertised(self, pool: ConnectionPool, service: ServiceUrl) -> Sequence[Finding]:
        """Check whether the addresses that brokers advertise work from here."""
        try:
            known: list[dict[str, Any]] = await asyncio.to_thread(self._list_brokers)
        except DeployError:
            return ()  # the check of the HTTP interface reports it
        found = []
        addresses: list[Address] = []
        for each in known[:BROKERS_MAX]:
            try:
                addresses += ServiceUrl.parse(each["native_url"]).addresses
            except InvalidUrlError as error:
                text = f"{each['name']} advertises an address that is none: {error}"
                found.append(Finding("advertised", State.FAILED, text, 2))
        others = [each for each in addresses if each not in service.addresses]
        found += await asyncio.gather(
            *(_connected("advertised", address, pool) for address in others)
        )
        return found

    def _list_brokers(self) -> list[dict[str, Any]]:
        admin = AdminClient(
            self._examined.admin_url, timeout_s=TIMEOUT_S, credentials=self._credentials
        )
        brokers: list[dict[str, Any]] = admin.get("/magnetar/v1/brokers")
        return brokers

    # -- the metadata store

    async def _of_metadata(self, url: str) -> Finding:
        from magnetar.deploy.explain import explained
        from magnetar.ledger.metadata.url import open_store

        path = url.removeprefix("embedded:")
        if path != url and not await asyncio.to_thread(os.path.isfile, path):
            # Opening the file would create one.
            return Finding("metadata", State.FAILED, f"{path} does not exist", 2)
        started_s = time.monotonic()
        try:
            with explained(metadata_url=url):
                async with asyncio.timeout(2 * TIMEOUT_S):
                    store = await open_store(url)
                    try:
                        await store.exists("/ledgers")
                    finally:
                        await store.close()
        except TimeoutError:
            text = f"{url} does not answer within {2 * TIMEOUT_S:g} s"
            return Finding("metadata", State.FAILED, text, _METADATA)
        except DeployError as error:
            return Finding("metadata", State.FAILED, str(error), error.exit_status)
        took_ms = (time.monotonic() - started_s) * 1000
        return Finding("metadata", State.OK, f"{url} answers ({took_ms:.0f} ms)")


async def _connected(check: str, address: Address, pool: ConnectionPool) -> Finding:
    """Connect to an address, with handshake and credentials."""
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            connection = await pool.get(address)
    except TimeoutError:
        text = f"{address} does not answer within {TIMEOUT_S:g} s"
        return Finding(check, State.FAILED, text + _advice(check), _UNREACHABLE)
    except SdkError as error:
        status = _UNREACHABLE if error.retryable else _NOT_ALLOWED
        text = f"{address}: {' '.join(str(error).split())}"
        return Finding(check, State.FAILED, text + _advice(check), status)
    took_ms = (time.monotonic() - started_s) * 1000
    version = connection.server_version or "a broker"
    return Finding(check, State.OK, f"{address} answers: {version} ({took_ms:.0f} ms)")


def _advice(check: str) -> str:
    if check != "advertised":
        return ""
    return ": clients are sent there; set advertised_host, or ask for a listener by name"
