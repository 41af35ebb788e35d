"""A byte is changed anywhere in a real bookie's files: never served, and never an absence."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from magnetar.bookie.errors import BookieServiceError
from magnetar.ledger.digest import read_key
from magnetar.ledger.reading.bookie_requests import ask
from magnetar.ledger.wire import Op, Status, decode_block, encode_read_body
from tests.integration.ledger.cluster import cluster_of

FLIPS = 30
PAYLOADS = [f"entry {number:04} ".encode() * 200 for number in range(20)]

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("engine", ["db", "interleaved"])
async def test_b14_a_flipped_byte_anywhere_is_never_served_and_is_no_absence(
    tmp_path: Path, engine: str
) -> None:
    """What is served is right, the rest is an error, or the bookie does not start. A healer is at
    work meanwhile, and must not make anything worse."""
    draw = random.Random(f"flips, {engine}")
    refused = errors = 0
    async with cluster_of(2, tmp_path) as cluster, cluster.client() as client:
        settings = cluster.settings_of("b3").model_copy(update={"storage_engine": engine})
        await cluster.start_bookie("b3", settings)
        await cluster.wait_known(client, "b3")
        ledgers: dict[int, bytes] = {}
        for _ in range(3):
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
            await asyncio.gather(*map(writer.add, PAYLOADS))
            await writer.close()
            ledgers[writer.ledger_id] = read_key(writer.metadata.password)
        await cluster.stop_bookie("b3")
        pristine = tmp_path / "pristine"
        shutil.copytree(settings.data_directory, pristine)
        files = sorted(each for each in pristine.rglob("*") if each.is_file() and _counts(each))
        for number in range(FLIPS):
            shutil.rmtree(settings.data_directory)
            shutil.copytree(pristine, settings.data_directory)
            source = files[number % len(files)]
            path = settings.data_directory / source.relative_to(pristine)
            at, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
            data = bytearray(path.read_bytes())
            data[at] ^= 1 << bit
            path.write_bytes(data)
            try:
                await cluster.start_bookie("b3", settings)
            except BookieServiceError:
                refused += 1
                continue
            await cluster.wait_known(client, "b3")
            for ledger_id, key in ledgers.items():
                for entry_id, payload in enumerate(PAYLOADS):
                    frame = await ask(
                        client.channels,
                        "b3",
                        Op.READ,
                        encode_read_body(last_entry_id=entry_id, bytes_max=1, master_key=key),
                        ledger_id=ledger_id,
                        entry_id=entry_id,
                    )
                    where = f"{path} byte {at} bit {bit}: ledger {ledger_id} entry {entry_id}"
                    if frame.status == Status.OK:
                        (packet,) = decode_block(frame.body[8:]).packets()
                        assert packet.endswith(payload), where
                    else:
                        assert frame.status == Status.IO_ERROR, (where, Status(frame.status))
                        errors += 1
            await cluster.stop_bookie("b3")
    assert refused + errors > 0, "some flips hit what matters"


def _counts(path: Path) -> bool:
    """Files that hold something; RocksDB's own log for people is none of them."""
    return path.stat().st_size > 0 and not path.name.startswith("LOG")
