"""Settings of the drill's bookies. They differ, so that each drill tries more than one kind.

Sizes are small, so that flushes, checkpoints, new journal files and new entry logs happen all the
time; garbage collection and scrubbing go round while they do.
"""

from pathlib import Path

from tests.chaos.disks import BookieDisks

_SETTINGS = """\
[bookie]
flush_interval_s = 1.0
write_cache_bytes_max = 8_388_608
journal_file_bytes_max = 2_097_152
entry_log_bytes_max = 16_777_216
read_cache_bytes_max = 4_194_304
disk_check_interval_s = 0.5
flush_retry_s = 0.5
write_cache_full_wait_ms_max = 1_000
gc_interval_s = 3.0
gc_major_interval_s = 5.0
scrub_period_days = 0.001
storage_engine = "{engine}"
journal_directories = [{journals}]
ledger_directories = [{ledgers}]
journal_spares = {journal_spares}

# Shorter than the longest pauses: a bookie may wake up to find that its registration is gone.
[metadata]
session_timeout_ms = 2_000
"""


def settings_of(number: int, data: Path, disks: BookieDisks | None) -> str:
    """Of the bookie with this number, the first being 1: a TOML file.

    The second, fourth, ... have two journals and two ledger directories, and keep no old journal
    files: their journals ask for room again and again. Every third one keeps page files.
    """
    parts = ("a", "b") if number % 2 == 0 else ("a",)
    journal, ledgers = (data, data) if disks is None else (disks.journal.path, disks.ledgers.path)
    return _SETTINGS.format(
        engine="interleaved" if number % 3 == 0 else "db",
        journals=", ".join(f'"{journal}/journal-{part}"' for part in parts),
        ledgers=", ".join(f'"{ledgers}/ledgers-{part}"' for part in parts),
        journal_spares=number % 2,
    )
