"""Patience for the one disk that all servers of the benchmark share.

When the disk stalls for some seconds, a measurement is slow. That is no failure of a bookie, unless
failures are measured (gaps_bench.py).
"""

import os

_ENVIRONMENT = {
    "MAGNETAR_LEDGER_REQUEST_TIMEOUT_S": "60",
    "MAGNETAR_BOOKIE_WRITE_CACHE_FULL_WAIT_MS_MAX": "60000",
}


def wait_for_the_disk() -> None:
    """Raise the timeouts of servers and loads that are started from now on, so that stalls are no
    failures. Variables already in the environment stay."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
