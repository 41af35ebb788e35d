"""Copies between two clusters whose brokers, link and receipts fail at any moment.

The window of the source and the marks of the target are the product's; the link, the logs and what
survives a crash are a model. Whatever happens, the target has what the source has, once each, in
order, as soon as nothing fails any more.

Source: geo-replication sheet, section 20 (G1, G2, G3, G6, G8).
"""

from collections import deque
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.broker.features.replication.source_marks import (
    START,
    CopyPlace,
    Source,
    SourceMarks,
    Verdict,
)
from magnetar.broker.features.replication.window import SendWindow
from magnetar.ledger.position import Position

SOURCE = Source("east", 7)
PER_LEDGER = 5


class Saved(NamedTuple):
    """What the source's cursor keeps, in one record."""

    mark: Position
    receipted: Position


def position(index: int) -> Position:
    return Position(index // PER_LEDGER, index % PER_LEDGER)


class Clusters(RuleBasedStateMachine):
    """One topic that is copied from one cluster to another."""

    def __init__(self) -> None:
        super().__init__()
        # The source.
        self.log: list[bool] = []
        """Whether each entry goes to the other cluster."""
        self.saves = [Saved(START, START)]
        """What the cursor was told to keep; a crash leaves any one that is not older than the last
        that is known to be stored."""
        self.window: SendWindow | None = None
        self.next = 0
        # The link: in order both ways, until it is cut.
        self.sends: deque[CopyPlace] = deque()
        self.receipts: deque[Position] = deque()
        # The target.
        self.copies: list[Position] = []
        """What is durable."""
        self.pending: deque[Position | None] = deque()
        """Appends under way; None: a duplicate, which is answered in its place."""
        self.answers: deque[Position] = deque()
        """Places of `pending`, as receipts will name them."""
        self.marks = SourceMarks()
        self.is_refusing = False

    # The source

    @rule(goes=st.lists(st.booleans(), min_size=1, max_size=4))
    def publish(self, goes: list[bool]) -> None:
        self.log += goes

    @rule(count=st.integers(1, 5))
    def send(self, count: int) -> None:
        if self.window is None:
            if not self.marks.is_settled(SOURCE.cluster):
                return  # the target lets nobody in
            self.is_refusing = False
            saved = self.saves[-1]
            self.window = SendWindow(
                mark=saved.mark, sent=saved.receipted, entries_max=3, bytes_max=1 << 20
            )
            self.next = sum(1 for at in range(len(self.log)) if position(at) <= saved.mark)
        for _ in range(count):
            if self.next >= len(self.log) or not self.window.has_room:
                break
            at = position(self.next)
            if self.log[self.next]:
                self.sends.append(CopyPlace(at, self.window.previous))
                self.window.send(at, 10)
            else:
                self.window.skip(at)
            self.next += 1
        self._save()

    def _save(self) -> None:
        assert self.window is not None
        self.saves.append(Saved(self.window.mark, self.window.receipted))

    @rule(count=st.integers(1, 5))
    def hear(self, count: int) -> None:
        """Receipts arrive."""
        for _ in range(min(count, len(self.receipts))):
            assert self.window is not None
            assert self.window.awaited == self.receipts.popleft()
            self.window.receipt()
            self._save()

    @rule(back=st.integers(0, 6))
    def crash_source(self, back: int) -> None:
        """Another owner goes on from what was saved some time ago."""
        del self.saves[max(1, len(self.saves) - back) :]
        self.cut(arrive=0)

    @rule(arrive=st.integers(0, 5))
    def cut(self, arrive: int) -> None:
        """The connection is lost; some of what was under way arrives first."""
        self.arrive(arrive)
        self.sends.clear()
        self.receipts.clear()
        self.window = None

    # The target

    @rule(count=st.integers(1, 5))
    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.sends))):
            place = self.sends.popleft()
            if self.is_refusing:
                continue
            verdict = self.marks.accept(SOURCE, place)
            if verdict is Verdict.NEW:
                self.pending.append(place.position)
                self.answers.append(place.position)
            elif verdict is Verdict.DUPLICATE:
                self.pending.append(None)
                self.answers.append(place.position)
            else:
                self.is_refusing = True
        if self.is_refusing and not self.pending:
            self.sends.clear()
            self.receipts.clear()
            self.window = None

    @rule(goes_on=st.booleans())
    def refuse(self, goes_on: bool) -> None:
        """The target does not take the next copy. If it goes on with those behind it (17.1), these
        say that one before them is missing."""
        if self.sends and not self.is_refusing:
            self.sends.popleft()
            self.is_refusing = not goes_on
            self.arrive(0)

    @rule(count=st.integers(1, 5))
    def store(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            stored, answer = self.pending.popleft(), self.answers.popleft()
            if stored is not None:
                self.copies.append(stored)
                self.marks.on_stored(SOURCE, stored)
            if self.window is not None:
                self.receipts.append(answer)

    @rule(durable=st.integers(0, 5))
    def crash_target(self, durable: int) -> None:
        """The next owner recovers a prefix of what was under way, and knows what the log says."""
        self.copies += [each for each in list(self.pending)[:durable] if each is not None]
        self.pending.clear()
        self.answers.clear()
        self.marks = SourceMarks()
        for each in self.copies:
            self.marks.replayed(SOURCE, each)
        self.is_refusing = False
        self.sends.clear()
        self.receipts.clear()
        self.window = None

    # What holds

    @invariant()
    def nothing_is_twice_or_out_of_order_or_missing_in_between(self) -> None:
        wanted = [position(at) for at, goes in enumerate(self.log) if goes]
        assert self.copies == wanted[: len(self.copies)]

    @invariant()
    def the_mark_is_not_ahead_of_what_is_there(self) -> None:
        """Of what goes there; what is skipped needs nothing."""
        mark = self.saves[-1].mark
        goes = [position(at) for at, each in enumerate(self.log) if each and position(at) <= mark]
        assert set(goes) <= set(self.copies)

    def teardown(self) -> None:
        self.cut(arrive=5)  # a refusal that was on its way was heard
        for _ in range(10 * len(self.log) + 10):
            self.store(5)
            self.hear(5)
            self.send(5)
            self.arrive(5)
        assert self.copies == [position(at) for at, goes in enumerate(self.log) if goes]


Clusters.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestClusters = Clusters.TestCase
