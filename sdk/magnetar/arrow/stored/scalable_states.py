"""Layouts of scalable topics, and the states of their segments, as brokers report them.

A layout is read before the states, so the state of a segment that the layout has as sealed includes
all its messages. A broker may answer with an old layout. If it is older than the one that the query
has seen, it is requested again, since it would lack known segments.

Segments that are fully read are not requested: a broker would have to load them to answer.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

import re2

from magnetar.arrow.stored.admin_client import AdminClient, Json
from magnetar.arrow.stored.errors import (
    DataLossError,
    OptionError,
    RefusedError,
    TopicNotFoundError,
)
from magnetar.arrow.stored.patience import Patience
from magnetar.arrow.stored.segment_order import Begun, SegmentOrder
from magnetar.arrow.stored.source_options import Selection
from magnetar.arrow.stored.topic_states import TopicState, state_of
from magnetar.sdk.errors import LayoutError
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.scalable.layout import Layout, Segment
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import TopicName

LAYOUT_BEHIND_S = 10.0
"""How long a broker's layout may be behind, in seconds."""
LOOKS_MAX = 5
"""Most attempts to read the segments while some of them disappear."""
_NOT_FOUND = 404
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError)
"""Errors that reading JSON of an unexpected form raises."""


class _Look(NamedTuple):
    """The states of segments at one moment.

    `without_log` has the segments without a log: they are not used yet, or do not exist any more,
    because they were pruned or the layout is old.
    """

    states: dict[str, TopicState]
    without_log: list[str]


class ScalableStates:
    """Reads the scalable topics of a query from brokers. For one thread."""

    def __init__(
        self,
        admin: AdminClient,
        selection: Selection,
        *,
        allows_loss: bool,
        counts_messages: bool = False,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`allows_loss`: whether to continue with a topic that was deleted and created again.
        `counts_messages`: whether brokers report the number of messages per entry."""
        self._admin = admin
        self._selection = selection
        self._expression = re2.compile(selection.pattern) if selection.pattern else None
        self._allows_loss = allows_loss
        self._counts_messages = counts_messages
        self._clock = clock or SystemClock()
        self._pause = pause
        self._epochs: dict[str, int] = {}
        self.orders: dict[str, SegmentOrder] = {}
        """The topics at the last read, by `topic://` name."""

    def read(
        self, begun: Begun, *, missing_ok: bool = False, hold_s: int = 0
    ) -> dict[str, TopicState]:
        """Return the segments that may have something left to read, by name; parents before
        children.

        Args:
            begun: how far the query has read; if empty, all segments are returned.

        Raises:
            TopicNotFoundError: a named topic does not exist (unless `missing_ok`), or none matches
                the pattern when the query begins.
            DataLossError: a topic was deleted and created again, and that is not allowed.
            UnreachableError, RefusedError
        """
        for looks_left in reversed(range(LOOKS_MAX)):
            self.orders = self._read_orders(begun, missing_ok)
            look = self._look(begun, hold_s)
            if not look.without_log or not looks_left or not self._has_changed(look.without_log):
                break
        return look.states

    def selects(self, topic: TopicName) -> bool:
        """Return whether the query reads the scalable topic of this segment."""
        whole = topic.partitioned
        if self._expression is None:
            return whole in self._selection.topics
        return self._matches(whole)

    def order_of(self, topic: TopicName) -> SegmentOrder | None:
        """Return the scalable topic of this segment, as of the last read."""
        return self.orders.get(_shown(topic.partitioned))

    def _read_orders(self, begun: Begun, missing_ok: bool) -> dict[str, SegmentOrder]:
        orders = {}
        for topic in self._topics(missing_ok):
            name = LayoutName.parse(_shown(topic))
            order = self._order(name, max(self._epochs.get(str(name), 0), _epoch_in(begun, name)))
            if order is not None:
                orders[order.name] = order
                self._epochs[order.name] = order.epoch
            elif not missing_ok and self._expression is None:
                raise TopicNotFoundError(
                    f"topic {name} does not exist: create it, or see that option topic is right; "
                    f"a topic that is not scalable has the name {topic}"
                )
        return orders

    def _topics(self, missing_ok: bool) -> Sequence[TopicName]:
        if self._expression is None:
            return self._selection.topics
        names = self._admin.get(f"/admin/v2/scalable/{self._selection.namespace}")
        found = [LayoutName.parse(each).whole for each in sorted(names)]
        topics = [each for each in found if self._matches(each)]
        if not topics and not missing_ok:
            raise TopicNotFoundError(
                f"option topicsPattern: no scalable topic of {self._selection.namespace} matches "
                f"{self._selection.pattern!r}"
            )
        return topics

    def _matches(self, topic: TopicName) -> bool:
        assert self._expression is not None
        return topic.namespace_name == self._selection.namespace and bool(
            self._expression.fullmatch(topic.local_name)
        )

    def _order(self, name: LayoutName, epoch_min: int) -> SegmentOrder | None:
        """Return the layout of a topic, of at least this epoch; None if the topic does not
        exist."""
        whole = name.whole
        path = f"/admin/v2/scalable/{whole.namespace_name}/{quote(whole.local_name, safe='')}"
        patience = Patience(self._clock, self._pause, LAYOUT_BEHIND_S)
        while True:
            try:
                layout = layout_of(name, self._admin.get(path))
            except RefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                return None
            if layout.epoch >= epoch_min:
                return SegmentOrder(name, layout)
            if patience.wait():
                continue
            if self._allows_loss:
                return SegmentOrder(name, layout)
            raise DataLossError(
                f"{name}: its layout has epoch {layout.epoch}, and the query has seen epoch "
                f"{epoch_min}: the topic was deleted and created again. Set failOnDataLoss to "
                "false to go on with what is there"
            )

    def _look(self, begun: Begun, hold_s: int) -> _Look:
        orders = {name: each for each in self.orders.values() for name in each.unread(begun.names)}
        answers = self._admin.ask_topics(
            "internalStats", orders, readHoldS=hold_s, countsMessages=self._counts_messages
        )
        look = _Look({}, [])
        for name, order in orders.items():
            topic = TopicName.parse(name)
            stats = answers.found.get(name)
            if stats is not None and "partitions" not in stats:
                look.states[name] = state_of(topic, stats)
                continue
            refusal = answers.refused.get(name)
            if refusal is not None and refusal.status != _NOT_FOUND:
                raise refusal
            # The log of a segment is created at its first use, or when it is sealed.
            is_sealed = order.is_sealed(name)
            look.states[name] = TopicState(
                name, topic.partition_index, is_there=topic.is_segment, has_ended=is_sealed
            )
            look.without_log.append(name)
        return look

    def _has_changed(self, without_log: Iterable[str]) -> bool:
        """Return whether a topic with a missing segment has another layout by now."""
        for topic in {TopicName.parse(name).partitioned for name in without_log}:
            known = self.orders[_shown(topic)]
            order = self._order(LayoutName.parse(known.name), known.epoch)
            if order is None or order.epoch > known.epoch:
                return True
        return False


def layout_of(name: LayoutName, record: Json) -> Layout:
    """Parse a layout from the administration interface.

    Raises:
        OptionError: the answer is not a layout.
    """
    try:
        segments = [_segment(name, each) for each in record["segments"].values()]
        return Layout(int(record["epoch"]), segments)
    except (LayoutError, TopicNameError, *_MALFORMED) as error:
        raise OptionError(
            "admin.url", f"it answers with no layout of {name}: is it a broker? ({error})"
        ) from None


def _segment(name: LayoutName, found: Json) -> Segment:
    number = int(found["segmentId"])
    start, end = int(found["hashRange"]["start"]), int(found["hashRange"]["end"])
    legacy = found.get("legacyTopicName")
    topic = name.whole.segment(number, start=start, end=end)
    return Segment(
        number,
        start,
        end,
        topic if legacy is None else TopicName.parse(legacy),
        is_sealed=found["state"] == "SEALED",
        parents=tuple(map(int, found["parentIds"])),
        is_legacy=legacy is not None,
    )


def _shown(topic: TopicName) -> str:
    return f"topic://{topic.namespace_name}/{topic.local_name}"


def _epoch_in(begun: Begun, name: LayoutName) -> int:
    return begun.epochs.get(str(name), 0)
