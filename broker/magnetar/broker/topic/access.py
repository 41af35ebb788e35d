"""Admit producers to a topic: access modes, the topic's epoch, and producers that reconnect.

*Shared*: any number, unless a producer has exclusive access or waits for it. *Exclusive*: one, if
the topic has no other producer. *WaitForExclusive*: one, after waiting in a queue.
*ExclusiveWithFencing*: one; all others are disconnected. Each exclusive access raises the epoch,
durably before the producer learns of it. If a producer reconnects with a lower epoch, another
producer had the topic in between, and it is fenced for good.

A name has one producer. A producer that reconnects under its name replaces its former self: on the
same connection if its own epoch is higher, on another one if the former connection is dead.

Source: protocol sheet, section 7.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ProducerBusyError,
    ProducerFencedError,
    RequestError,
    ServiceNotReadyError,
)
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import admission
from magnetar.broker.topic.peer import probe
from magnetar.broker.topic.producer import Producer, ProducerPeer
from magnetar.ledger.errors import LogClosedError, LogFencedError, MetadataError
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire.pulsar_pb2 import ProducerAccessMode

if TYPE_CHECKING:
    from magnetar.broker.topic.publish_line import PublishLine
    from magnetar.broker.topic.surroundings import TopicLog
    from magnetar.broker.topic.use import TopicUse

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
"""Property of the topic's log with its epoch: 0 at the first exclusive access, then one more each
time."""

EPOCH_MAX: Final = (1 << 63) - 1

SHARED: Final = ProducerAccessMode.Shared
EXCLUSIVE: Final = ProducerAccessMode.Exclusive
WAIT: Final = ProducerAccessMode.WaitForExclusive
FENCING: Final = ProducerAccessMode.ExclusiveWithFencing


def _not_told(_cancel: Callable[[], None]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Access:
    """Access that a producer requests."""

    mode: ProducerAccessMode = SHARED
    topic_epoch: int | None = None
    """Topic epoch that the producer was given earlier."""
    is_encrypted: bool = False
    """Whether the producer declares that it encrypts its messages."""
    on_queued: Callable[[Callable[[], None]], None] = _not_told
    """Called once if the producer must wait, with a function that cancels the wait."""


SHARED_ACCESS: Final = Access()


class _Claim:
    """A producer that is about to get exclusive access, or waits for it."""

    __slots__ = ("is_fenced", "ready")

    def __init__(self) -> None:
        self.is_fenced = False
        self.ready: asyncio.Future[None] | None = None
        """Done when it is the turn of a claim that waits; None if the claim does not wait."""


class ProducedTopic(Protocol):
    """Interface of a topic for admitting producers."""

    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> "TopicLog": ...

    @property
    def line(self) -> "PublishLine": ...

    @property
    def policies(self) -> Policies: ...

    @property
    def producers(self) -> dict[str, Producer]: ...

    @property
    def use(self) -> "TopicUse": ...

    @property
    def is_closed(self) -> bool: ...


class ProducerAccess:
    """Admits producers to one topic."""

    def __init__(self, topic: ProducedTopic, *, waiting_max: int) -> None:
        self._topic = topic
        self._waiting_max = waiting_max
        self._holder: Producer | _Claim | None = None
        """Producer that has exclusive access, or is about to get it."""
        self._waiting: list[_Claim] = []
        """Claims in order of arrival. A list: every topic has one, it is short, and an empty deque
        takes 760 bytes."""

    @property
    def holder(self) -> Producer | None:
        """Producer with exclusive access."""
        return self._holder if isinstance(self._holder, Producer) else None

    @property
    def waiting(self) -> int:
        """Number of producers that wait for exclusive access."""
        return len(self._waiting)

    @property
    def epoch(self) -> int | None:
        """Epoch of the topic, one more with each exclusive access, from 0; None if there was none.

        Raises:
            BrokerMetadataError: the stored value is not a number.
        """
        text = self._topic.log.properties.get(EPOCH_PROPERTY)
        if text is None:
            return None
        if not text.isdecimal():
            raise BrokerMetadataError(
                f"{self._topic.name}: the property {EPOCH_PROPERTY} is {text!r}, not a number"
            )
        return int(text)

    # Joining

    async def admit(self, peer: ProducerPeer, name: str) -> None:
        """Refuse a producer if the topic has reached its limit; dead connections do not count.

        Raises:
            ProducerBusyError
        """
        try:
            self._check_number(name)
        except ProducerBusyError:
            others = [each for each in self._topic.producers.values() if each.name != name]
            dead = await probe((each.peer for each in others), but=peer)
            for each in others:
                if each.peer in dead:
                    each.close()  # It may not have left yet.
            self._check_number(name)

    def _check_number(self, name: str) -> None:
        """Refuse a producer of that name if the topic has reached its limit.

        Raises:
            ProducerBusyError
        """
        producers = self._topic.producers
        others = len(producers) - (name in producers)
        admission.check_producers(str(self._topic.name), self._topic.policies, others)

    follows: Final = frozenset({"encryption_required"})
    """Policies whose changes call `policies_changed`."""

    def policies_changed(self) -> None:
        """Disconnect producers that do not encrypt, if the topic now requires encryption."""
        if self._topic.policies.encryption_required:
            for producer in list(self._topic.producers.values()):
                if not producer.is_encrypted:
                    producer.close_by_broker()

    async def join(
        self, peer: ProducerPeer, producer_id: int, *, name: str, epoch: int, access: Access
    ) -> Producer:
        """Admit a producer, after waiting if need be.

        Raises:
            ProducerBusyError: the name is taken, the topic is full, or another producer has
                exclusive access.
            ProducerFencedError: exclusive access is impossible, or was lost to another producer.
            ServiceNotReadyError: the topic was closed meanwhile.
            TopicTerminatedError: the topic takes no more messages.
            BrokerMetadataError: the epoch cannot be stored now, or the topic requires encryption.
        """
        line = self._topic.line
        await line.end_decided()
        line.check_not_terminated()
        line.check_encryption(is_encrypted=access.is_encrypted)
        make = partial(
            Producer,
            peer,
            producer_id,
            line=line,
            on_closed=self._left,
            name=name,
            epoch=epoch,
            is_encrypted=access.is_encrypted,
        )
        if access.mode == SHARED:
            await self._wait_for_name(peer, producer_id, name, epoch)
            self._check_shared(name)
            return self._let_in(make())
        if access.mode != FENCING:
            await self._wait_for_name(peer, producer_id, name, epoch)
        claim = _Claim()
        try:
            await self._claim(claim, access)
            topic_epoch = await self._raise_epoch(claim, access.topic_epoch)
            await line.settled(name)
            self._check(claim)
            producer = make()
            producer.topic_epoch = topic_epoch
            producer.access_mode = access.mode
            self._let_in(producer)
        except BaseException:
            self._give_up(claim)
            raise
        self._holder = producer
        return producer

    def _let_in(self, producer: Producer) -> Producer:
        topic = self._topic
        if topic.is_closed:
            raise ServiceNotReadyError(f"{topic.name} is closing")
        topic.line.check_not_terminated()
        topic.line.check_encryption(is_encrypted=producer.is_encrypted)
        self._check_number(producer.name)
        topic.producers[producer.name] = producer
        topic.use.joined += 1
        if not producer.epoch:
            # The first message then does not wait for metadata. Not for producers that reconnect:
            # after thousands of topics moved, few of them may be about to publish.
            topic.log.prepare()
        return producer

    async def _wait_for_name(
        self, peer: ProducerPeer, producer_id: int, name: str, epoch: int
    ) -> None:
        """Close the producer's former self, and wait until the outcome of its messages is known.

        Also returns if another live producer has the name.
        """
        producers = self._topic.producers
        while True:
            former = producers.get(name)
            if former is None:
                await self._topic.line.settled(name)
                if name not in producers:
                    return
            elif former.peer is peer:
                if former.producer_id != producer_id or former.epoch >= epoch:
                    return
                former.close()
            elif not await former.peer.is_alive():
                # Now, not in its turn: a lost connection has a few of its producers leave per turn
                # of the event loop, and probing it again may not let another turn begin.
                former.close()
            elif producers.get(name) is former:
                return

    def _check_shared(self, name: str) -> None:
        topic = self._topic
        if self._holder is not None or self._waiting:
            holder = self.holder
            who = "waits for" if holder is None else f"named {holder.name} has"
            raise ProducerBusyError(f"a producer {who} exclusive access to {topic.name}")
        other = topic.producers.get(name)
        if other is not None:
            raise ProducerBusyError(
                f"{topic.name} has a producer named {name} at {other.peer.address}"
            )

    async def _claim(self, claim: _Claim, access: Access) -> None:
        """Reserve the topic for the claim, at once or when its turn comes."""
        topic = self._topic
        self._check_epoch(access.topic_epoch)
        if access.mode == EXCLUSIVE:
            # A refusal is final, and producers of a lost connection may not have left yet.
            for producer in [each for each in topic.producers.values() if each.peer.is_closed]:
                producer.close()
        is_taken = self._holder is not None or bool(topic.producers) or bool(self._waiting)
        if not is_taken:
            self._holder = claim
        elif access.mode == EXCLUSIVE:
            raise ProducerFencedError(
                f"{topic.name} has {len(topic.producers)} producers and {len(self._waiting)} "
                "waiting ones: no producer can get exclusive access"
            )
        elif access.mode == FENCING:
            self._fence_others(claim)
        else:
            await self._wait(claim, access)

    async def _wait(self, claim: _Claim, access: Access) -> None:
        if len(self._waiting) >= self._waiting_max:
            raise ProducerBusyError(
                f"{len(self._waiting)} producers wait for {self._topic.name}, which is the limit"
            )
        ready = claim.ready = asyncio.get_running_loop().create_future()
        self._waiting.append(claim)

        def cancel() -> None:
            ready.cancel()

        access.on_queued(cancel)
        await ready

    def _fence_others(self, claim: _Claim) -> None:
        waiting, self._waiting = self._waiting, []
        self._fail(waiting, ProducerFencedError(f"another producer took {self._topic.name}"))
        if isinstance(self._holder, _Claim):
            self._holder.is_fenced = True
        self._holder = claim
        for producer in list(self._topic.producers.values()):
            producer.close_by_broker()

    def _check(self, claim: _Claim) -> None:
        if claim.is_fenced:
            raise ProducerFencedError(f"another producer took {self._topic.name}")

    def _check_epoch(self, known: int | None) -> None:
        current = self.epoch
        if known is not None and current is not None and known < current:
            raise ProducerFencedError(
                f"another producer had {self._topic.name} meanwhile: the topic's epoch is "
                f"{current}, this producer's is {known}"
            )

    async def _raise_epoch(self, claim: _Claim, known: int | None) -> int:
        """Return the durable epoch of the claim: its own if the producer reconnects, else the next
        one."""
        self._check_epoch(known)
        topic, current = self._topic, self.epoch
        epoch = known
        if epoch is None:
            epoch = 0 if current is None else current + 1
        if epoch > EPOCH_MAX:
            raise BrokerMetadataError(f"{topic.name}: an epoch of {epoch} is beyond {EPOCH_MAX}")
        if epoch != current:
            try:
                await topic.log.update_properties({EPOCH_PROPERTY: str(epoch)})
            except (LogFencedError, LogClosedError) as error:
                raise ServiceNotReadyError(f"{topic.name} is closing: {error}") from error
            except MetadataError as error:
                raise BrokerMetadataError(
                    f"{topic.name}: its epoch cannot be stored: {error}"
                ) from error
            self._check(claim)
        return epoch

    # Leaving

    def _left(self, producer: Producer) -> None:
        """Remove a producer that has left."""
        producers = self._topic.producers
        if producers.get(producer.name) is producer:
            del producers[producer.name]
        if self._holder is producer:
            self._holder = None
        self._promote()

    def _give_up(self, claim: _Claim) -> None:
        if claim in self._waiting:
            self._waiting.remove(claim)
        if self._holder is claim:
            self._holder = None
        self._promote()

    def _promote(self) -> None:
        """Give a free topic to the claim that waits longest."""
        while self._waiting and self._holder is None and not self._topic.producers:
            claim = self._waiting.pop(0)
            assert claim.ready is not None
            if not claim.ready.done():
                self._holder = claim
                claim.ready.set_result(None)

    def close(self) -> None:
        """Refuse the waiting producers because the topic is closed; their clients retry."""
        waiting, self._waiting = self._waiting, []
        self._fail(waiting, ServiceNotReadyError(f"{self._topic.name} is closing"))

    @staticmethod
    def _fail(waiting: list[_Claim], error: RequestError) -> None:
        for claim in waiting:
            if claim.ready is not None and not claim.ready.done():
                claim.ready.set_exception(error)
