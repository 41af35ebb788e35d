"""The subscription that retains the messages which a running query may still need.

Each topic (or partition) of the query has one durable subscription, without a consumer. Its
position follows the checkpoint. When Spark reports that a micro-batch is done, earlier messages are
released, except those that the next micro-batch may still need (`releasable`). Spark reports this
when it builds the next micro-batch. So the last one is retained until there is another, or until
the query has been idle for a while.

The subscription also reveals losses. If it has moved past the checkpoint although only this query
moves it, messages were removed unread (by expiry, or a backlog quota).
"""

from collections.abc import Iterable, Mapping

from magnetar.arrow.stored.admin_client import AdminClient, Answers
from magnetar.arrow.stored.offsets import BEFORE_FIRST, reach
from magnetar.sdk.message_id import MessageId

_NOT_FOUND = 404


class Hold:
    """The subscriptions of one query. Each operation covers all topics together.

    Methods raise:
        UnreachableError, RefusedError: from the brokers.
    """

    def __init__(self, admin: AdminClient, subscription: str) -> None:
        self._admin = admin
        self.subscription = subscription
        self._held: dict[str, MessageId] = {}
        """Last known position of each topic's subscription."""

    def keep(self, topics: Mapping[str, tuple[MessageId, MessageId | None]]) -> None:
        """Ensure that everything after a position in each topic is retained.

        Each value has that position, and the subscription's current one, None without a
        subscription. A subscription that retains more stays where it is.
        """
        taken = {}
        for topic, (through, stands_at) in topics.items():
            if stands_at is None or (topic not in self._held and reach(stands_at) > reach(through)):
                taken[topic] = through
            else:
                self._held.setdefault(topic, stands_at)
        answers = self._change("hold", taken)
        for error in answers.refused.values():
            raise error

    def stands_at(self, topic: str) -> MessageId:
        """Return the last known position of the subscription: everything after it is retained."""
        return self._held.get(topic, BEFORE_FIRST)

    def release(self, topics: Mapping[str, MessageId], *, is_idle: bool = False) -> None:
        """Release everything up to these positions.

        With `is_idle`, a position stays if a chunked message that may still end begins right before
        it.
        """
        moved = {
            topic: through
            for topic, through in topics.items()
            if reach(self.stands_at(topic)) < reach(through)
        }
        answers = self._change("move", moved, sparesUnfinished=is_idle)
        for error in answers.refused.values():
            # The topic or the subscription was deleted: there is nothing to retain.
            if error.status != _NOT_FOUND:
                raise error

    def drop(self, topics: Iterable[str]) -> None:
        """Delete the subscriptions: nothing is retained any more."""
        given = list(topics)
        answers = self._admin.ask_topics(
            "subscriptions",
            given,
            values=dict.fromkeys(given),
            subscription=self.subscription,
            action="delete",
        )
        for error in answers.refused.values():
            if error.status != _NOT_FOUND:
                raise error
        self._held.clear()

    def _change(self, action: str, places: Mapping[str, MessageId], **more: object) -> Answers:
        """Move the subscriptions of these topics, and record the new positions."""
        if not places:
            return Answers({}, {})
        answers = self._admin.ask_topics(
            "subscriptions",
            places,
            values={topic: _behind(through) for topic, through in places.items()},
            subscription=self.subscription,
            action=action,
            **more,
        )
        for topic, done in answers.found.items():
            if not done.get("isUnfinished"):
                self._held[topic] = places[topic]
        return answers


def _behind(through: MessageId) -> dict[str, object]:
    """Return the position after an offset, in the form of the administration interface."""
    return {
        "ledgerId": through.ledger_id,
        "entryId": through.entry_id,
        # If an entry is read in part, all of it is retained.
        "isExcluded": through.entry_id >= 0 and through.batch_index < 0,
    }
