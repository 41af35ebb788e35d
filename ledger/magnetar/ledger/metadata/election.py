"""Election: one of several candidates leads, and all know which.

Each candidate casts a vote, an ephemeral sequential node `{path}/V_<ten digits>`; the lowest vote
leads. The vote's value is JSON, `{"format": 1, "candidate": id, "token": 16 hex digits}`. The token
identifies a vote whose creation had an unknown outcome. It tells that vote from those of all
others, and from one of an earlier run of the same candidate, which remains until that session ends.
A candidate watches the vote ahead of its own, the lowest, and its own.

Other nodes at this path are left alone, logged once, and delay nobody. A vote ends with its
session, so a persistent node is no vote, whatever its name and value: nothing would ever remove it.
A vote that this release does not understand, such as that of a newer release, has a live session,
so it counts.

**Being the leader is advice.** Losing contact with the store ends it at once, but a process that
was paused learns that only when it resumes, and by then another one may lead. What two leaders must
never both do needs a compare-and-set, or a guard by the holder's own clock.

Source: auto-recovery, section 1.
"""

import asyncio
import random
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.ledger.errors import MetadataError, NoNodeError, UnknownOutcomeError
from magnetar.ledger.metadata.store import (
    SEQUENCE_DIGITS,
    MetadataStore,
    SessionState,
    Versioned,
    Watch,
    WatchEvent,
)
from magnetar.ledger.validation import first_problem

_log = structlog.get_logger(__name__)

_VOTE = "V_"
_VOTE_NAME = re.compile(rf"{_VOTE}(?P<number>\d{{{SEQUENCE_DIGITS}}})")
_TOKEN_BITS = 64
_VALUE_BYTES_SHOWN = 80
"""Bytes of a value that is not understood which the log shows."""
_RETRY_DELAY_S = 0.5
"""Delay, in seconds, after a failed look at the votes."""
_WITHDRAWALS_MAX = 5
"""Most tries of `close` to take the vote back; otherwise the end of the session removes it."""


class _VoteRecord(BaseModel):
    """The value of a vote's node."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: Literal[1] = 1
    candidate: str = Field(min_length=1)
    token: str


class _Vote(NamedTuple):
    name: str
    candidate: str | None
    """None if the value is not understood. The vote counts all the same."""
    token: str | None


async def read_leader(store: MetadataStore, path: str) -> str | None:
    """Return the current leader without standing for election; None if there is no vote, or the
    lowest vote is not understood.

    Raises:
        MetadataUnavailableError
    """
    await store.catch_up()
    votes = await _read_votes(store, path, {})
    return votes[0].candidate if votes else None


class Election:
    """One candidate's part in an election. Belongs to one event loop."""

    def __init__(
        self, store: MetadataStore, path: str, candidate: str, *, random: random.Random
    ) -> None:
        """Make a candidate that does not stand yet. Others see `candidate` as the leader's id; the
        same id may stand again after a crash."""
        self._store = store
        self._path = path
        self._candidate = candidate
        self._token = f"{random.getrandbits(_TOKEN_BITS):0{_TOKEN_BITS // 4}x}"
        self._known: dict[str, _Vote | None] = {}
        self._watches: dict[str, Watch] = {}
        self._session_watch: Watch | None = None
        self._session = 0
        """Number of session state changes so far: a look that began before a change proves
        nothing."""
        self._is_first = False
        self._leader: str | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._must_look = asyncio.Event()
        self._has_looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, as far as it knows; False without contact to the store."""
        return self._is_first and self._has_contact

    def leader(self) -> str | None:
        """Return the id of the leading candidate; None if there is none, or it is unknown at
        present."""
        return self._leader if self._has_contact else None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop after each change of `is_leader` or `leader()`, until `close`."""
        self._callbacks.append(callback)

    async def start(self) -> None:
        """Stand for election. Returns after the first look at the votes, even a failed one; a
        failed look is repeated without limit.
        """
        assert self._task is None, "started twice"
        self._session_watch = self._store.on_session_change(self._on_session_change)
        self._must_look.set()
        self._task = asyncio.create_task(self._run(), name=f"election {self._path}")
        await self._has_looked.wait()

    async def close(self) -> None:
        """Stop standing, and take the vote back, so that the next candidate leads at once. Closing
        twice, or without a start, is fine.
        """
        task, self._task = self._task, None
        if task is None:
            return
        self._callbacks.clear()
        if self._session_watch is not None:
            self._session_watch.close()
        self._step_down()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._watch_only([])
        await self._withdraw()

    @property
    def _has_contact(self) -> bool:
        return self._store.session_state is SessionState.CONNECTED

    async def _run(self) -> None:
        while True:
            await self._must_look.wait()
            self._must_look.clear()
            try:
                if self._has_contact:  # else the next session state wakes this loop
                    await self._look()
            except MetadataError as error:
                _log.warning("election_look_failed", path=self._path, error=str(error))
                self._must_look.set()
                self._has_looked.set()
                await asyncio.sleep(_RETRY_DELAY_S)
            except Exception:  # noqa: BLE001 - a defect must not end the candidacy
                _log.exception("election_look_failed", path=self._path)
                self._must_look.set()
                self._has_looked.set()
                await asyncio.sleep(_RETRY_DELAY_S)
            self._has_looked.set()

    async def _look(self) -> None:
        """Make sure that there is one own vote, watch those that matter, and update the result.

        Raises:
            MetadataError
        """
        session = self._session
        # A server that is behind could show a vote of a session that is over.
        await self._store.catch_up()
        while session == self._session:
            votes = await _read_votes(self._store, self._path, self._known)
            ours = [place for place, vote in enumerate(votes) if vote.token == self._token]
            if not ours:
                await self._vote()
                continue
            for place in ours[1:]:
                await self._delete(votes[place].name)
            own = ours[0]
            matter = [votes[0].name, votes[own].name, votes[max(own - 1, 0)].name]
            if self._watch_only(matter):
                continue  # First watch, then read: a change in between would be missed.
            if session == self._session:
                self._conclude(is_first=own == 0, leader=votes[0].candidate)
            return

    async def _vote(self) -> None:
        record = _VoteRecord(candidate=self._candidate, token=self._token).model_dump_json()
        try:
            await self._store.create(
                f"{self._path}/{_VOTE}", record.encode(), ephemeral=True, sequential=True
            )
        except UnknownOutcomeError as error:
            # The next look finds the vote by its token, or finds that it does not exist.
            _log.info("election_vote_unknown", path=self._path, error=str(error))

    async def _withdraw(self) -> None:
        """Delete every own vote; a create that was cut off may have left a second one."""
        for attempt in range(_WITHDRAWALS_MAX):
            try:
                for vote in await _read_votes(self._store, self._path, self._known):
                    if vote.token == self._token:
                        await self._delete(vote.name)
                return
            except MetadataError as error:
                _log.warning("election_withdrawal_failed", path=self._path, error=str(error))
                if not self._has_contact:
                    return
                if attempt + 1 < _WITHDRAWALS_MAX:
                    await asyncio.sleep(_RETRY_DELAY_S)

    async def _delete(self, name: str) -> None:
        try:
            await self._store.delete(f"{self._path}/{name}")
        except NoNodeError:
            pass  # the session has ended, or an operator was faster

    def _watch_only(self, names: list[str]) -> bool:
        """Watch exactly these votes; return True if one was not watched before."""
        for name in self._watches.keys() - set(names):
            self._watches.pop(name).close()
        added = [name for name in dict.fromkeys(names) if name not in self._watches]
        for name in added:
            self._watches[name] = self._store.watch(f"{self._path}/{name}", self._on_event)
        return bool(added)

    def _on_event(self, event: WatchEvent) -> None:
        self._must_look.set()

    def _on_session_change(self, state: SessionState) -> None:
        self._session += 1
        if state is SessionState.CONNECTED:
            self._must_look.set()
        else:
            # Expired, or perhaps expired: only a look over a new connection can tell.
            self._step_down()

    def _step_down(self) -> None:
        self._conclude(is_first=False, leader=None)

    def _conclude(self, *, is_first: bool, leader: str | None) -> None:
        if (is_first, leader) == (self._is_first, self._leader):
            return
        self._is_first, self._leader = is_first, leader
        _log.info("election", path=self._path, leader=leader, is_leader=is_first)
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception:  # noqa: BLE001 - the other callbacks must learn of it too
                _log.exception("election_callback_failed", path=self._path)


async def _read_votes(
    store: MetadataStore, path: str, known: dict[str, _Vote | None]
) -> list[_Vote]:
    """Return all votes, the lowest first. `known` caches nodes by name: a vote's value never
    changes, and its name is never used twice. A node that is no vote is cached as None.
    """
    try:
        names = await store.children(path)
    except NoNodeError:
        names = []  # No vote was ever cast.
    for name in known.keys() - set(names):
        del known[name]
    for name in names:
        if name in known:
            continue
        if not _VOTE_NAME.fullmatch(name):
            _pass_over(f"{path}/{name}", "no vote has such a name")
            known[name] = None
            continue
        try:
            node = await store.get(f"{path}/{name}")
        except NoNodeError:
            continue  # Gone since the listing.
        known[name] = _decode(name, node, path)
    votes = [vote for vote in known.values() if vote is not None]
    return sorted(votes, key=lambda vote: _number(vote.name))


def _number(name: str) -> int:
    return int(name[-SEQUENCE_DIGITS:])


def _decode(name: str, node: Versioned, path: str) -> _Vote | None:
    if not node.is_ephemeral:
        _pass_over(f"{path}/{name}", "it belongs to no session, and no vote outlives one")
        return None
    try:
        record = _VoteRecord.model_validate_json(node.value)
    except ValidationError as error:
        _log.error(
            "election_vote_not_understood",
            vote=f"{path}/{name}",
            value=repr(node.value[:_VALUE_BYTES_SHOWN]),
            error=first_problem(error),
            advice="it counts while its session lives: is it a newer release's?",
        )
        return _Vote(name, None, None)
    return _Vote(name, record.candidate, record.token)


def _pass_over(node: str, reason: str) -> None:
    _log.warning(
        "election_node_passed_over",
        node=node,
        reason=reason,
        advice="nothing was changed; delete it if nobody needs it",
    )
