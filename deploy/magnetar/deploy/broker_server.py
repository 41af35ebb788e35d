"""One broker in one process against a metadata URL."""

import asyncio
import os
import random
import resource
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.balance.sampler import ProcessUsage
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.explain import explained
from magnetar.deploy.links import link_network
from magnetar.deploy.logs import name_server
from magnetar.deploy.options import Listen, Quorum, Sources
from magnetar.deploy.shared_secret import with_secret_beside
from magnetar.deploy.starting import metadata_store, start_on
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from magnetar.broker.features.tracing import Spans


_log = structlog.get_logger(__name__)

_CLUSTER_POLL_S = 0.2


class BrokerServer:
    """One broker."""

    def __init__(self, settings: BrokerSettings, sources: Sources, *, metadata_url: str) -> None:
        """Make a server from the settings that `broker_settings` returns."""
        self._settings = settings
        self._sources = sources
        self._metadata_url = metadata_url
        self._opened = AsyncExitStack()
        self._broker: Broker | None = None

    async def start(self) -> None:
        url = self._metadata_url
        with explained(metadata_url=url):
            self._opened = await start_on(
                lambda: metadata_store(url, self._sources), self._start_on
            )

    async def _start_on(self, store: MetadataStore, opened: AsyncExitStack) -> None:
        await wait_for_cluster(
            store, self._metadata_url, timeout_s=self._settings.register_timeout_ms / 1000
        )
        from magnetar.deploy.process_metrics import process_collectors

        self._broker = await start_broker(
            store,
            self._settings,
            with_secret_beside(self._sources, self._metadata_url),
            opened,
            collectors=process_collectors(opened),
            is_clustered=True,
            metadata_url=self._metadata_url,
        )
        name_server(self._broker.name)

    def addresses(self) -> list[str]:
        assert self._broker is not None, "start() comes first"
        return broker_addresses(self._broker)

    async def stop(self) -> None:
        await self._opened.aclose()


async def wait_for_cluster(store: MetadataStore, url: str, *, timeout_s: float) -> None:
    """Wait until the path of the metadata URL holds a cluster, which its first bookie creates.

    A broker on a mistyped path would create topics where nobody looks for them.

    Raises:
        SettingsError: no cluster appears within `timeout_s`.
        InvalidLedgerMetadataError: the path holds metadata that this release cannot read.
        MetadataError
    """
    registry, clock = BookieRegistry(store), SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    while await registry.find_instance_id() is None:
        if clock.monotonic_s() >= until_s:
            raise SettingsError(
                f"{url} holds no cluster: no bookie was ever started with it. Check the path, or "
                f"start a bookie first"
            )
        await asyncio.sleep(_CLUSTER_POLL_S)


ENTRY_HEADERS_BYTES_MAX = 64 << 10
"""Room for the rest of an entry, in bytes: message metadata, and what the broker adds."""


def fitting(ledger: LedgerSettings, broker: BrokerSettings) -> LedgerSettings:
    """Return the ledger client's settings, with room for the broker's largest message.

    Unless it is set, the bound on entries follows the bound on messages.

    Raises:
        SettingsError: the broker would announce a message size that its ledgers refuse.
    """
    needed = broker.message_bytes_max + ENTRY_HEADERS_BYTES_MAX
    if "entry_bytes_max" not in ledger.model_fields_set and ledger.entry_bytes_max < needed:
        ledger = ledger.model_copy(update={"entry_bytes_max": needed})
    for name in ("entry_bytes_max", "pending_bytes_max", "channel_bytes_max"):
        if getattr(ledger, name) < needed:
            raise SettingsError(
                f"message_bytes_max is {broker.message_bytes_max}, and {name} of the ledger client "
                f"is {getattr(ledger, name)}: the largest message could never be stored. Set "
                f"{name} to {needed} or more, or lower message_bytes_max"
            )
    return ledger


def check_bookies(client: LedgerClient, ledger: LedgerSettings, broker: BrokerSettings) -> None:
    """Refuse to serve messages that no ledger could hold, because bookies refuse such requests.

    Bookies that have not registered yet are not judged. If they take too little, they get no
    ledgers later.

    Raises:
        SettingsError: too few bookies for an ensemble take requests of the size needed.
    """
    narrow, writable = client.registry.too_narrow(), client.registry.writable()
    if narrow and len(writable) < broker.ensemble_size:
        name, info = min(narrow.items())
        raise SettingsError(
            f"bookie {name} takes requests of up to {info.frame_bytes_max} bytes, and messages of "
            f"message_bytes_max ({broker.message_bytes_max}) need {ledger.frame_bytes_needed}; "
            f"{len(writable)} bookies take them, and ledgers need {broker.ensemble_size}: raise "
            f"frame_bytes_max of the bookies, or lower message_bytes_max of the broker"
        )


def warn_of_one_copy(settings: BrokerSettings) -> None:
    """Warn at the start that an acknowledged message may be on one disk only."""
    if settings.ack_quorum == 1:
        _log.warning(
            "ack_quorum_of_one",
            quorum=f"{settings.ensemble_size},{settings.write_quorum},{settings.ack_quorum}",
            reason="a message is acknowledged when one disk has it: if that disk is lost, the "
            "message may be lost. For more copies, give --bookies 3 (standalone, cluster) or "
            "--quorum 3,3,2",
        )


def broker_settings(
    sources: Sources,
    *,
    listen: Listen,
    port: int,
    http_port: int,
    quorum: Quorum,
    name: str = "",
    advertised_listeners: str = "",
    insecure: bool = False,
) -> BrokerSettings:
    """Return the settings of a broker: those of its sources, overridden by the command's options.

    Raises:
        SettingsError
    """
    given: dict[str, object] = {
        "advertised_host": listen.advertised_host,
        "name": name,
        "advertised_listeners": advertised_listeners,
        "insecure": insecure,
    }
    options = {
        **{key: value for key, value in given.items() if value},
        "host": listen.host,
        "port": port,
        "http_port": http_port,
        "ensemble_size": quorum.ensemble,
        "write_quorum": quorum.write,
        "ack_quorum": quorum.ack,
    }
    settings = sources.component(BrokerSettings, "broker", options)
    if not settings.advertised_host:
        settings = settings.model_copy(update={"advertised_host": listen.told_host})
    return settings


async def start_broker(
    store: MetadataStore,
    settings: BrokerSettings,
    sources: Sources,
    opened: AsyncExitStack,
    *,
    collectors: "Sequence[Collector]",
    is_clustered: bool = False,
    metadata_url: str,
) -> Broker:
    """Start a ledger client and a broker on it; `opened` closes them.

    Args:
        sources: of the ledger client's settings.
        collectors: what /metrics shows besides the broker's own metrics.
        is_clustered: whether other brokers may run beside this one.
        metadata_url: of the store.
    """
    warn_of_one_copy(settings)
    ledger_settings = fitting(sources.component(LedgerSettings, "ledger"), settings)
    client = LedgerClient(
        store,
        network=link_network(ledger_settings, opened),
        clock=SystemClock(),
        random=random.SystemRandom(),
        settings=ledger_settings,
    )
    await client.start()
    opened.push_async_callback(client.close)
    check_bookies(client, ledger_settings, settings)
    broker = Broker(
        settings,
        client,
        store,
        clock=SystemClock(),
        network=SystemNetwork(),
        random=random.SystemRandom(),
        collectors=collectors,
        is_clustered=is_clustered,
        usage=_process_usage,
        read_file=SystemDisk().read_file,
        metadata_url=metadata_url,
        request_stop=lambda: signal.raise_signal(signal.SIGTERM),
        spans=_spans(settings, opened) if settings.tracing else None,
    )
    await broker.start()
    opened.push_async_callback(broker.stop)
    return broker


def _process_usage() -> ProcessUsage:
    """Return processor time of all threads since the start, and resident memory, for the load
    report."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessUsage(cpu_s=used.ru_utime + used.ru_stime, memory_bytes=_resident_bytes())


def _resident_bytes() -> int:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * page_bytes
    except (OSError, IndexError, ValueError):
        return 0  # not Linux: unknown


def _spans(settings: BrokerSettings, opened: AsyncExitStack) -> "Spans":
    """Start tracing by OpenTelemetry, which is imported only if tracing is on.

    Raises:
        SettingsError: OpenTelemetry or its exporter is not installed.
    """
    try:
        from magnetar.deploy.otel import start_tracing
    except ImportError as error:
        raise SettingsError(
            f"tracing needs OpenTelemetry: pip install magnetar[otel] ({error})"
        ) from error
    return start_tracing(settings.tracing_sample_ratio, opened)


def broker_addresses(broker: Broker) -> list[str]:
    """Return the URLs of the `ready` line."""
    listen = Listen(broker.advertised_host)
    addresses = [listen.url("pulsar", broker.port), listen.url("http", broker.http_port)]
    if broker.tls_port:
        addresses.append(listen.url("pulsar+ssl", broker.tls_port))
    if broker.https_port:
        addresses.append(listen.url("https", broker.https_port))
    return addresses
