"""Disk usage of bookies, over HTTP. Not in Pulsar's interface.

The broker asks each registered bookie, over the connections that it uses for entries. A bookie
answers from memory, without reading its disks. All answers together have a time limit; a bookie
that has not answered by then is shown with the reason. Answers are cached for `KEPT_S`, however
many consoles ask.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from pydantic import BaseModel

from magnetar.ledger.bookie_facts import BookieFacts, DirectoryFacts
from magnetar.ledger.errors import BookieProtocolError, BookieUnavailableError
from magnetar.ledger.ports import Clock
from magnetar.ledger.registration import BookieInfo

ANSWER_S_MAX: Final = 3.0
"""Seconds that all bookies together may take. The console waits for five seconds at most."""
KEPT_S: Final = 2.0
"""Lifetime of a cached answer, in seconds."""
ASKED_AT_ONCE: Final = 16

AskFacts = Callable[[str], Awaitable[BookieFacts]]


class BookieDisksView(BaseModel):
    """A bookie's report on its disks; not a shape of Pulsar's."""

    id: str
    version: str = ""
    writable: bool | None = None
    """Whether the bookie accepts writes; None if it has not answered."""
    read_only_reasons: tuple[str, ...] = ()
    directories: tuple[DirectoryFacts, ...] = ()
    """Directories of the bookie. Empty for a bookie of an older release, which does not report
    them."""
    problem: str = ""
    """Why the bookie has not answered; empty if it has."""


class BookieDisks:
    """Asks the registered bookies, one pass at a time."""

    def __init__(
        self,
        registered: Callable[[], Mapping[str, BookieInfo]],
        ask: AskFacts,
        *,
        clock: Clock,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        self._registered = registered
        self._ask = ask
        self._clock = clock
        self._answer_s_max = answer_s_max
        self._looking = asyncio.Lock()
        self._kept: tuple[float, list[BookieDisksView]] | None = None
        """Time until which an answer is valid, by the monotonic clock; and the answer."""

    async def shown(self) -> list[BookieDisksView]:
        """Return the directories of each registered bookie, with free and used space. Bookies that
        do not answer within three seconds are shown with the reason."""
        async with self._looking:
            if self._kept is None or self._clock.monotonic_s() >= self._kept[0]:
                found = await self._look()
                self._kept = (self._clock.monotonic_s() + KEPT_S, found)
            return self._kept[1]

    async def _look(self) -> list[BookieDisksView]:
        at_once = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(name: str) -> BookieDisksView:
            async with at_once:
                try:
                    facts = await self._ask(name)
                except (BookieUnavailableError, BookieProtocolError) as error:
                    return BookieDisksView(id=name, problem=str(error))
            return BookieDisksView(
                id=name,
                version=facts.version,
                writable=facts.writable,
                read_only_reasons=facts.read_only_reasons,
                directories=facts.directories,
            )

        names = sorted(self._registered())
        if not names:
            return []
        asking = [asyncio.create_task(one(name), name=f"disks-of-{name}") for name in names]
        try:
            await asyncio.wait(asking, timeout=self._answer_s_max)
        finally:
            for task in asking:
                task.cancel()
        late = f"no answer within {self._answer_s_max:g} s"
        return [
            task.result() if task.done() else BookieDisksView(id=name, problem=late)
            for name, task in zip(names, asking, strict=True)
        ]
