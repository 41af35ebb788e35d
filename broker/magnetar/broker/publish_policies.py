"""What happens at once when the policies of a topic change that concern publishing."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.broker.errors import BrokerMetadataError
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.publish_rate import PublishRate

if TYPE_CHECKING:
    from magnetar.broker.topic import Topic


class PublishPolicies:
    """Applies policies to the publishing side of one topic."""

    def __init__(self, topic: "Topic", now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic seconds."""
        self.rate = PublishRate(topic.policies.publish_rate, now_s)
        self._topic = topic
        topic.on_policies.append(self._on_change)

    def _on_change(self, _before: EffectivePolicies) -> None:
        topic = self._topic
        policies = topic.policies
        deduplication = topic.deduplication
        if policies.deduplication is not (deduplication is not None):
            # Whether ledgers overlap, and whether there is a cursor, must be the same for
            # everything that is stored in one go: decision 23.
            topic.reopen("deduplication is switched on or off")
            return
        if deduplication is not None:
            deduplication.snapshot_entries = policies.dedup_snapshot_entries
        topic.update_checks()
        self.rate.set(policies.publish_rate)
        if policies.encryption_required:
            for producer in list(topic.producers.values()):
                if not producer.is_encrypted:
                    producer.close_by_broker()

    def close(self) -> None:
        """The topic is closed."""
        self.rate.close()

    def check_encryption(self, *, is_encrypted: bool) -> None:
        """Refuse a producer that does not encrypt, if the topic requires that.

        Raises:
            BrokerMetadataError
        """
        if self._topic.policies.encryption_required and not is_encrypted:
            raise BrokerMetadataError(
                f"{self._topic.name} requires encryption, and the producer does not encrypt"
            )


def take_due_snapshot(topic: "Topic") -> None:
    """Have a topic's sequence ids saved if that is due by its policy: a look for the upkeep."""
    if topic.deduplication is not None:
        topic.deduplication.take_snapshot_after(topic.policies.dedup_snapshot_s)
