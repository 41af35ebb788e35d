"""All servers of the benchmark share one disk. When it stands still for some seconds, a measurement
is slow; it is no failure of a bookie, unless that is what is measured (gaps_bench.py).
"""

import os

_ENVIRONMENT = {
    "MAGNETAR_LEDGER_REQUEST_TIMEOUT_S": "60",
    "MAGNETAR_BOOKIE_WRITE_CACHE_FULL_WAIT_MS_MAX": "60000",
}


def wait_for_the_disk() -> None:
    """Let servers and loads that are started from now on take stalls for what they are; what the
    environment says about that counts."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
