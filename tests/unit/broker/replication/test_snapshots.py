"""Taking snapshots: when, in how many rounds, and what becomes of those that nobody answers."""

from collections.abc import Mapping

import pytest

from magnetar.broker.features.replication.markers import Request, Response, Snapshot
from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.broker.features.replication.subscriptions.snapshots import (
    AWAY_PAUSE_MS_MAX,
    UNANSWERED_MAX,
    UNANSWERED_PAUSE_MS_MAX,
    SnapshotTaking,
)
from magnetar.ledger.position import Position

PAIR = {"west": 1}
MESH = {"west": 1, "north": 5}


class Taking:
    """The core, with time and ids of the test."""

    def __init__(self, sessions: Mapping[str, int], *, has_news: bool = True) -> None:
        self.sessions = dict(sessions)
        self.counts = SubscriptionCounts()
        self.now_ms = 0
        self.ids = 0
        self.core = SnapshotTaking(
            "east",
            self.counts,
            interval_ms=100,
            timeout_ms=1_000,
            next_id=self._next_id,
        )
        if has_news:
            self.core.on_news()

    def _next_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    def look(self, *, after_ms: int = 0) -> Request | None:
        self.now_ms += after_ms
        return self.core.look(self.now_ms, self.sessions)

    def answer(
        self, snapshot_id: str, cluster: str, there: int, here: int
    ) -> Request | Snapshot | None:
        response = Response(snapshot_id, cluster, Position(9, there))
        return self.core.on_response(response, Position(1, here))

    @property
    def pause_ms(self) -> int | None:
        return self.core.pause_ms(self.now_ms)


def test_one_other_cluster_takes_one_round() -> None:
    taking = Taking(PAIR)
    assert taking.look() == Request("id1", "east")
    assert taking.counts.snapshots_pending == 1
    snapshot = taking.answer("id1", "west", 40, 7)
    assert snapshot == Snapshot("id1", Position(1, 7), {"west": Position(9, 40)})
    assert (taking.counts.snapshots_pending, taking.counts.snapshots_taken) == (0, 1)


def test_two_other_clusters_take_two_rounds_and_the_positions_of_the_first() -> None:
    """G11: a copy of north's that west had in the first round may come here after its answer."""
    taking = Taking(MESH)
    taking.look()
    assert taking.answer("id1", "north", 20, 3) is None
    assert taking.answer("id1", "west", 40, 4) == Request("id1-2", "east")
    assert taking.answer("id1-2", "west", 41, 8) is None
    assert taking.answer("id1-2", "north", 25, 9) == Snapshot(
        "id1", Position(1, 9), {"north": Position(9, 20), "west": Position(9, 40)}
    )


def test_an_answer_of_the_first_round_that_comes_twice_is_none_of_the_second() -> None:
    taking = Taking(MESH)
    taking.look()
    taking.answer("id1", "north", 20, 3)
    taking.answer("id1", "west", 40, 4)
    assert taking.answer("id1", "west", 40, 5) is None
    assert taking.answer("id1-2", "north", 21, 6) is None
    assert taking.answer("id1-2", "west", 44, 7) is not None


@pytest.mark.parametrize(
    ("snapshot_id", "cluster"), [("id2", "west"), ("id1", "south"), ("id1", "east"), ("", "west")]
)
def test_answers_that_nobody_waits_for_change_nothing(snapshot_id: str, cluster: str) -> None:
    taking = Taking(PAIR)
    taking.look()
    assert taking.answer(snapshot_id, cluster, 1, 1) is None
    assert taking.answer("id1", "west", 40, 7) is not None
    assert taking.answer("id1", "west", 40, 8) is None, "once"


def test_an_idle_topic_gets_no_markers() -> None:
    """GL2."""
    taking = Taking(PAIR, has_news=False)
    assert taking.pause_ms is None
    assert taking.look() is None
    taking.core.on_news()
    assert taking.pause_ms == 100
    assert taking.look() is not None
    taking.answer("id1", "west", 40, 7)
    assert taking.pause_ms is None
    assert taking.look(after_ms=5_000) is None


def test_among_three_clusters_the_last_messages_get_a_second_snapshot() -> None:
    """In the first one, copies between the two others may have come too late."""
    taking = Taking(MESH)

    def take(snapshot_id: str) -> None:
        for request_id in (snapshot_id, f"{snapshot_id}-2"):
            taking.answer(request_id, "north", 20, 3)
            taking.answer(request_id, "west", 40, 4)

    taking.look()
    take("id1")
    assert taking.look(after_ms=100) == Request("id2-f", "east")
    take("id2-f")
    assert taking.pause_ms is None
    assert taking.counts.snapshots_taken == 2


def follow(taking: Taking, *snapshot_ids: str, cluster: str = "west") -> None:
    for each in snapshot_ids:
        taking.core.on_request(cluster, each, taking.sessions)


def test_among_three_clusters_news_of_another_one_get_a_snapshot_here() -> None:
    """A message of north's may have come there late, behind what west has told before."""
    taking = Taking(MESH, has_news=False)
    follow(taking, "w1")
    assert taking.pause_ms == 100
    assert taking.look() == Request("id1-f", "east")
    taking.answer("id1-f", "north", 20, 3)
    assert taking.answer("id1-f", "west", 40, 4) == Request("id1-f-2", "east")
    taking.answer("id1-f-2", "north", 20, 5)
    assert taking.answer("id1-f-2", "west", 40, 6) == Snapshot(
        "id1-f", Position(1, 6), {"north": Position(9, 20), "west": Position(9, 40)}
    )
    assert taking.pause_ms is None, "and no second one"


def test_snapshots_that_follow_others_lead_to_no_more() -> None:
    """GL2: else clusters would follow each other for ever."""
    taking = Taking(MESH, has_news=False)
    follow(taking, "w1-f", "w1-f-2", "w1-2")
    assert taking.pause_ms is None


def test_between_two_clusters_news_of_the_other_one_come_as_copies() -> None:
    taking = Taking(PAIR, has_news=False)
    follow(taking, "w1")
    assert taking.pause_ms is None


def test_a_cluster_that_has_news_before_its_answer_is_not_asked_again() -> None:
    taking = Taking(MESH, has_news=False)
    follow(taking, "n1", cluster="north")
    taking.look()
    taking.answer("id1-f", "north", 20, 3)
    follow(taking, "w1")
    taking.answer("id1-f", "west", 40, 4)
    taking.answer("id1-f-2", "west", 40, 5)
    taking.answer("id1-f-2", "north", 40, 6)
    assert taking.pause_ms is None
    follow(taking, "w2")
    assert taking.look(after_ms=100) == Request("id2-f", "east")


@pytest.mark.parametrize("is_second_round", [True, False])
def test_a_cluster_that_has_news_behind_its_answer_is_asked_again(is_second_round: bool) -> None:
    taking = Taking(MESH, has_news=False)
    follow(taking, "n1", cluster="north")
    taking.look()
    taking.answer("id1-f", "west", 40, 4)
    if not is_second_round:
        follow(taking, "w1")
    taking.answer("id1-f", "north", 20, 3)
    if is_second_round:
        follow(taking, "w1")
    taking.answer("id1-f-2", "west", 40, 5)
    assert taking.answer("id1-f-2", "north", 40, 6) is not None
    assert taking.look(after_ms=100) == Request("id2-f", "east")


def test_messages_here_lead_to_a_snapshot_that_others_follow() -> None:
    taking = Taking(MESH)
    follow(taking, "w1")
    assert taking.look() == Request("id1", "east")


def test_a_snapshot_that_follows_and_is_lost_is_taken_again_as_one_that_follows() -> None:
    taking = Taking(MESH, has_news=False)
    follow(taking, "w1")
    taking.look()
    taking.sessions["west"] = 2
    assert taking.look(after_ms=100) == Request("id2-f", "east")
    taking.core.not_asked("id2-f")
    assert taking.look(after_ms=100) == Request("id3-f", "east")


def test_what_is_stored_during_a_snapshot_is_for_the_next_one() -> None:
    taking = Taking(PAIR)
    taking.look()
    taking.core.on_news()
    taking.answer("id1", "west", 40, 7)
    assert taking.look(after_ms=99) is None, "the interval counts from start to start"
    assert taking.look(after_ms=1) == Request("id2", "east")


def test_one_is_under_way_at_a_time() -> None:
    taking = Taking(PAIR)
    taking.look()
    taking.core.on_news()
    assert taking.look(after_ms=500) is None


def test_a_snapshot_that_is_not_answered_is_given_up_and_tried_ever_later() -> None:
    """17.20: a cluster that never answers does not flood the log."""
    taking = Taking(PAIR)
    taking.look()
    assert taking.look(after_ms=999) is None
    assert taking.counts.snapshots_timed_out == 0
    assert taking.look(after_ms=1) is None
    assert taking.counts.snapshots_timed_out == 1
    assert taking.answer("id1", "west", 40, 7) is None, "too late"
    pauses: list[int] = []
    for _ in range(12):
        taking.core.on_news()
        pause_ms = taking.pause_ms
        assert pause_ms is not None
        pauses.append(pause_ms)
        assert taking.look(after_ms=pause_ms - 1) is None
        assert taking.look(after_ms=1) is not None
        taking.look(after_ms=1_000)
    assert pauses[:4] == [1_000, 2_000, 4_000, 8_000]
    assert pauses[-1] == UNANSWERED_PAUSE_MS_MAX


def test_an_idle_topic_stops_asking_who_never_answers() -> None:
    """17.20: it forgets."""
    taking = Taking(PAIR)
    requests = 0
    while (pause_ms := taking.pause_ms) is not None:
        requests += taking.look(after_ms=pause_ms) is not None
    assert requests == UNANSWERED_MAX
    assert taking.look(after_ms=UNANSWERED_PAUSE_MS_MAX) is None
    taking.sessions = {"west": 2}
    assert taking.look() is not None, "a new connection may answer"
    taking.answer(f"id{requests + 1}", "west", 40, 7)
    assert taking.pause_ms is None


def test_an_answer_ends_the_pauses() -> None:
    taking = Taking(PAIR)
    taking.look()
    taking.look(after_ms=1_000)
    assert taking.look(after_ms=1_000) == Request("id2", "east")
    taking.core.on_news()
    taking.answer("id2", "west", 40, 7)
    assert taking.look(after_ms=100) == Request("id3", "east")
    taking.look(after_ms=1_000)
    assert taking.pause_ms == 1_000


def test_with_a_cluster_away_nothing_is_asked_and_looks_become_rare() -> None:
    taking = Taking({"west": 1, "north": 0})
    pauses: list[int | None] = []
    for _ in range(12):
        assert taking.look(after_ms=100) is None
        pauses.append(taking.pause_ms)
    assert pauses[:3] == [200, 400, 800]
    assert pauses[-1] == AWAY_PAUSE_MS_MAX
    taking.sessions["north"] = 3
    assert taking.look() == Request("id1", "east")
    assert taking.pause_ms == 100


@pytest.mark.parametrize(
    "sessions", [{"west": 2}, {"west": 0}, {}, MESH], ids=["again", "away", "none", "more"]
)
def test_a_connection_that_is_lost_may_have_lost_the_answer(sessions: Mapping[str, int]) -> None:
    taking = Taking(PAIR)
    taking.look()
    taking.sessions = dict(sessions)
    request = taking.look(after_ms=100)
    assert taking.counts.snapshots_interrupted == 1
    assert taking.answer("id1", "west", 40, 7) is None
    assert (request is not None) == (bool(sessions) and all(sessions.values()))
    taking.sessions = {"west": 9}
    assert request is not None or taking.look() == Request("id2", "east")


def test_a_topic_that_is_copied_nowhere_asks_nobody() -> None:
    taking = Taking({})
    assert taking.look(after_ms=1_000) is None
    assert taking.counts.snapshots_pending == 0


def test_a_topic_that_is_closed_waits_for_nobody() -> None:
    taking = Taking(PAIR)
    taking.look()
    taking.core.give_up()
    taking.core.give_up()
    assert taking.counts.snapshots_pending == 0
