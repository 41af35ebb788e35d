"""Replicated subscriptions of one topic: all that this cluster tells others, and is told by them.

This cluster *tells* while the topic is copied to others and has a replicated subscription. It takes
snapshots (`snapshots.py`). When the mark-delete position of such a subscription has passed a
snapshot, it writes an update (`progress.py`). It *is told* by the markers of other clusters, which
arrive with their copies (`receiving.py`). A request is answered at once; an update is carried out
in the background (`received_updates.py`).

Markers are handled when they are stored. Unknown or malformed ones are counted and left in the log:
dispatch skips them, as it skips all markers.

A topic without a replicated subscription has no row in its publish line and no timer. A topic with
one is checked once per interval, but only while something is new: messages, a snapshot being taken,
or snapshots that consumers have not passed.

Source: geo-replication sheet, sections 11, 17 (rows 18 and 20 to 23) and 18.8.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final, Protocol

import structlog

from magnetar.broker.base.entry import ACKS_MARKER, MARKER, messages_of
from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.replication.acks import Acks
from magnetar.broker.features.replication.copies import Copy
from magnetar.broker.features.replication.markers import (
    UPDATE,
    Marker,
    Request,
    Response,
    Snapshot,
    Update,
    decode_marker,
    encode_marker,
)
from magnetar.broker.features.replication.subscriptions.ack_exchange import (
    AckExchange,
)
from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.broker.features.replication.subscriptions.progress import Progress
from magnetar.broker.features.replication.subscriptions.received_updates import ReceivedUpdates
from magnetar.broker.features.replication.subscriptions.snapshots import Sessions, SnapshotTaking
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import (
    Feature,
    PublishBatch,
    PublishRows,
    TopicPort,
    TopicSubscriptions,
    Work,
)
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MalformedPayloadError, split_payload

_log = structlog.get_logger()

RECENT_MAX: Final = 64
"""Newest snapshots of a topic that all of its subscriptions know: about a minute's worth."""

MARKERS_MAX: Final = 1_000
"""Newest markers whose positions are known, at most."""

WRITTEN_MAX: Final = 1_000
"""Newest snapshots whose positions are known, at most. For dispatchers that are further behind,
they are read."""

ANSWERS_MAX: Final = 64
"""Unwritten answers that are retried, at most; one per cluster is usual."""

UNREAD_MAX: Final = 1_000
"""Passed entries that wait to be read, at most. Of more, the oldest are dropped: an update is then
delayed."""

NOWHERE: Final = Position(-1, -1)
"""Position given for a marker that was replayed."""

_ID_BITS: Final = 96


@dataclass(frozen=True, slots=True)
class ReplicatedSubscriptionsSurroundings:
    """The objects that all replicated subscriptions of a broker share."""

    cluster: str
    """Name of this cluster."""
    clock: Clock
    random: Random
    settings: BrokerSettings
    counts: SubscriptionCounts = field(default_factory=SubscriptionCounts)


class SubscribedTopic(TopicPort, Protocol):
    """A topic as its replicated subscriptions need it."""

    @property
    def subscriptions(self) -> TopicSubscriptions: ...

    def internal_stored(self, position: Position, entry: bytes, /) -> None:
        """Handle an entry of the broker's own that is durable."""
        ...


class _MarkerAppend:
    """A marker that is being appended to the log."""

    def __init__(
        self, entry: bytes, on_stored: Callable[[Position], None], on_lost: Callable[[], None]
    ) -> None:
        self.payloads: Sequence[bytes] = (entry,)
        self.done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._on_stored = on_stored
        self._on_lost = on_lost

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        position = Position(ledger_id, first_entry_id)
        self._on_stored(position)
        self.done.set_result(position)

    def on_failed(self, error: LedgerError) -> None:
        # If it is stored all the same, it does no harm: every marker may come twice.
        self._on_lost()
        self.done.cancel(str(error))


class _Passing:
    """Reports the broker's own entries that the dispatcher of one subscription passes."""

    def __init__(self, of: "ReplicatedSubscriptions", subscription: str) -> None:
        self._of = of
        self._subscription = subscription

    def passed(self, positions: Sequence[Position]) -> None:
        self._of.passed(self._subscription, positions)


class ReplicatedSubscriptions(Feature):
    """The replicated subscriptions of one topic of this broker."""

    def __init__(
        self,
        topic: SubscribedTopic,
        around: ReplicatedSubscriptionsSurroundings,
        *,
        sessions: Callable[[], Sessions],
        takes_acks: Callable[[], bool],
        incarnation: Callable[[], int],
        is_copied: Callable[[str, Position], bool],
        create: Callable[[str], Awaitable[None]],
        advance: Callable[[Subscription, Position], int],
        changed: Callable[[], None],
    ) -> None:
        """Create the feature.

        Args:
            sessions: returns the connections to the clusters that the topic is copied to.
            takes_acks: whether a connected cluster takes single acknowledgements.
            incarnation: returns the log's life; 0 if nothing was ever copied from it.
            is_copied: whether an entry is at a position that is copied to a cluster.
            create: creates a replicated subscription at the beginning of the log.
            advance: acknowledges everything of a subscription up to a position.
            changed: called when the rows of the publish line change.
        """
        settings = around.settings
        self._topic, self._around = topic, around
        self._label, self._here, self._counts = str(topic.name), around.cluster, around.counts
        self._sessions, self._changed = sessions, changed
        self._is_enabled = settings.replicated_subscriptions_enabled
        self._interval_ms = settings.replicated_subscriptions_snapshot_interval_ms
        self._taking = _taking_of(around)
        self._updates = ReceivedUpdates(
            topic,
            topic.subscriptions,
            self._counts,
            here=self._here,
            create=create,
            advance=advance,
            moved=self._moved_by_peer,
            is_copied=is_copied,
            read_entries=settings.read_ahead_entries,
            read_bytes=settings.read_ahead_bytes,
        )
        self._acks = AckExchange(
            topic,
            topic.subscriptions,
            self._counts,
            settings,
            here=self._here,
            incarnation=incarnation,
            is_taken=takes_acks,
            create=create,
            moved=self._moved_by_acks,
        )
        self._progress: dict[str, Progress] = {}
        """Progress of the replicated subscriptions, by name."""
        self._told_in: dict[str, int] = {}
        """Last connection to each cluster that was noticed; see `Sessions`."""
        self._answers: deque[tuple[Response, str]] = deque(maxlen=ANSWERS_MAX)
        """Answers that could not be written, and the clusters that asked."""
        self._recent: deque[Snapshot] = deque(maxlen=RECENT_MAX)
        self._written: dict[Position, Snapshot] = {}
        """Snapshots by the position of their marker, for markers after `_unknown_through`."""
        self._markers: dict[Position, None] = {}
        """Positions of markers of any cluster."""
        self._unknown_through = topic.log.last_confirmed
        """Position up to which it is not known which entries are snapshots."""
        self._unread: deque[tuple[str, Position]] = deque(maxlen=UNREAD_MAX)
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = self._has_warned = False

    # Life cycle

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        if not (self._is_enabled and subscription.is_durable):
            return context
        subscription.on_replicated = self._replicated
        self._replicated(subscription)
        return replace(context, markers=_Passing(self, subscription.name))

    def _replicated(self, subscription: Subscription) -> None:
        """Apply whether a subscription is replicated, at first or after a change."""
        was_at_work, name = self.is_at_work, subscription.name
        if not subscription.is_replicated:
            self._progress.pop(name, None)
            self._acks.forgotten(name, is_last=not self._progress)
        elif name not in self._progress:
            self._acks.begin()
            settings = self._around.settings
            self._progress[name] = Progress(
                name, snapshots_max=settings.replicated_subscriptions_snapshots_max
            )
            self._note_log()
        if self.is_at_work != was_at_work:
            self._changed()
        self._look_soon()

    def _note_log(self) -> None:
        """Ask for a snapshot: entries of the log may be in none."""
        if self._topic.log.last_confirmed.entry_id >= 0:
            self._taking.on_news()

    def forgotten(self, subscription: str) -> None:
        was_at_work = self.is_at_work
        self._progress.pop(subscription, None)
        self._acks.forgotten(subscription, is_last=not self._progress)
        if self.is_at_work != was_at_work:
            self._changed()

    follows = frozenset({"replicated_to"})

    def policies_changed(self, before: Policies) -> None:
        self._note_log()
        self._look_soon()

    def look(self) -> Work | None:
        """Do the work that no event triggers: consumers may have acknowledged old entries."""
        if not self._is_closed:
            self._updates.look()
            self._acks.retry(is_due=True)
            self._look_soon()
        return None

    def close(self) -> None:
        """Stop telling, and carry out nothing more."""
        self._is_closed = True
        self._taking.give_up()
        self._updates.close()
        self._acks.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    def abandon(self) -> None:
        self.close()

    async def stopped(self) -> None:
        await self._updates.stopped()
        await self._acks.stopped()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def shown(self) -> Mapping[str, Any]:
        return {"replicated_subscriptions": sorted(self._progress)} if self._progress else {}

    # Telling other clusters

    @property
    def is_at_work(self) -> bool:
        """Whether the topic is copied to others, and has a replicated subscription."""
        return bool(self._progress) and any(
            name != self._here for name in self._topic.policies.replicated_to
        )

    def rows(self) -> PublishRows:
        return PublishRows(listeners=(self,)) if self.is_at_work else PublishRows()

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Note stored messages, and set the timer; a batch of markers has no messages."""
        if batch.messages:
            self._taking.on_news()
            if self._timer is None:
                self._look_later()

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """Do nothing: entries that are not stored are not told."""

    def _look_later(self) -> None:
        """Set the timer to the next thing that is due, if there is any."""
        if self._timer is not None or self._is_closed or not self.is_at_work:
            return
        pause_ms = self._taking.pause_ms(self._now_ms())
        if self._waits_for_consumers():
            pause_ms = self._interval_ms if pause_ms is None else min(pause_ms, self._interval_ms)
        if pause_ms is not None:
            self._set_timer(pause_ms)

    def _waits_for_consumers(self) -> bool:
        """Whether a connected consumer may pass a snapshot by its next acknowledgements."""
        tells_acks = self._acks.is_telling
        for name, progress in self._progress.items():
            if len(progress.cache) or tells_acks:
                subscription = self._topic.subscriptions.get(name)
                if subscription is None or not subscription.consumers:
                    continue
                if len(progress.cache) or not subscription.cursor.is_caught_up:
                    return True
        return False

    def _look_soon(self) -> None:
        """Set the timer to one interval, whatever is due."""
        if self._timer is None and not self._is_closed and self.is_at_work:
            self._set_timer(self._interval_ms)

    def _set_timer(self, pause_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_closed or not self._topic.tenure.holds():
            return
        self._answer_again()
        if not self.is_at_work:
            self._taking.give_up()
            return
        sessions = self._sessions()
        request = self._taking.look(self._now_ms(), sessions)
        if request is not None:
            self._write(request)
        self._notice_connections(sessions)
        self._acks.retry()
        self._tell()
        self._look_later()

    def _notice_connections(self, sessions: Sessions) -> None:
        """Tell a cluster with a new connection once more what it was told last.

        The topic may have another owner there, and no consumer whose acknowledgements would move it
        on. The new owner does not know what the former one carried out in memory alone, or not at
        all.
        """
        for cluster, session in sessions.items():
            if session and session != self._told_in.get(cluster):
                self._told_in[cluster] = session
                for name, each in self._progress.items():
                    each.tell_again()
                    self._acks.tell_again(name)

    def _tell(self) -> None:
        """Write updates for passed snapshots, and single acknowledgements."""
        self._acks.trim()
        for name, progress in self._progress.items():
            subscription = self._topic.subscriptions.get(name)
            if subscription is None or not subscription.is_open:
                continue
            self._pass_markers(subscription, progress)
            update = progress.look(subscription.cursor.mark_delete, self._recent)
            if update is not None:
                self._counts.updates_sent += 1
                self._write(update)
            self._acks.known_through(name, progress.told_through)
            acks = self._acks.look(subscription)
            if acks is not None:
                self._write(acks)
                self._look_soon()  # there may be more

    def _pass_markers(self, subscription: Subscription, progress: Progress) -> None:
        """Acknowledge the markers that come next.

        Without a consumer, nothing else passes them, and a snapshot comes after some of them.
        """
        cursor = subscription.cursor
        before = cursor.mark_delete
        position = cursor.next_unacked(before)
        while position in self._markers:
            cursor.ack(position)
            position = cursor.next_unacked(position)
        progress.passed_markers(before, cursor.mark_delete)
        is_left = position <= self._unknown_through and not subscription.consumers
        if is_left and progress.is_new_start(position):
            self._read_soon(subscription.name, position)

    def _moved_by_peer(self, name: str, mark: Position) -> None:
        progress = self._progress.get(name)
        if progress is not None:
            progress.moved_by_peer(mark)
            self._acks.known_through(name, mark)

    def _moved_by_acks(self, name: str, before: Position, mark: Position) -> None:
        progress = self._progress.get(name)
        if progress is not None:
            progress.passed_markers(before, mark)
            self._look_soon()

    def _now_ms(self) -> int:
        return int(self._around.clock.monotonic_s() * 1000)

    # Markers of this cluster

    def _write(self, marker: Marker, *, goes_to: Sequence[str] = ()) -> None:
        """Append a marker. `goes_to`: clusters that it is for; empty for all."""
        topic = self._topic
        if self._is_closed or topic.is_leaving or topic.log.terminated is not None:
            return
        if isinstance(marker, Snapshot):
            goes_to = (self._here,)
        entry = encode_marker(marker, goes_to=goes_to, now_ms=self._around.clock.wall_ms())

        def stored(position: Position) -> None:
            self._note_marker(position)
            self._acks.marked(position)
            if isinstance(marker, Snapshot):
                self._note_snapshot(position, marker)
            topic.internal_stored(position, entry)

        topic.append(_MarkerAppend(entry, stored, partial(self._write_again, marker, goes_to)))

    def _write_again(self, marker: Marker, goes_to: Sequence[str]) -> None:
        """Have the next look write a marker again that was not stored."""
        if self._is_closed:
            return
        match marker:
            case Response():
                # The asking cluster would wait for its timeout, and then for the pause after it.
                self._answers.extend((marker, each) for each in goes_to)
                if self._timer is None:
                    self._set_timer(self._interval_ms)
                return
            case Request(snapshot_id):
                self._taking.not_asked(snapshot_id)
            case Snapshot():
                self._taking.on_news()
            case Update(name) if name in self._progress:
                self._progress[name].not_told()
            case Acks(name) if name in self._progress:
                self._acks.tell_again(name)
            case _:
                return
        self._look_soon()

    def _answer_again(self) -> None:
        """Retry the unwritten answers, except those to clusters without a connection."""
        answers, sessions = list(self._answers), self._sessions()
        self._answers.clear()
        for response, asker in answers:
            if asker in sessions:
                self._write(response, goes_to=[asker])

    def _note_marker(self, position: Position) -> None:
        self._markers[position] = None
        if len(self._markers) > MARKERS_MAX:
            del self._markers[next(iter(self._markers))]

    def _note_snapshot(self, position: Position, snapshot: Snapshot) -> None:
        self._recent.append(snapshot)
        self._written[position] = snapshot
        if len(self._written) > WRITTEN_MAX:
            self._unknown_through = next(iter(self._written))
            del self._written[self._unknown_through]
        self._look_soon()

    # What dispatchers pass

    def passed(self, name: str, positions: Sequence[Position]) -> None:
        """Handle entries of the broker's own that the dispatcher of a subscription passes."""
        progress = self._progress.get(name)
        if progress is None or self._is_closed:
            return
        for position in positions:
            snapshot = self._written.get(position)
            if snapshot is not None:
                progress.cache.add(snapshot)
                self._look_soon()
            elif position <= self._unknown_through:
                self._read_soon(name, position)

    def _read_soon(self, name: str, position: Position) -> None:
        self._unread.append((name, position))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(
                self._read_passed(), name=f"snapshots-passed-{self._label}"
            )

    async def _read_passed(self) -> None:
        """Read entries that subscriptions have passed, or have next: some of them are markers."""
        while self._unread and not self._is_closed:
            name, position = self._unread.popleft()
            try:
                first, entries = await self._topic.log.read_range(
                    position, entries_max=1, bytes_max=1
                )
            except LedgerError as error:
                # The update is only delayed, until the next snapshot is passed.
                _log.info("snapshot_not_read", topic=self._label, reason=str(error))
                continue
            if first == position and entries and messages_of(entries[0]) == MARKER:
                self._note_marker(position)
                snapshot, progress = _snapshot_in(entries[0]), self._progress.get(name)
                if snapshot is not None and progress is not None:
                    progress.cache.add(snapshot)
                self._look_soon()

    # Markers of other clusters

    def received(self, source: str, position: Position, marker_type: int, body: bytes) -> None:
        """Handle a marker of a cluster that is stored here, after the batch that contained it."""
        if self._is_enabled:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._handle, source, position, marker_type, body)

    def replayed(self, entry: bytes) -> None:
        """Handle an update in an entry that is read again at the load of the topic.

        Its effect may not have been stored. Requests and responses of that time are ignored.
        """
        try:
            metadata, body_at = split_payload(entry)
        except MalformedPayloadError:
            return
        is_told = metadata.marker_type in (UPDATE, ACKS_MARKER)
        if is_told and metadata.HasField("replicated_from"):
            body = entry[body_at:]
            self.received(metadata.replicated_from, NOWHERE, metadata.marker_type, body)

    @property
    def notes_copies(self) -> bool:
        return bool(self._progress) and not self._is_closed

    def copied(self, position: Position, copy: Copy | None) -> None:
        """Note a copy from another cluster that is stored."""
        self._acks.copied(position, copy)

    def _handle(self, source: str, position: Position, marker_type: int, body: bytes) -> None:
        if self._is_closed or not self._topic.tenure.holds():
            return
        self._note_marker(position)
        try:
            marker = decode_marker(marker_type, body)
            self._obey(source, position, marker)
        except RequestError as error:
            self._counts.markers_malformed += 1
            self._warn(source, position, marker_type, str(error))
            return
        if marker is None:
            self._counts.markers_unknown += 1
            self._warn(source, position, marker_type, "its type is not known")

    def _warn(self, source: str, position: Position, marker_type: int, reason: str) -> None:
        """Warn once per topic: a cluster that writes one such marker writes many."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "marker_ignored",
                topic=self._label,
                cluster=source,
                position=str(position),
                marker_type=marker_type,
                reason=reason,
            )

    def _obey(self, source: str, position: Position, marker: Marker | None) -> None:
        """Carry out a marker of another cluster.

        Raises:
            RequestError: the marker makes no sense here.
        """
        match marker:
            case Request(snapshot_id):
                self._on_request(source, snapshot_id)
            case Response():
                following = self._taking.on_response(
                    Response(marker.snapshot_id, source, marker.position), position
                )
                if following is not None:
                    self._write(following)
            case Update():
                self._updates.receive(source, marker)
            case Acks():
                self._acks.receive(source, marker)

    def _on_request(self, source: str, snapshot_id: str) -> None:
        sessions = self._sessions()
        if source not in sessions:
            return  # no answer can reach it
        last = self._topic.log.last_confirmed
        self._write(Response(snapshot_id, self._here, last), goes_to=[source])
        self._taking.on_request(source, snapshot_id, sessions)
        self._look_later()


def _taking_of(around: ReplicatedSubscriptionsSurroundings) -> SnapshotTaking:
    settings = around.settings
    return SnapshotTaking(
        around.cluster,
        around.counts,
        interval_ms=settings.replicated_subscriptions_snapshot_interval_ms,
        timeout_ms=int(settings.replicated_subscriptions_snapshot_timeout_s * 1000),
        next_id=lambda: f"{around.random.getrandbits(_ID_BITS):024x}",
    )


def _snapshot_in(entry: bytes) -> Snapshot | None:
    """Return the snapshot in a stored entry of this cluster; None if it holds none."""
    try:
        metadata, body_at = split_payload(entry)
        if metadata.HasField("replicated_from") or not metadata.HasField("marker_type"):
            return None
        marker = decode_marker(metadata.marker_type, entry[body_at:])
    except (MalformedPayloadError, RequestError):
        return None
    return marker if isinstance(marker, Snapshot) else None
