"""What this process has used of its machine: for the load report of a broker."""

import os
import resource

from magnetar.broker.cluster.balance.sampler import ProcessUsage

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_usage() -> ProcessUsage:
    """Processor time of all threads since the start, and resident memory."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessUsage(cpu_s=used.ru_utime + used.ru_stime, memory_bytes=_resident_bytes())


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0  # Not Linux: it is not told.
