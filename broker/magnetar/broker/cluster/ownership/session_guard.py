"""The broker fences itself: limits how long it may consider itself the owner of anything.

The store keeps a broker's leases for a session timeout after it last received something from the
broker; then another broker may own its topics. The guard counts from the other end, with the
broker's own clock. A proof is a round trip to the store that saw the session alive. It is valid
from the moment at which it was *sent* for a share of the session timeout. The guard does not wait
for session events of the client library: in an outage there are none for as long as the outage
lasts.

`holds` compares the clock at the moment of the call, so no timer has to fire first: if the process
was stopped for too long, the first code that runs finds out. The clock must run while the machine
is suspended (`Clock.boot_s`).

A term is the time from a proof to the moment when proofs ran out. It never comes back: what an
earlier term allowed has to be allowed again. After the end of a term, only a proof that was sent
later counts; the answer to an earlier one may have waited in a socket.

The share leaves room for the delay of the store's servers: a server of an ensemble reports the
sessions that it heard from to the leader only every half tick, and the shortest session is two
ticks long.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from magnetar.broker.base.errors import BrokerError
from magnetar.ledger.errors import MetadataError
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()


class ProvenSession(Protocol):
    """The session with the store, as the guard needs it."""

    @property
    def timeout_s(self) -> float:
        """Session timeout, in seconds, that the store has agreed to."""
        ...

    async def prove(self) -> bool:
        """Make one round trip; return whether the session was alive at some time after the call.

        False means that it is certainly over, and everything that it held is gone.

        Raises:
            MetadataError: the store does not answer.
            BrokerError: its answer is invalid.
        """
        ...

    async def renew(self) -> None:
        """Register under a new session, after one that is over.

        Raises:
            MetadataError, BrokerError: not now.
        """
        ...


class SessionGuard:
    """Decides whether this broker may serve at this moment. Belongs to the event loop that starts
    it."""

    def __init__(
        self,
        session: ProvenSession,
        *,
        clock: Clock,
        share: float,
        proof_share: float,
    ) -> None:
        """`share`: part of the session timeout for which a proof is valid. `proof_share`: part of
        it between two proofs, and the time limit of one proof."""
        assert 0 < proof_share < share < 1, (proof_share, share)
        self._session = session
        self._clock = clock
        self._share = share
        self._proof_share = proof_share
        self._until_s = float("-inf")
        self._term = 0
        self._is_out = True
        self._out_since_s = float("-inf")
        self._run_out_callbacks: list[Callable[[str], None]] = []
        self._restored_callbacks: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.trouble = ""
        """Why the last proof failed; empty if it succeeded."""
        self.runs_out = 0
        """Number of terms that ended."""

    # Queries

    @property
    def term(self) -> int:
        """Number of the present term; it grows when one ends."""
        return self._term

    @property
    def is_valid(self) -> bool:
        """Whether the broker may serve at this moment."""
        return self.holds(self._term)

    def holds(self, term: int) -> bool:
        """Whether that term has not ended. Does not wait; ends the term if its time has run out."""
        if term != self._term or self._is_out:
            return False
        if self._clock.boot_s() < self._until_s:
            return True
        self._end_term(f"no contact with the metadata store for {self.silence_s:.1f} s")
        return False

    @property
    def left_s(self) -> float:
        """Seconds until the term ends unless there is another proof; 0 if it has ended."""
        return 0.0 if self._is_out else max(0.0, self._until_s - self._clock.boot_s())

    @property
    def silence_s(self) -> float:
        """Seconds since the last proof was sent; infinite if there was none."""
        return self._clock.boot_s() - self._until_s + self._session.timeout_s * self._share

    def on_run_out(self, callback: Callable[[str], None]) -> None:
        """Call back soon after each end of a term, with the reason."""
        self._run_out_callbacks.append(callback)

    def on_restored(self, callback: Callable[[], None]) -> None:
        """Call back when the broker may serve (again)."""
        self._restored_callbacks.append(callback)

    # Running

    def start(self) -> None:
        """Begin to prove the session, and continue until `close`."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._run(), name="session-guard")

    async def close(self) -> None:
        """Stop; the present term ends without callbacks."""
        self._run_out_callbacks.clear()
        self._restored_callbacks.clear()
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not self._is_out:
            self._end_term("the broker stops")

    def lost(self, reason: str) -> None:
        """End the term, because the session is over or has to be considered so."""
        if not self._is_out:
            self._end_term(reason)

    async def _run(self) -> None:
        while True:
            interval_s = self._session.timeout_s * self._proof_share
            sent_s = self._clock.boot_s()
            try:
                async with asyncio.timeout(interval_s):
                    is_alive = await self._session.prove()
            except TimeoutError:
                self._note_trouble("no answer in time")
            except (MetadataError, BrokerError) as error:
                self._note_trouble(str(error))
            except Exception as error:  # noqa: BLE001
                # A defect must not end the proofs: without them the broker serves nothing.
                _log.exception("session_proof_failed")
                self._note_trouble(repr(error))
            else:
                self.trouble = ""
                if is_alive:
                    self._proven(sent_s)
                else:
                    self.lost("the session with the metadata store is over")
                    await self._renew()
                    continue  # the proof follows at once
            spent_s = self._clock.boot_s() - sent_s
            await asyncio.sleep(max(0.0, interval_s - spent_s))

    async def _renew(self) -> None:
        try:
            await self._session.renew()
        except (MetadataError, BrokerError) as error:
            self._note_trouble(str(error))
            await asyncio.sleep(self._session.timeout_s * self._proof_share)
        except Exception as error:  # noqa: BLE001 - a defect must not end the proofs
            _log.exception("session_renewal_failed")
            self._note_trouble(repr(error))
            await asyncio.sleep(self._session.timeout_s * self._proof_share)

    def _note_trouble(self, reason: str) -> None:
        if reason != self.trouble:
            self.trouble = reason
            _log.warning("session_not_proven", reason=reason, left_s=round(self.left_s, 3))

    def _proven(self, sent_s: float) -> None:
        """Extend or begin a term: the session was alive at `sent_s` or later."""
        if not self._is_out:
            self.holds(self._term)  # the former proof may have run out before this answer
        if self._is_out and sent_s < self._out_since_s:
            return  # sent before the end of the term: it proves nothing about the time since
        until_s = sent_s + self._session.timeout_s * self._share
        if until_s <= self._clock.boot_s():
            return
        self._until_s = until_s if self._is_out else max(self._until_s, until_s)
        if self._timer is None:
            self._set_timer()
        if self._is_out:
            self._is_out = False
            _log.info("session_proven", term=self._term, left_s=round(self.left_s, 3))
            for callback in list(self._restored_callbacks):
                try:
                    callback()
                except Exception:  # noqa: BLE001 - it must end neither the proofs nor the others
                    _log.exception("session_callback_failed")

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.left_s + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        """Check the term without a caller, since idle clients must learn of its end as well."""
        self._timer = None
        if self.holds(self._term):
            self._set_timer()

    def _end_term(self, reason: str) -> None:
        """End the term within the caller's check: it is final from now on; the callbacks run
        later."""
        self._term += 1
        self._is_out = True
        self._out_since_s = self._clock.boot_s()
        self.runs_out += 1
        _log.warning("term_ended", term=self._term - 1, reason=reason)
        loop = asyncio.get_running_loop()
        for callback in list(self._run_out_callbacks):
            loop.call_soon(callback, reason)
