"""kill -9 in the middle of acknowledging: what was saved is there, nothing else is passed over."""

import random
import re
from pathlib import Path

import pytest

from tests.integration.cursors.acknowledging import ack_order, open_cursor, open_log, positions_of
from tests.integration.ledger.cluster import cluster_of
from tests.processes import python_command, start


def acknowledge_until_killed(directory: Path, name: str, seed: int) -> int:
    """Run the process and kill it at a random moment; returns the last count that it printed."""
    module = "tests.integration.cursors.acknowledging"
    process, output = start(python_command(module, str(directory), name, str(seed)))
    saves_wanted = random.Random(seed).randint(1, 120)
    saved: list[int] = []
    with output:
        try:
            while len(saved) < saves_wanted:
                line = output.readline()
                assert line, "the process ended by itself"
                saved += saves_in(line)
        finally:
            process.kill()
            process.wait()
        saved += saves_in(output.read())
    return saved[-1]


def saves_in(output: str) -> list[int]:
    """Counts of acknowledgements; the log lines of the bookie are between them."""
    return [int(count) for count in re.findall(r"^saved (\d+)\n", output, re.MULTILINE)]


@pytest.mark.parametrize("seed", range(5))
async def test_saved_acks_survive_kill_9_and_the_state_is_that_of_one_moment(
    tmp_path: Path, seed: int
) -> None:
    saved = acknowledge_until_killed(tmp_path, "subscription", seed)
    async with cluster_of(1, tmp_path) as cluster, cluster.client() as client:
        log = await open_log(client, cluster.store)
        cursor = await open_cursor(log, client, cluster.store)
        positions = positions_of(log)
        found = {position for position in positions if cursor.is_acked(position)}
        assert len(found) >= saved
        assert found == set(ack_order(positions, seed)[: len(found)])
        assert cursor.backlog_entries == len(positions) - len(found)
        assert cursor.persisted_mark_delete == cursor.mark_delete
        await cursor.close()
        await log.close()
