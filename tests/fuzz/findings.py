"""What a fuzzer found: broken promises, and errors that nobody caught."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

FINDINGS_MAX = 20


class Findings:
    """Collected over all cases; empty when all is well."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        if len(self.texts) < FINDINGS_MAX:
            self.texts.append(text)

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
