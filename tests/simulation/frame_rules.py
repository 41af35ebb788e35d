"""What a test or a plan does to single frames: hold, lose, answer in the bookie's place."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from magnetar.ledger.wire import Op, Status
from tests.simulation.cluster.events import Spoke
from tests.simulation.history import Sent

Facts = Sent | Spoke
"""What is known of a frame: between clients and bookies, and between clients and brokers."""


class Rule(Protocol):
    """Frames that a hold or a loss is about."""

    def fits(self, facts: Facts) -> bool: ...


class Held(Protocol):
    """A pipe that a hold stops; see `connection.py`."""

    def pump(self) -> None: ...

    def push(self, message: "Message") -> None: ...

    def lose_all(self) -> None:
        """Drop what is on its way, and break the connection."""
        ...


class Message:
    """One frame on its way."""

    __slots__ = ("arrives_s", "facts", "held_by", "raw", "request_id")

    def __init__(
        self, raw: bytes, facts: Sequence[Facts], request_id: int, arrives_s: float
    ) -> None:
        self.raw = raw
        self.facts = facts
        """More than one of a frame with adds of several ledgers."""
        self.request_id = request_id
        self.arrives_s = arrives_s
        self.held_by: Hold | None = None

    def fits(self, rule: Rule) -> bool:
        """Whether the rule is about anything in the frame."""
        return any(map(rule.fits, self.facts))


class Match(NamedTuple):
    """Frames that a rule is about; None matches everything.

    Hellos belong to the making of a connection: only a rule about INFO is about them.
    """

    client: str | None = None
    bookie: str | None = None
    op: int | None = None
    reply: bool = False
    ledger_id: int | None = None
    entry: int | None = None
    flags: int | None = None
    """At least these flags of the request."""

    def fits(self, facts: Facts) -> bool:
        if not isinstance(facts, Sent) or facts.is_reply != self.reply:
            return False
        if facts.op == Op.INFO and self.op != Op.INFO:
            return False
        client, bookie = facts.source, facts.target
        if facts.is_reply:
            client, bookie = bookie, client
        return (
            (self.client is None or self.client == client)
            and (self.bookie is None or self.bookie == bookie)
            and (self.op is None or self.op == facts.op)
            and (self.ledger_id is None or self.ledger_id == facts.ledger_id)
            and (self.entry is None or self.entry == facts.entry_id or self.entry in facts.entries)
            and (self.flags is None or facts.request_flags & self.flags == self.flags)
        )


class Hold:
    """Frames that wait for `release`. Everything behind them on their connection waits too.

    Unless they are `overtaken`: a bookie answers in any order, so answers may pass each other.
    """

    def __init__(self, holds: "list[Hold]", match: Rule, *, overtaken: bool = False) -> None:
        self._holds = holds
        self._pipes: list[Held] = []
        self._taken_out: list[tuple[Held, Message]] = []
        self.is_overtaken = overtaken
        self.match = match
        self.messages: list[Message] = []
        """What is held now, in the order of sending."""
        self.seen = 0
        """How many were held in all."""

    def take(self, message: Message, pipe: Held) -> None:
        message.held_by = self
        self.messages.append(message)
        self.seen += 1
        if self.is_overtaken:
            self._taken_out.append((pipe, message))
        elif pipe not in self._pipes:
            self._pipes.append(pipe)

    def release(self, count: int | None = None) -> None:
        """Let the oldest `count` go on; without a count all, and hold no more."""
        if count is None:
            self._holds.remove(self)
            count = len(self.messages)
        for message in self.messages[:count]:
            message.held_by = None
        self.messages = self.messages[count:]
        let_on, self._taken_out = self._taken_out[:count], self._taken_out[count:]
        for pipe, message in let_on:
            pipe.push(message)
        for pipe in self._pipes:
            pipe.pump()

    def drop(self) -> None:
        """What is held is lost, and so are the connections that it was on. Hold no more."""
        self._holds.remove(self)
        for message in self.messages:
            message.held_by = None
        for pipe in (*self._pipes, *(pipe for pipe, _ in self._taken_out)):
            pipe.lose_all()


class Loss:
    """The next matching frames are lost, each with its connection."""

    def __init__(self, match: Rule, count: int) -> None:
        self.match = match
        self.count = count


class Alteration:
    """The bodies of matching answers arrive changed, as from a bookie that lies."""

    def __init__(self, match: Rule, change: Callable[[bytes], bytes]) -> None:
        self.match = match
        self.change = change


class Forgery:
    """The next matching requests never arrive; an answer with this status comes instead."""

    def __init__(self, match: Match, status: Status, count: int) -> None:
        self.match = match
        self.status = status
        self.count = count
