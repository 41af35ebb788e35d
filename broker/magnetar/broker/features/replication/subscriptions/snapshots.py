"""Taking snapshots: positions in the logs of several clusters that belong together. Pure.

This cluster writes a *request* into the topic's log, which is copied to all others. Each of them
answers with the last position of its own log, in a *response* that it writes after that position.
Copies keep their order: when the response is here, everything that its cluster had up to that
position is here, too. So once a subscription has acknowledged all of this log up to the last
response, it has acknowledged all of the other logs up to the positions in the responses.

With more than one other cluster, a snapshot takes two rounds. A position that cluster B told covers
copies of cluster C, which may still be in transit from C to here. C answers the second request
after all of them. The second round has an id of its own, because a response of the first round that
arrives twice proves nothing about the second. The positions are those of the first round, in which
a message of B may not have reached C. So the last messages before a pause get a second snapshot. If
such a message reaches C even later, C takes a snapshot, as it has news. Its request comes after
that message, and causes one more snapshot here, which *follows* it. The ids of requests for
following snapshots say so, and cause no others.

At most one snapshot is taken at a time, and only if messages were stored since the last one, here
or in another cluster: an idle topic gets no markers. A snapshot that is not answered in time is
given up, and the next one waits longer each time. After some in a row, only new messages or a new
connection cause another one. If the connection to a cluster is lost meanwhile, its answer may be
lost. A new snapshot is then taken as soon as all clusters are connected.

Source: geo-replication sheet, sections 11 and 17 (rows 20 and 23).
"""

from collections.abc import Callable, Mapping
from typing import Final

from magnetar.broker.features.replication.markers import Request, Response, Snapshot
from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.ledger.position import Position

SECOND_ROUND: Final = "-2"
"""Suffix of the id of a request of the second round."""

FOLLOWING: Final = "-f"
"""Suffix of the id of a snapshot that no messages here have caused."""

UNANSWERED_PAUSE_MS_MAX: Final = 600_000
"""Longest pause after unanswered snapshots, ms."""

UNANSWERED_MAX: Final = 8
"""Unanswered snapshots in a row before an idle topic stops asking: with the usual timeout, that
takes an hour."""

AWAY_PAUSE_MS_MAX: Final = 10_000
"""Longest pause before the next check whether a lost cluster has come back, ms."""

Sessions = Mapping[str, int]
"""Numbers of the connections to the clusters that this topic is copied to, by cluster.

No other connection to that cluster had the number. 0: there is no connection.
"""


class _Pending:
    """A snapshot that is being taken."""

    def __init__(
        self, snapshot_id: str, sessions: Sessions, started_ms: int, *, follows: bool
    ) -> None:
        self.snapshot_id = snapshot_id
        self.follows = follows
        self.request_id = snapshot_id
        self.sessions = dict(sessions)
        self.started_ms = started_ms
        self.positions: dict[str, Position] = {}
        """Positions that the clusters told in the first round."""
        self.missing = set(sessions)
        """Clusters that have not answered in this round."""

    @property
    def is_in_first_round(self) -> bool:
        return self.request_id == self.snapshot_id


class SnapshotTaking:
    """The snapshots that one topic takes. Times are monotonic, in ms."""

    def __init__(
        self,
        cluster: str,
        counts: SubscriptionCounts,
        *,
        interval_ms: int,
        timeout_ms: int,
        next_id: Callable[[], str],
    ) -> None:
        """Begin without a snapshot.

        Args:
            cluster: name of this cluster.
            counts: counters of the broker.
            interval_ms: least time from the start of one snapshot to the start of the next.
            timeout_ms: time after which a snapshot without all answers is given up.
            next_id: returns an id that nobody else uses.
        """
        self._cluster = cluster
        self._counts = counts
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._next_id = next_id
        self._pending: _Pending | None = None
        self._has_news = False
        self._is_to_follow = False
        """Whether copies between other clusters may have arrived too late for the last snapshot."""
        self._needs_second = False
        """Whether copies between other clusters may arrive too late for the next snapshot."""
        self._not_before_ms = 0
        self._unanswered = 0
        """Snapshots in a row that were given up after a timeout."""
        self._unanswered_in: Sessions = {}
        """Connections during the last snapshot that was given up after a timeout."""
        self._away_looks = 0
        """Looks in a row that found a cluster without a connection."""

    def on_news(self) -> None:
        """Note that messages were stored; markers alone are no news."""
        self._has_news = self._needs_second = True

    def on_request(self, cluster: str, snapshot_id: str, sessions: Sessions) -> None:
        """Note that another cluster asks, which means that it has news.

        Its news may include messages of a third cluster that arrived there later than here, after
        the position that it told last.
        """
        if len(sessions) < 2 or snapshot_id.endswith((FOLLOWING, SECOND_ROUND)):
            return
        pending = self._pending
        if pending is None or not pending.is_in_first_round or cluster not in pending.missing:
            self._is_to_follow = True  # otherwise its answer is still to come, after those messages

    @property
    def _is_wanted(self) -> bool:
        return self._has_news or self._is_to_follow

    def pause_ms(self, now_ms: int) -> int | None:
        """Return the time until the next look in ms; None if only news call for one."""
        if self._pending is None and not self._is_wanted:
            return None
        pause_ms = max(self._interval_ms, self._not_before_ms - now_ms)
        if self._pending is None and self._away_looks:
            longer_ms = self._interval_ms << min(self._away_looks, 20)
            pause_ms = max(pause_ms, min(longer_ms, AWAY_PAUSE_MS_MAX))
        return pause_ms

    def look(self, now_ms: int, sessions: Sessions) -> Request | None:
        """Give up or begin a snapshot if that is due; return the request to write, if any.

        `sessions`: connections to all clusters that the topic is copied to.
        """
        self._look_at_pending(now_ms, sessions)
        if not all(sessions.values()):
            self._away_looks += 1
            return None
        self._away_looks = 0
        if self._unanswered and self._unanswered_in != sessions:
            self._unanswered, self._not_before_ms = 0, now_ms
            self._has_news = True
        is_due = self._is_wanted and now_ms >= self._not_before_ms
        if self._pending is not None or not is_due or not sessions:
            return None
        follows = not self._has_news
        self._has_news = self._is_to_follow = False
        self._not_before_ms = now_ms + self._interval_ms
        snapshot_id = self._next_id() + (FOLLOWING if follows else "")
        self._pending = _Pending(snapshot_id, sessions, now_ms, follows=follows)
        self._counts.snapshots_pending += 1
        return Request(self._pending.request_id, self._cluster)

    def _look_at_pending(self, now_ms: int, sessions: Sessions) -> None:
        pending = self._pending
        if pending is None:
            return
        if pending.sessions != sessions:
            self._counts.snapshots_interrupted += 1
        elif now_ms - pending.started_ms >= self._timeout_ms:
            self._counts.snapshots_timed_out += 1
            pause_ms = min(self._timeout_ms << min(self._unanswered, 20), UNANSWERED_PAUSE_MS_MAX)
            self._not_before_ms = now_ms + pause_ms
            self._unanswered += 1
            self._unanswered_in = dict(sessions)
        else:
            return
        self.give_up()
        if self._unanswered < UNANSWERED_MAX:
            self._want_again(pending)

    def not_asked(self, request_id: str) -> None:
        """Ask again: a request could not be written."""
        if self._pending is not None and self._pending.request_id == request_id:
            pending = self._pending
            self.give_up()
            self._want_again(pending)

    def _want_again(self, pending: _Pending) -> None:
        """Note that the news of a snapshot that was given up are in no snapshot yet."""
        self._has_news |= not pending.follows
        self._is_to_follow |= pending.follows

    def give_up(self) -> None:
        """Stop waiting for answers, as when the topic is closed."""
        if self._pending is not None:
            self._pending = None
            self._counts.snapshots_pending -= 1

    def on_response(self, response: Response, position: Position) -> Request | Snapshot | None:
        """Handle a response that is stored here, at a position; return the marker to write, if any.

        Unexpected responses change nothing: late ones, repeated ones, and those of clusters that
        were not asked.
        """
        pending = self._pending
        if pending is None or response.snapshot_id != pending.request_id:
            return None
        if response.cluster not in pending.missing:
            return None
        pending.missing.discard(response.cluster)
        pending.positions.setdefault(response.cluster, response.position)
        if pending.missing:
            return None
        if len(pending.sessions) > 1 and pending.is_in_first_round:
            pending.request_id += SECOND_ROUND
            pending.missing = set(pending.sessions)
            return Request(pending.request_id, self._cluster)
        self.give_up()
        self._unanswered = 0
        self._counts.snapshots_taken += 1
        if len(pending.sessions) > 1 and self._needs_second and not self._has_news:
            self._is_to_follow, self._needs_second = True, False
        return Snapshot(pending.snapshot_id, position, pending.positions)
