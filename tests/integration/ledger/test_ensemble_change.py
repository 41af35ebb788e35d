"""A bookie fails while a ledger is written: others take its place, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.quorum import write_set
from magnetar.ledger.reading.bookie_requests import ask, read_reply_block
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.under_replication import Missing, decode_item, item_path
from magnetar.ledger.wire import Frame, Op, Status, encode_read_body
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.waiting import until

IMPATIENT = CLIENT_SETTINGS.model_copy(
    update={
        "follow_up_time_s": 0.0,
        "follow_up_retry_delay_s": 0.01,
        "repair_publish_delay_s": 0.0,
    }
)
DELAYED = IMPATIENT.model_copy(update={"ensemble_change_mode": "delayed"})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(5, tmp_path) as cluster:
        yield cluster


async def create(client: LedgerClient, quorums: tuple[int, int, int]) -> LedgerWriter:
    ensemble_size, write_quorum, ack_quorum = quorums
    return await client.create(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )


def append(writer: LedgerWriter, payloads: Sequence[bytes]) -> asyncio.Future[None]:
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: LedgerError | None) -> None:
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    writer.append(payloads, on_done)
    return outcome


async def append_all(writer: LedgerWriter, payloads: Sequence[bytes]) -> None:
    outcomes = []
    for payload in payloads:
        outcomes.append(append(writer, [payload]))
        await asyncio.sleep(0)  # a frame each
    await asyncio.gather(*outcomes)


async def copies(
    cluster: Cluster, metadata: LedgerMetadata, entry_id: int
) -> dict[str, bytes | None]:
    """What each bookie that the metadata names for the entry has of it."""
    ensemble = metadata.ensemble_for(entry_id)
    members = write_set(entry_id, ensemble_size=len(ensemble), write_quorum=metadata.write_quorum)
    found: dict[str, bytes | None] = {}
    async with cluster.client() as client:
        for index in members:
            name = ensemble[index]
            try:
                frame = await ask(
                    client.channels,
                    name,
                    Op.READ,
                    encode_read_body(last_entry_id=entry_id, bytes_max=1 << 20),
                    ledger_id=metadata.ledger_id,
                    entry_id=entry_id,
                )
                packet = read_reply_block(frame, name).packets()[0]
                found[name] = codec_for(metadata).open_packet(packet, entry_id).payload
            except LedgerError:
                found[name] = None
    return found


async def wait_published(cluster: Cluster, ledger_id: int, expected: Missing) -> None:
    path = item_path("/ledgers", ledger_id)

    async def is_there() -> bool:
        try:
            node = await cluster.store.get(path)
        except NoNodeError:
            return False
        return decode_item(node.value, path=path)[0] == expected

    await until(is_there)


async def wait_withdrawn(writer: LedgerWriter) -> None:
    await until(lambda: writer.has_failed)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2), (2, 1, 1), (3, 2, 2), (4, 3, 2)])
async def test_every_confirmed_entry_is_where_the_metadata_says(
    cluster: Cluster, quorums: tuple[int, int, int]
) -> None:
    payloads = [b"entry %d" % number for number in range(300)]
    async with cluster.client() as client:
        writer = await create(client, quorums)
        await append_all(writer, payloads[:100])
        first = writer.metadata.last_fragment.bookies
        writing = asyncio.ensure_future(append_all(writer, payloads[100:200]))
        await asyncio.sleep(0)
        await cluster.stop_bookie(first[0])
        await writing
        await append_all(writer, payloads[200:])  # if the bookie still took all of those
        metadata = await writer.close()
        assert len(metadata.ensembles) == 2
        assert first[0] not in metadata.last_fragment.bookies
        assert metadata.last_fragment.bookies[1:] == first[1:], "the others keep their places"
        start = metadata.last_fragment.first_entry_id
        assert [
            (await writer.read(entry_id, entry_id))[0] for entry_id in range(start, len(payloads))
        ] == payloads[start:]
    for entry_id in range(start, len(payloads), 17):
        there = await copies(cluster, metadata, entry_id)
        stored = [payload for payload in there.values() if payload is not None]
        assert set(stored) == {payloads[entry_id]}
        assert len(stored) >= quorums[2]


async def test_a_second_failure_during_the_change_is_part_of_it(cluster: Cluster) -> None:
    network = FilteredNetwork()
    async with cluster.client(network, IMPATIENT) as client:
        writer = await create(client, (3, 3, 2))
        await append_all(writer, [b"one"])
        ensemble = writer.metadata.last_fragment.bookies
        ports = {cluster.bookies[name].port for name in ensemble[:2]}

        def fail(port: int, frame: Frame) -> Frame:
            if frame.op == Op.ADD and port in ports:
                return frame._replace(status=Status.IO_ERROR)
            return frame

        network.filter = fail
        await append_all(writer, [b"two", b"three"])
        metadata = await writer.close()
        assert [fragment.first_entry_id for fragment in metadata.ensembles] == [0, 1]
        assert not set(metadata.last_fragment.bookies) & set(ensemble[:2])


async def test_without_a_spare_bookie_adds_go_on_and_the_hole_is_published(
    cluster: Cluster,
) -> None:
    for name in ("b4", "b5"):
        await cluster.stop_bookie(name)
    async with cluster.client(settings=IMPATIENT) as client:
        writer = await create(client, (3, 3, 2))
        await append_all(writer, [b"one"])
        await cluster.stop_bookie("b2")
        await append_all(writer, [b"two", b"three"])
        assert len(writer.metadata.ensembles) == 1
        await wait_published(cluster, writer.ledger_id, {"b2": [(1, 2)]})


async def test_a_bookie_that_joins_takes_the_place_that_is_empty(cluster: Cluster) -> None:
    for name in ("b4", "b5"):
        await cluster.stop_bookie(name)
    async with cluster.client(settings=IMPATIENT) as client:
        writer = await create(client, (3, 3, 2))
        await cluster.stop_bookie("b2")
        await append_all(writer, [b"one"])
        assert len(writer.metadata.ensembles) == 1
        await cluster.start_bookie("b4")
        await cluster.wait_known(client, "b4")
        await append_all(writer, [b"two"])
        fragment = writer.metadata.last_fragment
        assert fragment.first_entry_id == 1
        assert set(fragment.bookies) == {"b1", "b3", "b4"}


async def test_too_few_bookies_for_the_ack_quorum_fail_the_handle(cluster: Cluster) -> None:
    for name in ("b4", "b5"):
        await cluster.stop_bookie(name)
    async with cluster.client(settings=IMPATIENT) as client:
        writer = await create(client, (3, 3, 2))
        await append_all(writer, [b"one"])
        for name in ("b2", "b3"):
            await cluster.stop_bookie(name)
        with pytest.raises(LedgerWriteError, match="no other bookie can take the place"):
            await append_all(writer, [b"two"])
        assert writer.last_add_confirmed == 0


async def test_a_bookie_that_is_back_in_time_gets_what_it_missed(cluster: Cluster) -> None:
    for name in ("b4", "b5"):
        await cluster.stop_bookie(name)
    patient = CLIENT_SETTINGS.model_copy(update={"follow_up_retry_delay_s": 0.05})
    async with cluster.client(settings=patient) as client:
        writer = await create(client, (3, 3, 2))
        await cluster.stop_bookie("b2")
        await append_all(writer, [b"one", b"two"])
        await cluster.start_bookie("b2")

        async def is_whole() -> bool:
            return None not in (await copies(cluster, writer.metadata, 1)).values()

        await until(is_whole)
        await writer.close()
        assert client.repairs.noted == 0


async def test_delayed_changes_wait_until_the_ack_quorum_is_at_stake(cluster: Cluster) -> None:
    async with cluster.client(settings=DELAYED) as client:
        writer = await create(client, (3, 3, 2))
        ensemble = writer.metadata.last_fragment.bookies
        await append_all(writer, [b"one"])
        await cluster.stop_bookie(ensemble[0])
        await append_all(writer, [b"two", b"three"])
        assert len(writer.metadata.ensembles) == 1
        await wait_published(cluster, writer.ledger_id, {ensemble[0]: [(1, 2)]})
        await cluster.stop_bookie(ensemble[1])
        await append_all(writer, [b"four"])
        fragment = writer.metadata.last_fragment
        assert fragment.first_entry_id == 3
        assert ensemble[1] not in fragment.bookies


async def test_a_ledger_has_no_more_changes_than_allowed(cluster: Cluster) -> None:
    few = IMPATIENT.model_copy(update={"ensemble_changes_max": 1})
    async with cluster.client(settings=few) as client:
        writer = await create(client, (2, 2, 2))
        for expected in (2, None):
            await cluster.stop_bookie(writer.metadata.last_fragment.bookies[0])
            if expected is None:
                with pytest.raises(LedgerWriteError, match="ensemble_changes_max of 1"):
                    await append_all(writer, [b"more"])
            else:
                await append_all(writer, [b"one"])


async def test_recovery_replaces_bookies_and_commits_that_with_the_end(cluster: Cluster) -> None:
    """D3: the changes of a recovery become visible with the closing write, not before."""
    network = FilteredNetwork()
    async with cluster.client(network, IMPATIENT) as client, cluster.client() as other:
        # Qa = 3: with less, recovery could be over before it hears of the failure.
        writer = await create(client, (3, 3, 3))
        for payload in (b"one", b"two"):
            await append_all(writer, [payload])
        ensemble = writer.metadata.last_fragment.bookies
        port = cluster.bookies[ensemble[1]].port
        seen: list[int] = []

        def fail_recovery_adds(at: int, frame: Frame) -> Frame:
            if frame.op == Op.ADD and at == port:
                seen.append(frame.entry_id)
                return frame._replace(status=Status.IO_ERROR)
            return frame

        network.filter = fail_recovery_adds
        reader = await client.open_and_recover(writer.ledger_id)
        assert seen, "the tail was written back"
        assert reader.metadata.last_entry_id == 1
        fragment = reader.metadata.last_fragment
        assert fragment.first_entry_id == 1
        assert ensemble[1] not in fragment.bookies
        assert await (await other.open(writer.ledger_id)).read(0, 0) == [b"one"]
        assert set((await copies(cluster, reader.metadata, 1)).values()) == {b"two"}


async def test_d16_a_writer_withdraws_when_its_ledger_is_closed_by_others(
    cluster: Cluster,
) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer = await create(client, (3, 3, 2))
        await append_all(writer, [b"one"])
        reader = await other.open_and_recover(writer.ledger_id)
        await wait_withdrawn(writer)
        with pytest.raises(LedgerFencedError):
            writer.append([b"two"], lambda error: None)
        assert reader.last_add_confirmed == 0


async def test_d17_a_writer_withdraws_when_its_ledger_is_deleted(cluster: Cluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer = await create(client, (3, 3, 2))
        await other.delete(writer.ledger_id)
        await wait_withdrawn(writer)
        with pytest.raises(NoSuchLedgerError):
            writer.append([b"one"], lambda error: None)


def test_the_settings_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="ensemble_change_mode"):
        LedgerSettings.model_validate({"ensemble_change_mode": "never"})
