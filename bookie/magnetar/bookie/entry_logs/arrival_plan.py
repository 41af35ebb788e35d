"""The runs of an entry log in the order in which the blocks arrived, one run per block. Pure.

For the `interleaved` engine: what arrived together lies together, whatever ledger it is of, and
nothing is merged. Entries that were added twice are written twice; the later run counts.
"""

from collections.abc import Iterator, Mapping

from magnetar.bookie.engine.write_cache import LedgerRuns
from magnetar.bookie.entry_logs.run_plan import Piece, PlannedRun, bounded


def plan_in_order(
    ledgers: Mapping[int, LedgerRuns], *, entries_max: int, bytes_max: int
) -> Iterator[tuple[int, PlannedRun]]:
    """Ledger and run, for all blocks of all ledgers; blocks that are too large are cut.

    A run has at most `entries_max` entries, and at most `bytes_max` bytes of packets unless it is a
    single packet.
    """
    arrived = sorted(
        (arrival, ledger_id, at)
        for ledger_id, runs in ledgers.items()
        for at, arrival in enumerate(runs.arrivals)
    )
    for _, ledger_id, at in arrived:
        run = ledgers[ledger_id].runs[at]
        whole = Piece(run, 0, run.count)
        for piece in bounded([whole], entries_max=entries_max, bytes_max=bytes_max):
            yield ledger_id, PlannedRun([piece], piece.entries, piece.packets_bytes)
