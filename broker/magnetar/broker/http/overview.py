"""Overview of all loaded topics of a broker: a row per topic, and from the rows what needs an
operator. Pure.

A row is what a list of topics shows of one topic; it costs no read. These need an operator:
subscriptions that have a backlog and deliver nothing, consumers that hold messages and acknowledge
none, backlogs that almost fill their quota, and topics that retain much data without subscriptions.
The largest backlogs are listed besides, whether or not anything is wrong with them. A subscription
that only waits for delayed messages needs no operator.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from magnetar.broker.features.retention.backlog import topic_backlog_bytes
from magnetar.broker.features.retention.trimming import waits_for_subscription
from magnetar.broker.http.hoarding import hoarders_of
from magnetar.broker.topic import Topic
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.positions import entries_in
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.position import EARLIEST

ITEMS_MAX: Final = 50
"""Items of each kind in the list of what needs an operator, at most."""
QUOTA_SHARE_MIN: Final = 0.8
"""Share of its quota from which a backlog needs an operator."""
UNSUBSCRIBED_BYTES_MIN: Final = 1 << 30
"""Bytes from which a topic without subscriptions needs an operator."""

_NEEDS_NOBODY = frozenset({Reason.NOTHING_LEFT, Reason.DELAYED})
_MOMENTARY = frozenset(
    {Reason.NOTHING_NEW, Reason.READING, Reason.CHOOSING, Reason.NOT_WRITABLE, Reason.PAUSED}
)
"""Reasons that are normal between two messages: no trouble while messages are delivered."""


KINDS: Final = ("stuck", "hoarding", "quota", "unsubscribed")
"""Kinds of trouble that need an operator."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One problem that needs an operator, in a subscription of a topic or in the topic."""

    kind: str
    """One of `KINDS`."""
    subscription: str
    code: str
    """Code of the reason why a subscription is stuck, see `Reason`; empty for other kinds."""
    text: str
    """Description of the trouble, in words."""
    backlog: int
    """Backlog in entries."""
    consumer: str = ""
    """Name or address of the consumer that hoards."""


@dataclass(frozen=True, slots=True)
class Row:
    """One loaded topic."""

    topic: str
    msg_rate_in: float
    msg_rate_out: float
    backlog: int
    """Backlog of all subscriptions together, in entries."""
    largest: str
    """Name of the subscription with the largest backlog; empty if none has a backlog."""
    storage_size: int
    producers: int
    subscriptions: int
    consumers: int
    quota_share: float
    """Share of the size quota that the backlog fills; 0 without a quota."""
    troubles: Sequence[Trouble]

    def shown(self) -> dict[str, Any]:
        """Return the row as JSON, with the names that statistics use."""
        return {
            "topic": self.topic,
            "msgRateIn": self.msg_rate_in,
            "msgRateOut": self.msg_rate_out,
            "msgBacklog": self.backlog,
            "storageSize": self.storage_size,
            "producers": self.producers,
            "subscriptions": self.subscriptions,
            "consumers": self.consumers,
            "quotaShare": round(self.quota_share, 3),
            "troubles": [asdict(each) for each in self.troubles],
        }


def row_of(topic: Topic, now_ms: int) -> Row:
    """Return the row of a topic. `now_ms`: wall clock."""
    rate_in, _, _ = topic.line.rates(now_ms)
    rate_out, backlog, consumers, largest, most = 0.0, 0, 0, "", 0
    troubles: list[Trouble] = []
    opened = {name: each for name, each in topic.subscriptions.items() if each.is_open}
    for name, each in opened.items():
        entries = each.cursor.backlog_entries
        delivered = sum(consumer.rates(now_ms)[0] for consumer in each.consumers)
        rate_out += delivered
        backlog += entries
        consumers += len(each.consumers)
        if entries > most:
            largest, most = name, entries
        troubles += _troubles_of(name, each, entries, delivered, now_ms)
    share = _quota_share(topic)
    if share >= QUOTA_SHARE_MIN:
        text = f"the backlog fills {share:.0%} of the quota"
        troubles.append(Trouble("quota", largest, "", text, backlog))
    size = bytes_behind(topic.log.ledgers, EARLIEST)
    if size >= UNSUBSCRIBED_BYTES_MIN and waits_for_subscription(topic):
        text = f"the topic keeps {size >> 20:,} MiB, and nobody has subscribed to it"
        troubles.append(Trouble("unsubscribed", "", "", text, entries_in(topic.log)))
    return Row(
        topic=str(topic.name),
        msg_rate_in=rate_in,
        msg_rate_out=rate_out,
        backlog=backlog,
        largest=largest,
        storage_size=size,
        producers=len(topic.producers),
        subscriptions=len(opened),
        consumers=consumers,
        quota_share=share,
        troubles=troubles,
    )


def _troubles_of(
    name: str, subscription: Subscription, backlog: int, delivered: float, now_ms: int
) -> list[Trouble]:
    found: list[Trouble] = []
    reason = subscription.why_idle()
    if reason is not None and is_stuck(reason, backlog=backlog, delivered=delivered):
        found.append(Trouble("stuck", name, reason.code, reason.value, backlog))
    for each in hoarders_of(subscription, now_ms):
        who = each.name or each.peer.address
        text = f"{who} holds {each.unacked_messages} messages and acknowledges none"
        found.append(Trouble("hoarding", name, "", text, backlog, who))
    return found


def is_stuck(reason: Reason, *, backlog: int, delivered: float) -> bool:
    """Whether a subscription has messages to deliver but delivers none, so that an operator should
    look.

    Args:
        backlog: entries.
        delivered: messages per second of the last minute.
    """
    if backlog <= 0 or reason in _NEEDS_NOBODY:
        return False
    return not (reason in _MOMENTARY and delivered > 0)


def _quota_share(topic: Topic) -> float:
    limit = topic.policies.size_quota.bytes
    return topic_backlog_bytes(topic) / limit if limit > 0 else 0.0


def largest_backlogs(rows: Iterable[Row], count: int = ITEMS_MAX) -> list[dict[str, Any]]:
    """Return the topics with the largest backlogs in entries, largest first."""
    most = sorted((row for row in rows if row.backlog), key=lambda row: -row.backlog)[:count]
    return [
        {
            "topic": row.topic,
            "subscription": row.largest,
            "msgBacklog": row.backlog,
            "storageSize": row.storage_size,
        }
        for row in most
    ]


def troubles_in(rows: Iterable[Row], count: int = ITEMS_MAX) -> dict[str, list[dict[str, Any]]]:
    """Return what needs an operator, by kind, those with the largest backlog first."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for row in rows:
        for each in row.troubles:
            found[each.kind].append({"topic": row.topic, **asdict(each)})
    return {
        kind: sorted(items, key=lambda item: -item["backlog"])[:count]
        for kind, items in found.items()
    }
