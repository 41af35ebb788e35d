"""When a log's current ledger is full: by entries, by bytes, or by age. No I/O.

A ledger that is large is full once it has the minimum age, so that a burst does not make many
ledgers; one that is old is full however small it is. The maximum age is spread by up to 5 %, so
that logs that were opened together do not rotate together.

Source: managed ledger, section 3.
"""

import random
from typing import Protocol

from magnetar.ledger.ports import Clock
from magnetar.ledger.settings import LogConfig

_SPREAD = 0.05


class Growing(Protocol):
    """What is asked of a ledger; `LedgerWriter` is one."""

    @property
    def entries_added(self) -> int: ...

    @property
    def bytes_added(self) -> int: ...


class LedgerFullness:
    """Judges one ledger after the other, and says of each once that it is full."""

    def __init__(self, config: LogConfig, *, clock: Clock, random: random.Random) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self.begin()

    def begin(self) -> None:
        """A new ledger is written from now on."""
        self._since_s = self._clock.monotonic_s()
        self._age_max_s = self._config.ledger_age_max_s * (1 + _SPREAD * self._random.random())
        self._was_reported = False

    def is_newly_full(self, ledger: Growing) -> bool:
        """Whether the ledger has become full since this was asked last."""
        if self._was_reported:
            return False
        config = self._config
        age_s = self._clock.monotonic_s() - self._since_s
        is_full = age_s >= self._age_max_s or (
            age_s >= config.ledger_age_min_s
            and (
                ledger.entries_added >= config.ledger_entries_max
                or ledger.bytes_added >= config.ledger_bytes_max
            )
        )
        self._was_reported = is_full
        return is_full
