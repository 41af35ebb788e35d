"""Plan of kills and pauses, and of restarts. Drawn from a seed, carried out in time."""

import heapq
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.chaos.journals import REFUSED
from tests.chaos.recover import ORPHANS
from tests.chaos.troupe import BookieRole, ClientRole, Condition, Role, Troupe

BOOKIES_AWAY_MAX = 2
"""Mostly: with 5 bookies and ensembles of 3 work goes on. A storm takes all of them at once."""
_STORM_SHARE = 0.02
_FILL_SHARE = 0.5
"""Of the strikes at a bookie that has small disks."""
_RESTART_S = 0.5
_FINALE_TIMEOUT_S = 60.0


class ProcessEndedError(Exception):
    """A process ended that nobody had killed."""


@dataclass(frozen=True, slots=True)
class Toll:
    """What was done to the processes."""

    kills: int
    pauses: int
    takeovers: int
    fills: int
    """Disks that were filled, the finale not counted."""
    refused_starts: int
    """Starts that ended, with a word, for want of room."""


class Nemesis:
    """Strikes `strikes` times, at most a second apart, then lets everybody come back."""

    def __init__(self, troupe: Troupe, directory: Path, source: random.Random) -> None:
        self._troupe = troupe
        self._random = source
        self._orphans = directory / ORPHANS
        self._returns: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._kills = self._pauses = self._takeovers = self._fills = self._refused_starts = 0

    def strike(self, strikes: int) -> Toll:
        """Raises ProcessEndedError: a process could not stand what was not meant to end it."""
        while self._done < strikes:
            self._pass_time(self._random.uniform(0.05, 0.8))
            if self._random.random() < _STORM_SHARE:
                for bookie in self._troupe.bookies:
                    self._strike(bookie)
            else:
                self._strike_one()
            if self._done % 20 == 0:
                sys.stderr.write(f"{self._done} of {strikes} strikes\n")
        while self._returns or not all(bookie.has_served for bookie in self._troupe.bookies):
            self._pass_time(0.1)
        return Toll(self._kills, self._pauses, self._takeovers, self._fills, self._refused_starts)

    def end_in_want_of_room(self) -> list[str]:
        """Fill disks once more with nobody else struck: refused, and taken again when there is
        room. Returns what was not so."""
        problems: list[str] = []
        for journal, (bookie, loner) in enumerate(
            zip(self._troupe.bookies[:2], self._troupe.loners[:2], strict=True)
        ):
            which = f"{'journal' if journal else 'ledgers'} of {bookie.name}"
            refusals = loner.count(REFUSED)

            def is_refused() -> bool:
                # A bookie gives room back: journal files that a checkpoint made superfluous.
                bookie.fill(journal=bool(journal))  # noqa: B023
                return loner.count(REFUSED) > refusals  # noqa: B023

            if not self._wait_for(is_refused):
                problems.append(f"the disk of the {which} was full, and no add was refused")
            bookie.make_room()
        for bookie, loner in zip(self._troupe.bookies, self._troupe.loners, strict=True):
            before = loner.acknowledged_bytes
            if not self._wait_for(lambda: loner.acknowledged_bytes > before):  # noqa: B023
                problems.append(f"{bookie.name} has room and takes no adds")
        return problems

    @property
    def _done(self) -> int:
        return self._kills + self._pauses + self._fills

    def _wait_for(self, is_so: Callable[[], bool]) -> bool:
        until_s = time.monotonic() + _FINALE_TIMEOUT_S
        while not is_so():
            if time.monotonic() > until_s:
                return False
            self._pass_time(0.1)
        return True

    def _strike_one(self) -> None:
        troupe = self._troupe
        kind = self._random.choices(
            (troupe.bookies, troupe.writers, troupe.recoverers, troupe.readers), (60, 30, 6, 4)
        )[0]
        role = self._random.choice([*kind])
        if isinstance(role, BookieRole):
            away = [
                each
                for each in troupe.bookies
                if each.condition is not Condition.RUNNING or each.is_full
            ]
            # One that is full may be killed besides, and has to start on its full disk.
            if len(away) >= BOOKIES_AWAY_MAX and role not in away:
                return
        self._strike(role)

    def _strike(self, role: Role) -> None:
        is_kill = self._random.random() < 0.6
        away_s = self._random.choice((self._random.uniform(0.05, 0.5), self._random.uniform(1, 4)))
        takes_over = self._random.random() < 0.7
        if isinstance(role, BookieRole) and role.disks is not None:
            is_fill, journal = self._random.random() < _FILL_SHARE, self._random.random() < 0.4
            if is_fill:
                if not role.is_full:
                    self._fills += 1
                    role.fill(journal=journal)
                    self._come_back(away_s, role.make_room)
                return
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
                if isinstance(role, BookieRole) and role.may_end:
                    self._refused_starts += 1
                    role.condition = Condition.DEAD
                    self._come_back(_RESTART_S, role.start)
                    continue
                raise ProcessEndedError(
                    f"{role.name} ended by itself with status {role.exit_status}; its log ends\n"
                    + role.log_path.read_text()[-3000:]
                )
