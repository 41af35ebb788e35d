"""What a fuzzer found: broken promises, errors that nobody caught, memory that grows."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FINDINGS_MAX = 20
GROWTH_MAX = 0.15
"""How much more memory a process may have than after its first round of cases."""


class Memory:
    """What processes had in memory after each round of cases, one process after the other."""

    def __init__(self) -> None:
        self.first_bytes = 0
        """After the first round of the first process."""
        self.max_bytes = 0
        self.end_bytes = 0
        self._reference_bytes = 0

    def begin(self) -> None:
        """Another process: its first round is what the others are compared with."""
        self._reference_bytes = 0

    def see(self, resident_bytes: int) -> str | None:
        """After a round. Returns what is wrong with it."""
        self.first_bytes = self.first_bytes or resident_bytes
        self._reference_bytes = self._reference_bytes or resident_bytes
        self.max_bytes = max(self.max_bytes, resident_bytes)
        self.end_bytes = resident_bytes
        if resident_bytes <= self._reference_bytes * (1 + GROWTH_MAX):
            return None
        return (
            f"memory grew from {_mb(self._reference_bytes)} MB after the first round "
            f"to {_mb(resident_bytes)} MB"
        )

    def __str__(self) -> str:
        figures = (self.first_bytes, self.max_bytes, self.end_bytes)
        return "memory first/max/end {}/{}/{} MB".format(*map(_mb, figures))


class Findings:
    """Collected over all cases; empty when all is well."""

    def __init__(self, on_round: Callable[["Findings"], None] = lambda _: None) -> None:
        """`on_round` is called after each round of cases."""
        self.texts: list[str] = []
        self.inputs = 0
        """How many frames, requests or definitions were tried."""
        self.memory = Memory()
        self._on_round = on_round

    def add(self, text: str) -> None:
        if len(self.texts) < FINDINGS_MAX:
            self.texts.append(text)

    @property
    def is_full(self) -> bool:
        """Enough is known."""
        return len(self.texts) >= FINDINGS_MAX

    def see_memory(self, resident_bytes: int, where: str) -> None:
        """After a round of cases; growth is a finding."""
        wrong = self.memory.see(resident_bytes)
        if wrong is not None:
            self.add(f"{where}: {wrong}")
        self._on_round(self)

    def save(self, path: Path, side: str) -> None:
        """Append them to a file that a later run does not overwrite."""
        with path.open("a") as file:
            file.writelines(f"{side}: {text}\n" for text in self.texts)

    @contextmanager
    def of_loop(self) -> Iterator[None]:
        """Whatever reaches the event loop's handler is a finding: a callback or a task broke."""
        loop = asyncio.get_running_loop()

        def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            self.add(f"{context.get('message')}: {context.get('exception')!r}")

        loop.set_exception_handler(on_exception)
        try:
            yield
        finally:
            loop.set_exception_handler(None)


def _mb(size_bytes: int) -> int:
    return round(size_bytes / 1e6)
