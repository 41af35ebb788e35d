"""A `magnetar standalone` process that is fuzzed: its caches are small, so that what it keeps for
good stands out, and it is looked at after each round: whether it lives, what its log says, how much
memory it has.
"""

from pathlib import Path
from types import TracebackType

from tests.fuzz.findings import Findings
from tests.standalone import EXCEPTION_MARKS, Standalone

_EXCERPT_CHARACTERS = 2_500
_READY_TIMEOUT_S = 600.0
"""Long campaigns run beside other work."""
_SETTINGS = """
[broker]
tail_cache_bytes_max = 2_000_000
inactive_topic_check_interval_s = 3600
force_delete_namespace = true
force_delete_tenant = true

[bookie]
write_cache_bytes_max = 8_000_000
read_cache_bytes_max = 2_000_000
index_cache_bytes_max = 2_000_000
write_cache_full_wait_ms_max = 60_000

[metadata]
operation_timeout_s = 300.0

[ledger]
request_timeout_s = 120.0
"""
"""A server that other work keeps from the processor for seconds is no finding."""


class FuzzedServer:
    """A context manager: the server ends with it."""

    def __init__(self, directory: Path, findings: Findings) -> None:
        settings = directory / "magnetar.toml"
        settings.write_text(_SETTINGS)
        self._standalone = Standalone(directory / "data", arguments=["--config", str(settings)])
        self._findings = findings
        self._read_characters = 0

    def __enter__(self) -> "FuzzedServer":
        self._standalone.start(_READY_TIMEOUT_S)
        self._findings.memory.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self.is_alive:
            status = self._standalone.process.terminate(_READY_TIMEOUT_S)
            if status != 0:
                self._findings.add(f"the server ended with status {status}")
        self._standalone.__exit__(kind, error, traceback)
        self._look_at_log("at the end")

    @property
    def port(self) -> int:
        return self._standalone.port

    @property
    def http_port(self) -> int:
        return self._standalone.http_port

    @property
    def is_alive(self) -> bool:
        return self._standalone.process.returncode is None

    def look(self, where: str) -> None:
        """After a round of cases: `where` says which."""
        self._look_at_log(where)
        if not self.is_alive:
            self._findings.add(f"{where}: the server ended")
            return
        self._findings.see_memory(self._standalone.process.resident_bytes(), where)

    def _look_at_log(self, where: str) -> None:
        text = self._standalone.log_text()
        new, self._read_characters = text[self._read_characters :], len(text)
        found = [at for at in map(new.find, EXCEPTION_MARKS) if at >= 0]
        if found:
            at = max(0, min(found) - _EXCERPT_CHARACTERS // 5)
            self._findings.add(f"{where}: the log holds {new[at : at + _EXCERPT_CHARACTERS]}")
