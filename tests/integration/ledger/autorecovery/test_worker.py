"""Lost bookies, and ledgers that are whole again without anybody's help."""

from pathlib import Path

from tests.integration.ledger.autorecovery.healing import healing_of

PAYLOADS = [b"entry %d" % number for number in range(40)]


async def test_the_ledgers_of_a_lost_bookie_are_whole_again(tmp_path: Path) -> None:
    async with healing_of(4, tmp_path) as healing:
        ledgers = [(await healing.write(PAYLOADS)).ledger_id for _ in range(5)]
        await healing.lose("b1")
        await healing.report_lost("b1", *ledgers)
        async with healing.worker() as worker:
            await healing.until_no_items()
            for ledger_id in ledgers:
                metadata = await healing.check_whole(ledger_id, PAYLOADS)
                assert all("b1" not in fragment.bookies for fragment in metadata.ensembles)
            assert worker.metrics.items_finished == len(ledgers)
            assert worker.metrics.items_deferred == 0
