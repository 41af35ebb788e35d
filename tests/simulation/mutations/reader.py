"""The rules of readers: what they may return, and what they say when they cannot."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.ledger.digest import _Codec
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.reading import read_errors
from magnetar.ledger.reading.entry_fetcher import EntryFetcher, ReplicaRead
from magnetar.ledger.reading.lac_reads import LacRead
from magnetar.ledger.reading.read_bound import ReadBound
from tests.simulation.mutations.mutation import Mutation, edited, replaced


@contextmanager
def _no_bound() -> Iterator[None]:
    with (
        edited(ReadBound, "check", ("if last > self.last_entry_id:", "if False:")),
        edited(EntryFetcher, "_fetch", ("if last > last_add_confirmed:", "if False:")),
    ):
        yield


@contextmanager
def _digests_are_not_checked() -> Iterator[None]:
    with (
        edited(_Codec, "_open", ("if digest != expected:", "if False:")),
        edited(
            _Codec,
            "open_payloads",
            ("digests == list(map(self._digest, headers, payloads))", "True"),
        ),
    ):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="outage_looks_like_absence",
        rule="9.1",
        defects=("D5", "D15"),
        invariants=("W3",),
        description="a read says that there is no such entry although a replica did not answer",
        apply=lambda: replaced(read_errors, "_BY_PRECEDENCE", ()),
    ),
    Mutation(
        name="one_negative_is_believed",
        rule="9.1",
        defects=("D5",),
        invariants=("W3",),
        description="a read gives up at the first replica that does not have the entry",
        apply=lambda: edited(
            ReplicaRead,
            "_on_reply",
            (
                "if self._asked < len(self._bookies):",
                'if type(error).__name__.startswith("NoSuch"):\n'
                "            self._future.set_exception(error)\n"
                "        elif self._asked < len(self._bookies):",
            ),
        ),
    ),
    Mutation(
        name="digests_are_not_checked",
        rule="9.2",
        defects=(),
        invariants=("I7", "I20"),
        description="a replica that fails its digest is returned all the same",
        apply=_digests_are_not_checked,
    ),
    Mutation(
        name="bad_replica_ends_the_read",
        rule="9.2",
        defects=(),
        invariants=("I20",),
        description="a replica that fails its digest ends the read; no other is asked",
        apply=lambda: edited(
            ReplicaRead,
            "_on_reply",
            (
                "if self._asked < len(self._bookies):",
                'if type(error).__name__ == "DigestMismatchError":\n'
                "            self._future.set_exception(error)\n"
                "        elif self._asked < len(self._bookies):",
            ),
        ),
    ),
    Mutation(
        name="reads_are_not_bounded",
        rule="9.3",
        defects=("D21",),
        invariants=("I5",),
        description="a reader may ask for entries above its bound",
        apply=_no_bound,
    ),
    Mutation(
        name="bound_moves_back",
        rule="9.4",
        defects=("D21",),
        invariants=("I6",),
        description="a reader takes the LAC that it heard last, also a lower one",
        apply=lambda: edited(
            ReadBound,
            "learn",
            (
                "if self.is_final or last_add_confirmed <= self.last_entry_id:",
                "if self.is_final or last_add_confirmed == self.last_entry_id:",
            ),
        ),
    ),
    Mutation(
        name="bound_moves_above_the_end",
        rule="9.4",
        defects=("D21",),
        invariants=("I5", "I6"),
        description="a reader's bound is the entry after the last add confirmed",
        apply=lambda: edited(
            LedgerReader,
            "_learn",
            ("self._bound.learn(last_add_confirmed)", "self._bound.learn(last_add_confirmed + 1)"),
        ),
    ),
    Mutation(
        name="first_lac_reply_is_believed",
        rule="9.5",
        defects=("D5",),
        invariants=("W10",),
        description="one bookie that knows nothing of the ledger makes it look empty",
        apply=lambda: edited(
            LacRead, "_on_reply", ("if is_enough or self._coverage.is_covered:", "if True:")
        ),
    ),
    Mutation(
        name="moved_replicas_are_not_looked_for",
        rule="2.6",
        defects=("D23",),
        invariants=("I20",),
        description="a read handle keeps asking the bookies that it knew first",
        apply=lambda: edited(
            LedgerReader,
            "_has_moved",
            ("return self.metadata.ensembles != metadata.ensembles", "return False"),
        ),
    ),
]
