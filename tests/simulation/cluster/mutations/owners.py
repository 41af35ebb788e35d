"""The rules of brokers: who may speak for a topic, and what subscriptions may store."""

from magnetar.broker.cluster.ownership.cluster_ownership import ClusterOwnership
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from magnetar.broker.features.deduplication import Deduplication
from magnetar.broker.features.deduplication.sequence_ids import SequenceIds
from magnetar.broker.topic.dispatch.base import SingleActiveDispatcher
from magnetar.broker.topic.dispatch.shared import SharedDispatcher
from magnetar.broker.topic.dispatch.source import EntrySource
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import ending, opening
from magnetar.cursors.cursor import Cursor
from magnetar.ledger import log
from magnetar.ledger.managed_log import log_takeover
from magnetar.ledger.managed_log.log_list import LogList
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="guard_outlives_its_session",
        rule="10, self-fencing",
        defects=("M13",),
        invariants=("C8",),
        description="a broker believes in its session for longer than the store does",
        apply=lambda: edited(
            SessionGuard,
            "_proven",
            (
                "until_s = sent_s + self._session.timeout_s * self._share",
                "until_s = sent_s + self._session.timeout_s * 4",
            ),
        ),
    ),
    Mutation(
        name="guard_sleeps_with_the_machine",
        rule="10, self-fencing",
        defects=("M13",),
        invariants=("C8",),
        description="the guard's clock stands still while the machine is suspended",
        apply=lambda: edited(
            SessionGuard,
            "holds",
            (
                "if self._clock.boot_s() < self._until_s:",
                "if self._clock.monotonic_s() < self._until_s:",
            ),
        ),
    ),
    Mutation(
        name="guard_waits_for_its_timer",
        rule="10, self-fencing",
        defects=("M13",),
        invariants=("C8",),
        description="a term ends when a timer fires, not when somebody asks",
        apply=lambda: edited(
            SessionGuard,
            "holds",
            ("if self._clock.boot_s() < self._until_s:", "if self._timer is not None:"),
        ),
    ),
    Mutation(
        name="receipts_without_tenure",
        rule="10.1",
        defects=("M13",),
        invariants=("C8",),
        description="a broker confirms publishes although its time has run out",
        apply=lambda: edited(
            Producer,
            "batch_appended",
            (
                "if not self.is_closed and self.line.tenure.holds():",
                "if not self.is_closed:",
            ),
        ),
    ),
    Mutation(
        name="messages_without_tenure",
        rule="10.1",
        defects=("M13",),
        invariants=("C8",),
        description="a broker goes on delivering in order although its time has run out",
        apply=lambda: edited(
            SingleActiveDispatcher, "_begin", (" or not context.tenure.holds()", "")
        ),
    ),
    Mutation(
        name="shared_messages_without_tenure",
        rule="10.1",
        defects=("M13",),
        invariants=("C8",),
        description="a broker goes on spreading messages although its time has run out",
        apply=lambda: edited(SharedDispatcher, "_begin", (" or not context.tenure.holds()", "")),
    ),
    Mutation(
        name="topics_loaded_without_a_look",
        rule="10, leases",
        defects=("M20",),
        invariants=("C8",),
        description="whoever is asked for a topic loads it, and does not look at the lease",
        apply=lambda: edited(
            ClusterOwnership,
            "_try_acquire",
            (
                "    if bundle.bundle not in await",
                "    return TermTenure(self._guard, term)\n    if bundle.bundle not in await",
            ),
        ),
    ),
    Mutation(
        name="leases_are_overwritten",
        rule="10.2",
        defects=("M15", "M20"),
        invariants=("C8",),
        description="a broker that is asked for a topic removes the lease of another one",
        apply=lambda: edited(
            ClusterOwnership,
            "_try_acquire",
            (
                "    lease = await self._leases.read(bundle)\n",
                "    lease = await self._leases.read(bundle)\n"
                "    if lease is not None and not self._leases.is_ours(lease):\n"
                "        await self._leases._store.delete(bundle.lease_path)\n"
                "        lease = None\n",
            ),
        ),
    ),
    Mutation(
        name="logs_taken_over_by_whoever_began",
        rule="10.1",
        defects=("M20",),
        invariants=("C8",),
        description="a broker goes on taking a log over although its time has run out",
        apply=lambda: edited(log_takeover, "_check", ("if not may_own():", "if False:")),
    ),
    Mutation(
        name="cursors_of_a_lost_log_are_opened",
        rule="5.3, 10",
        defects=("M20",),
        invariants=("C5",),
        description="a cursor is taken over by whoever once owned the log",
        apply=lambda: edited(Cursor, "_try_open", ("        await log.check_owned()\n", "")),
    ),
    Mutation(
        name="single_acks_are_not_stored",
        rule="5.1",
        defects=("M11",),
        invariants=(),
        description="only the mark-delete position of a cursor is stored",
        apply=lambda: edited(
            Cursor,
            "_record",
            ("ranges_max=settings.unacked_ranges_persisted_max,", "ranges_max=0,"),
        ),
    ),
    Mutation(
        name="acknowledged_entries_are_not_skipped",
        rule="12.1",
        defects=("M11",),
        invariants=("C7",),
        description="after a takeover a shared subscription delivers what was acknowledged singly",
        apply=lambda: edited(
            SharedDispatcher,
            "_pick",
            ("if has_holes and cursor.is_acked(position):\n", "if False:\n"),
        ),
    ),
    Mutation(
        name="reads_begin_behind_the_last_delivery",
        rule="5.3",
        defects=(),
        invariants=("C7",),
        description="a new consumer goes on behind what the one before was given",
        apply=lambda: edited(
            EntrySource, "rewind", ("    self._after = self._acks.mark_delete\n", "")
        ),
    ),
    Mutation(
        name="exclusive_takes_two",
        rule="12",
        defects=("C11",),
        invariants=("C11",),
        description="a second consumer is let into an exclusive subscription",
        apply=lambda: edited(
            Subscription, "_in_the_way", ("if consumer.sub_type == EXCLUSIVE:", "if False:")
        ),
    ),
    Mutation(
        name="lost_list_update_taken_for_a_failure",
        rule="1.3",
        defects=("M2",),
        invariants=("C3", "C1"),
        description="an update of the list whose reply was lost counts as another owner's",
        apply=lambda: edited(
            LogList,
            "_resolve",
            ("or node.value not in self._unresolved:", "or True:"),
        ),
    ),
    Mutation(
        name="only_the_last_ledger_is_recovered",
        rule="section 2, step 2",
        defects=("M3",),
        invariants=("C1",),
        description="a takeover leaves the ledger before the last to whoever writes to it",
        apply=lambda: edited(
            log_takeover,
            "_recover",
            (
                "is_old = ledger.is_closed and at < len(listed) - OPEN_LEDGERS_MAX",
                "is_old = at < len(listed) - 1",
            ),
        ),
    ),
    Mutation(
        name="empty_ledgers_deleted_before_the_list",
        rule="10.3",
        defects=("M5",),
        invariants=(),
        description="a takeover deletes empty ledgers before the list is its own",
        apply=lambda: edited(
            log,
            "claim",
            (
                "    token = 1 + random.getrandbits(_TOKEN_BITS)\n",
                "    for ledger in recovered:\n"
                "        if ledger.entries == 0:\n"
                "            await ledgers.delete(ledger.ledger_id)\n"
                "    token = 1 + random.getrandbits(_TOKEN_BITS)\n",
            ),
        ),
    ),
    Mutation(
        name="sequence_ids_are_not_rebuilt",
        rule="3.2",
        defects=("M19",),
        invariants=(),
        description="what was stored behind the last snapshot is not read when a topic is loaded",
        apply=lambda: edited(
            Deduplication,
            "restore",
            ("read = await snapshots.replay(\n", "read = 0 and await snapshots.replay(\n"),
        ),
    ),
    Mutation(
        name="snapshots_of_what_is_accepted",
        rule="3.2",
        defects=("M19",),
        invariants=(),
        description="a snapshot of sequence ids holds those whose write is under way",
        apply=lambda: edited(
            SequenceIds,
            "snapshot",
            ("stored = self._stored.get(name)", "stored = self._accepted.get(name)"),
        ),
    ),
    Mutation(
        name="ledgers_overlap_with_deduplication",
        rule="3.2, 9.2",
        defects=("M19",),
        invariants=(),
        description="a log rotates without a pause though its topic deduplicates",
        apply=lambda: edited(
            opening,
            "log_config",
            ("overlaps_ledgers=not policies.deduplication,", "overlaps_ledgers=True,"),
        ),
    ),
    Mutation(
        name="failed_appends_are_taken_for_lost",
        rule="3.2",
        defects=("M19",),
        invariants=(),
        description="after a failed append a topic that deduplicates goes on",
        apply=lambda: edited(
            Deduplication,
            "failed",
            (
                "if not topic.is_closed:",
                "self._ids._accepted = dict(self._ids._stored)\n    if False:",
            ),
        ),
    ),
    Mutation(
        name="closed_without_their_cursors",
        rule="5.1",
        defects=(),
        invariants=("C16",),
        description="a topic that is closed in order leaves its cursors as they were last stored",
        apply=lambda: edited(
            ending, "_close_parts", ("for cursor in closing.cursors]", "for cursor in ()]")
        ),
    ),
    Mutation(
        name="handed_over_without_a_drain",
        rule="10.4",
        defects=("C17",),
        invariants=("C17",),
        description="a topic moves while publishes to it are under way",
        apply=lambda: edited(
            ending.TopicEnds,
            "_move",
            ("await topic.drain(self._settings.publish_drain_timeout_ms / 1000)", "pass"),
        ),
    ),
    Mutation(
        name="dropped_logs_go_on",
        rule="10.1",
        defects=("C18",),
        invariants=("C18",),
        description="the log of a topic that is dropped is closed as if it were ours",
        apply=lambda: edited(
            ending.TopicEnds,
            "_start_closing",
            ("closing.abandon(dropped)", "topic.abandon_cursors()"),
        ),
    ),
]
