"""W9: what can be confirmed is confirmed at once (section 4.1; section 5 step 8; defect D11).

An add that waits for one reply too many costs no entry: it is confirmed late, or never if nothing
is heard any more. So it is judged by the virtual time that passed.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from magnetar.ledger.wire import Flag, Op, Status
from tests.simulation.history import Acked, Answered, Appended, Delivered, Fault
from tests.simulation.record import Record, Seen, invariant, write_set_of

_AT_ONCE_S = 0.0001
"""Less than a frame takes to arrive: no further reply can have helped."""


@invariant("W9", "An entry that its ack quorum has is confirmed at once, in its turn")
def released_at_once(run: Record) -> Iterator[str]:
    held_up = {seen.actor for seen in run.of(Fault) if seen.event.what in ("is paused", "crashes")}
    heard: dict[tuple[str, int, int], list[Seen[Delivered]]] = defaultdict(list)
    for delivered in run.of(Delivered):
        event = delivered.event
        is_ok = event.is_reply and event.op == Op.ADD and event.status == Status.OK
        if is_ok and not event.request_flags & Flag.RECOVERY:
            for entry_id in event.entries:
                heard[event.target, event.ledger_id, entry_id].append(delivered)
    ok = [each for replies in heard.values() for each in replies]
    answers: dict[tuple[str, int], list[Seen[Answered]]] = defaultdict(list)
    for answered in run.of(Answered):
        answers[answered.actor, answered.event.ledger_id].append(answered)
    followed = _followed(run)
    turns_s: dict[tuple[str, int], float] = {}
    for acked in run.of(Acked):
        ledger_id, entry_id = acked.event
        key = acked.actor, ledger_id
        turn_s = turns_s.get(key, 0.0)
        changes = [each for each in answers[key] if each.place < acked.place]
        replies = heard[acked.actor, ledger_id, entry_id]
        quorum_s = _quorum_s(run, acked, [each for each in replies if each.place < acked.place])
        if quorum_s is None:
            quorum_s = acked.time_s  # I16
        since_s = max(turn_s, quorum_s, changes[-1].time_s if changes else 0.0)
        is_last = (*key, entry_id) not in followed
        # What one append brought is confirmed together, when nothing of it is missing.
        turns_s[key] = acked.time_s if is_last else since_s
        if acked.actor in held_up or (changes and changes[-1].event.outcome != "done"):
            continue  # it had no time, or read back what had become of its change
        is_late = is_last and acked.time_s > since_s + _AT_ONCE_S
        if is_late and any(since_s < each.time_s and each.place < acked.place for each in ok):
            yield (
                f"{acked.actor} {acked.event} at {acked.time_s:.6f} s, though nothing was missing "
                f"since {since_s:.6f} s"
            )


def _followed(run: Record) -> set[tuple[str, int, int]]:
    """Entries that are not the last of their append: the next is recorded at once, and confirmed
    at the same time."""
    confirmed_s = {(seen.actor, *seen.event): seen.time_s for seen in run.of(Acked)}
    followed = set()
    for appended, following in pairwise(run.of(Appended)):
        times_s = [
            confirmed_s.get((seen.actor, seen.event.ledger_id, seen.event.entry_id))
            for seen in (appended, following)
        ]
        if following.place == appended.place + 1 and times_s[0] == times_s[1]:
            followed.add((appended.actor, appended.event.ledger_id, appended.event.entry_id))
    return followed


def _quorum_s(run: Record, acked: Seen[Acked], replies: list[Seen[Delivered]]) -> float | None:
    """When the ack quorum's last reply was heard, of those who are members ever since."""
    ledger_id, entry_id = acked.event
    versions = [
        (wrote.place, wrote.event.metadata)
        for wrote in run.versions.get(ledger_id, [])
        if wrote.actor == acked.actor and wrote.place < acked.place
    ]
    committed = versions[-1][1] if versions else None
    if committed is None:
        return None
    times = []
    for at, member in enumerate(write_set_of(committed, entry_id)):
        since, was_member = -1, True
        for place, metadata in versions:
            is_member = metadata is not None and write_set_of(metadata, entry_id)[at] == member
            if is_member and not was_member:
                since = place  # it came back: what it had said before was taken back
            was_member = is_member
        firsts = [
            each.time_s for each in replies if each.event.source == member and each.place > since
        ]
        times += firsts[:1]
    return sorted(times)[committed.ack_quorum - 1] if len(times) >= committed.ack_quorum else None
