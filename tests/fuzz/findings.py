"""What a fuzzer found: broken promises, errors that nobody caught, memory that grows."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FINDINGS_MAX = 20
WARM_UP_ROUNDS = 5
"""Rounds of cases in which a process fills its caches, pools and tables."""
WARM_UP_GROWTH_MAX = 0.15
"""How much more memory a process may ever have than after its first round."""
GROWTH_MAX = 0.10
"""How much more it may have, once it is warm, than it had at most until then: it is flat."""


class Memory:
    """What processes had in memory after each round of cases, one process after the other."""

    def __init__(self) -> None:
        self.first_bytes = 0
        """After the first round of the first process."""
        self.max_bytes = 0
        self.end_bytes = 0
        self._rounds = 0
        self._cold_bytes = 0
        self._warm_bytes = 0

    def begin(self) -> None:
        """Another process: it is compared with itself, cold and warm."""
        self._rounds = self._cold_bytes = self._warm_bytes = 0

    def see(self, resident_bytes: int) -> str | None:
        """After a round. Returns what is wrong with it."""
        self.first_bytes = self.first_bytes or resident_bytes
        self.max_bytes = max(self.max_bytes, resident_bytes)
        self.end_bytes = resident_bytes
        self._rounds += 1
        if self._rounds == 1:
            self._cold_bytes = resident_bytes
        if self._rounds <= WARM_UP_ROUNDS:
            self._warm_bytes = max(self._warm_bytes, resident_bytes)
        for since, before_bytes, growth_max in (
            ("the first round", self._cold_bytes, WARM_UP_GROWTH_MAX),
            (f"{WARM_UP_ROUNDS} rounds", self._warm_bytes, GROWTH_MAX),
        ):
            if resident_bytes > before_bytes * (1 + growth_max):
                return (
                    f"memory grew from {_mb(before_bytes)} MB after {since} "
                    f"to {_mb(resident_bytes)} MB after {self._rounds}"
                )
        return None

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
