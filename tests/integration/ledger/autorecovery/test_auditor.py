"""The auditor over real bookies; what it takes for lost is told by the simulated cluster."""

from pathlib import Path

from tests.integration.ledger.autorecovery.auditing import auditor_of
from tests.integration.ledger.autorecovery.healing import healing_of

PAYLOADS = [b"entry %d" % number for number in range(20)]


async def test_with_a_worker_the_ledgers_are_whole_without_anybodys_help(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(5)]
        async with auditor_of(healing) as auditor, healing.worker():
            await healing.until(lambda: auditor.metrics.bookies_registered == 4)
            await healing.lose("b1")
            await healing.until(lambda: auditor.metrics.audits.get("lost", 0) == 1)
            await healing.until_no_items()
            for ledger_id in ledgers:
                metadata = await healing.check_whole(ledger_id, PAYLOADS)
                assert "b1" not in metadata.ensembles[0].bookies
