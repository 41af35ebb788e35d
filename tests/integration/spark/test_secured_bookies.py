"""Executors read bookies that want TLS, the shared secret, or both; and say why if they cannot."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.arrow.stored.ledger_directory import ledger_part
from magnetar.arrow.stored.ledger_reads import LedgerReads
from magnetar.arrow.stored.slices import Address, BookieSecurity, Ensemble, LedgerPart
from magnetar.bookie.bookie import Bookie
from magnetar.deploy.links import link_network
from magnetar.ledger.link_settings import LinkSettings
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemDisk
from magnetar.sdk.spark.errors import EntryLossError, OptionError, UnreachableError
from tests.certificates import Authority
from tests.integration.ledger.cluster import Cluster, no_fatal_errors

SECRET = "a secret that all servers of a cluster know"
# More than one request and one TLS record.
VALUES = [b"%d " % number * 2_000 for number in range(300)]


class Files:
    """What servers and executors have of one cluster."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._authority = Authority(directory)
        self.certificate, self.key = self._authority.issue("server")
        self.secret = directory / "secret"
        self.secret.write_text(SECRET)

    def servers(self, *, tls: bool, secret: bool) -> LinkSettings:
        return LinkSettings(
            tls_certificate_file=str(self.certificate) if tls else "",
            tls_key_file=str(self.key) if tls else "",
            tls_ca_file=str(self._authority.path) if tls else "",
            shared_secret_file=str(self.secret) if secret else "",
        )

    def executors(self, *, tls: bool, secret: bool) -> BookieSecurity:
        settings = self.servers(tls=tls, secret=secret)
        return BookieSecurity(
            tls_trust_file=settings.tls_ca_file,
            tls_certificate_file=settings.tls_certificate_file,
            tls_key_file=settings.tls_key_file,
            secret_file=settings.shared_secret_file,
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "files")


@asynccontextmanager
async def stored(settings: LinkSettings, directory: Path) -> AsyncIterator[tuple[LedgerPart, int]]:
    """A ledger of `VALUES` on one bookie, and the bookie's port."""
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    cluster = Cluster(store, directory)
    network = link_network(settings, serves=True)
    bookie = Bookie(
        cluster.settings_of("b1"),
        store,
        clock=SystemClock(),
        network=network,
        disk=SystemDisk(),
        random=random.Random(1),
        on_fatal=no_fatal_errors,
    )
    await bookie.start()
    cluster.bookies["b1"] = bookie
    try:
        async with cluster.client(link_network(settings)) as client:
            writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await asyncio.gather(*map(writer.add, VALUES))
            await writer.close()
            metadata = (await client.manager.read(writer.ledger_id)).metadata
            yield ledger_part(metadata, 0, len(VALUES) - 1), bookie.port
    finally:
        await bookie.stop()
        await store.close()


async def read(
    part: LedgerPart, port: int, security: BookieSecurity, *, instance_id: str = ""
) -> list[bytes]:
    """As an executor does, whose thread blocks."""

    def run() -> list[bytes]:
        (bookie_id,) = part.ensembles[0].bookies
        reads = LedgerReads(
            {bookie_id: Address("127.0.0.1", port, instance_id)},
            request_bytes=1 << 20,
            bookie_timeout_ms=30_000,
            security=security,
        )
        try:
            return [each for _, run in reads.entries(part) for each in run]
        finally:
            reads.close()

    return await asyncio.to_thread(run)


@pytest.mark.parametrize(
    ("tls", "secret"), [(False, False), (True, False), (False, True), (True, True)]
)
async def test_executors_read_with_what_the_servers_of_the_cluster_have(
    tmp_path: Path, files: Files, tls: bool, secret: bool
) -> None:
    async with stored(files.servers(tls=tls, secret=secret), tmp_path) as (part, port):
        assert await read(part, port, files.executors(tls=tls, secret=secret)) == VALUES


async def test_executors_show_the_key_of_the_ledger_and_say_so_if_it_does_not_fit(
    tmp_path: Path, files: Files
) -> None:
    async with stored(files.servers(tls=False, secret=False), tmp_path) as (part, port):
        assert part.password
        assert repr(part.password) not in repr(part), "slices are logged"
        security = files.executors(tls=False, secret=False)
        for password in (b"", b"another"):
            with pytest.raises(UnreachableError, match="the ledger's password does not fit"):
                await read(replace(part, password=password), port, security)
        held = await asyncio.to_thread(first_held, part, port, security)
        assert held == part.first


def first_held(part: LedgerPart, port: int, security: BookieSecurity) -> int:
    (bookie_id,) = part.ensembles[0].bookies
    reads = LedgerReads(
        {bookie_id: Address("127.0.0.1", port, "")},
        request_bytes=1 << 20,
        bookie_timeout_ms=30_000,
        security=security,
    )
    try:
        return reads.first_held(part)
    finally:
        reads.close()


@pytest.mark.parametrize(("meant", "instance_id"), [("b2", ""), ("b1", "0" * 32)])
async def test_executors_believe_no_other_bookie_at_an_address_of_the_plan(
    tmp_path: Path, files: Files, meant: str, instance_id: str
) -> None:
    async with stored(files.servers(tls=False, secret=False), tmp_path) as (part, port):
        elsewhere = replace(part, ensembles=(Ensemble(0, (meant,)),))
        security = files.executors(tls=False, secret=False)
        with pytest.raises(UnreachableError, match=f"expected bookie {meant}.*, but bookie b1"):
            await read(elsewhere, port, security, instance_id=instance_id)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_bookie_tells_which_entry_is_the_next_that_it_has(
    tmp_path: Path, files: Files, tls: bool
) -> None:
    """That one question is asked for a run of lost entries, between reads."""
    async with stored(files.servers(tls=tls, secret=False), tmp_path) as (part, port):
        end = len(VALUES)

        def run() -> None:
            reads = LedgerReads(
                {"b1": Address("127.0.0.1", port)},
                request_bytes=1 << 20,
                bookie_timeout_ms=30_000,
                security=files.executors(tls=tls, secret=False),
            )
            try:
                with pytest.raises(EntryLossError, match=f"entry {end} "):
                    list(reads.entries(replace(part, first=end, last=end + 99_999)))
                lost = replace(part, first=end, last=end + 99_999)
                assert reads.first_held(lost) == end + 100_000
                assert reads.first_held(replace(part, first=end - 1)) == end - 1
                assert [first for first, _ in reads.entries(replace(part, first=end - 1))] == [
                    end - 1
                ]
                assert reads.first_held(replace(lost, ledger_id=1 << 40)) == end + 100_000
            finally:
                reads.close()

        await asyncio.to_thread(run)


async def test_a_missing_secret_is_asked_for_by_the_name_of_the_option(
    tmp_path: Path, files: Files
) -> None:
    async with stored(files.servers(tls=False, secret=True), tmp_path) as (part, port):
        with pytest.raises(UnreachableError, match="bookieSharedSecretFile"):
            await read(part, port, files.executors(tls=False, secret=False))


async def test_another_secret_is_refused_by_the_bookie(tmp_path: Path, files: Files) -> None:
    async with stored(files.servers(tls=False, secret=True), tmp_path) as (part, port):
        other = tmp_path / "other"
        other.write_text("the secret of quite another cluster, it is")
        with pytest.raises(UnreachableError, match="is not the one of this bookie"):
            await read(part, port, BookieSecurity(secret_file=str(other)))


async def test_a_bookie_without_the_secret_is_not_believed(tmp_path: Path, files: Files) -> None:
    async with stored(files.servers(tls=False, secret=False), tmp_path) as (part, port):
        with pytest.raises(UnreachableError, match="no shared secret"):
            await read(part, port, files.executors(tls=False, secret=True))


async def test_a_bookie_of_another_authority_is_not_believed(tmp_path: Path, files: Files) -> None:
    others = Files(tmp_path / "others")
    async with stored(others.servers(tls=True, secret=False), tmp_path) as (part, port):
        with pytest.raises(UnreachableError, match=r"(?i)certificate.verify.failed"):
            await read(part, port, files.executors(tls=True, secret=False))


async def test_a_plain_executor_gets_nothing_from_a_bookie_with_tls(
    tmp_path: Path, files: Files
) -> None:
    async with stored(files.servers(tls=True, secret=False), tmp_path) as (part, port):
        with pytest.raises(UnreachableError, match="bookie b1"):
            await read(part, port, BookieSecurity())


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("tls_trust_file", "bookieTlsTrustCertsFile"),
        ("tls_certificate_file", "bookieTlsCertificateFile"),
        ("secret_file", "bookieSharedSecretFile"),
    ],
)
def test_a_file_that_an_executor_lacks_is_named_with_its_option(
    tmp_path: Path, files: Files, name: str, option: str
) -> None:
    good = files.executors(tls=True, secret=True)
    missing: dict[str, Any] = {name: str(tmp_path / "missing")}
    with pytest.raises(OptionError, match=rf"option {option}: .*missing.*No such file") as caught:
        LedgerReads(
            {},
            request_bytes=1 << 20,
            bookie_timeout_ms=30_000,
            security=replace(good, **missing),
        )
    assert SECRET not in str(caught.value)
