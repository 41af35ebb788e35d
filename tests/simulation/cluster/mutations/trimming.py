"""The rules of trimming: what may go, and in which order."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from magnetar.broker.features.retention import trimming
from magnetar.ledger.managed_log.log_ledgers import LogShrink
from tests.simulation.mutations.mutation import Mutation, edited

_LEAVE = "await asyncio.gather(*(cursor.leave(before) for cursor in cursors))"


@contextmanager
def _trimmed_by_memory() -> Iterator[None]:
    """The rule is kept twice: what is limited by, and what is stored before anything goes."""
    with ExitStack() as both:
        both.enter_context(
            edited(trimming, "trim_point", ("cursor.persisted_mark_delete", "cursor.mark_delete"))
        )
        both.enter_context(edited(trimming, "trim", (_LEAVE, "pass")))
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="trimmed_by_memory",
        rule="5.1",
        defects=("M7",),
        description="trimming believes positions that are not stored",
        apply=_trimmed_by_memory,
    ),
    Mutation(
        name="trimming_forgets_deduplication",
        rule="3.2, section 6",
        defects=("M19",),
        invariants=("C15",),
        description="what the snapshot of sequence ids has not passed may go all the same",
        apply=lambda: edited(
            trimming,
            "trim_point",
            ("in topic.durable_cursors():", "in topic.subscriptions.durable_cursors():"),
        ),
    ),
    Mutation(
        name="trimmed_before_all_cursors_are_open",
        rule="6.2",
        defects=(),
        description="a topic is trimmed while subscriptions of it are still being opened",
        tests=(
            "tests/unit/broker/keeping/test_trimming.py::"
            "test_nothing_is_trimmed_while_a_subscription_is_being_opened",
        ),
        apply=lambda: edited(
            trimming, "trim_point", (" or not topic.subscriptions.has_all_cursors:", ":")
        ),
    ),
    Mutation(
        name="cursors_stay_in_what_goes",
        rule="section 6, step 4",
        defects=("M7",),
        description="a ledger leaves the list while a stored position is still in it",
        apply=lambda: edited(trimming, "trim", (_LEAVE, "pass")),
    ),
    Mutation(
        name="cursors_are_made_while_ledgers_go",
        rule="5.2",
        defects=("M6",),
        description="trimming does not wait for subscriptions that are being made, nor they for it",
        apply=lambda: edited(trimming, "trim", ("async with topic.gate.trimming():", "if True:")),
    ),
    Mutation(
        name="ledgers_deleted_before_the_list",
        rule="6.1",
        defects=("M9",),
        description="ledgers are deleted before the list is without them",
        apply=lambda: edited(
            LogShrink,
            "unlist",
            (
                "    try:\n        await self._list.update(change)\n",
                "    for each in self._list.ledgers:\n"
                "        if each.ledger_id < before.ledger_id:\n"
                "            await self._ledgers.delete(each.ledger_id)\n"
                "    try:\n        await self._list.update(change)\n",
            ),
        ),
    ),
    Mutation(
        name="retained_ledgers_go",
        rule="section 6, step 2",
        defects=(),
        description="what is consumed goes at once, whatever the policies keep",
        tests=(
            "tests/unit/broker/keeping/test_trimming.py::"
            "test_retained_ledgers_stay_until_the_policy_changes",
        ),
        apply=lambda: edited(
            trimming,
            "retention_of",
            (
                "Retention(retention.time_s, retention.size_bytes)",
                "Retention(0, 0)",
            ),
        ),
    ),
]
