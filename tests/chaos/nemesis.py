"""Who is killed or paused, when, and when it comes back. Drawn from a seed, carried out in time."""

import heapq
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.chaos.recover import ORPHANS
from tests.chaos.troupe import ClientRole, Condition, Role, Troupe

BOOKIES_AWAY_MAX = 2
"""Mostly: with 5 bookies and ensembles of 3 work goes on. A storm takes all of them at once."""
_STORM_SHARE = 0.02


class ProcessEndedError(Exception):
    """A process ended that nobody had killed."""


@dataclass(frozen=True, slots=True)
class Toll:
    """What was done to the processes."""

    kills: int
    pauses: int
    takeovers: int


class Nemesis:
    """Strikes `strikes` times, at most a second apart, then lets everybody come back."""

    def __init__(self, troupe: Troupe, directory: Path, source: random.Random) -> None:
        self._troupe = troupe
        self._random = source
        self._orphans = directory / ORPHANS
        self._returns: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._kills = self._pauses = self._takeovers = 0

    def strike(self, strikes: int) -> Toll:
        """Raises ProcessEndedError: a process could not stand what was not meant to end it."""
        while self._kills + self._pauses < strikes:
            self._pass_time(self._random.uniform(0.05, 0.8))
            if self._random.random() < _STORM_SHARE:
                for bookie in self._troupe.bookies:
                    self._strike(bookie)
            else:
                self._strike_one()
            done = self._kills + self._pauses
            if done % 20 == 0:
                sys.stderr.write(f"{done} of {strikes} kills and pauses\n")
        while self._returns:
            self._pass_time(0.1)
        return Toll(self._kills, self._pauses, self._takeovers)

    def _strike_one(self) -> None:
        troupe = self._troupe
        kind = self._random.choices(
            (troupe.bookies, troupe.writers, troupe.recoverers, troupe.readers), (60, 30, 6, 4)
        )[0]
        role = self._random.choice([*kind])
        if role in troupe.bookies:
            away = sum(each.condition is not Condition.RUNNING for each in troupe.bookies)
            if away >= BOOKIES_AWAY_MAX:
                return
        self._strike(role)

    def _strike(self, role: Role) -> None:
        is_kill = self._random.random() < 0.6
        away_s = self._random.choice((self._random.uniform(0.05, 0.5), self._random.uniform(1, 4)))
        takes_over = self._random.random() < 0.7
        if role.condition is not Condition.RUNNING:
            return  # it is away already
        if is_kill:
            self._kills += 1
            role.kill()
            self._come_back(away_s, role.start)
        else:
            self._pauses += 1
            role.pause()
            self._come_back(away_s, role.resume)
        if isinstance(role, ClientRole) and role in self._troupe.writers and takes_over:
            # A paused writer wakes up to find its ledgers closed. One that is only slow, too.
            self._take_over(role)

    def _take_over(self, writer: ClientRole) -> None:
        for ledger_id in writer.open_ledgers:
            self._takeovers += 1
            (self._orphans / str(ledger_id)).touch()

    def _come_back(self, after_s: float, how: Callable[[], None]) -> None:
        heapq.heappush(self._returns, (time.monotonic() + after_s, next(self._number), how))

    def _pass_time(self, seconds: float) -> None:
        """The drill takes place in real time; those whose time has come return meanwhile."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            while self._returns and self._returns[0][0] <= now:
                heapq.heappop(self._returns)[2]()
            self._check_nobody_ended()
            if now >= until:
                return
            next_s = self._returns[0][0] if self._returns else until
            threading.Event().wait(max(0.0, min(next_s, until) - now))

    def _check_nobody_ended(self) -> None:
        for role in self._troupe.roles:
            if role.condition is not Condition.DEAD and role.exit_status is not None:
                raise ProcessEndedError(
                    f"{role.name} ended by itself with status {role.exit_status}; its log ends\n"
                    + role.log_path.read_text()[-3000:]
                )
