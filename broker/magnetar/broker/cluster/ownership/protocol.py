"""What the rest of the broker knows of ownership. Pure.

Ownership is a hint for routing: safety comes from fencing the topic's ledgers when it is loaded,
and from the compare-and-set of its ledger list. What it adds is that a broker which lost its place
stops by itself, before it hears of any fence, also for what no ledger guards: sending messages to
consumers, and answering their questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.wire import TopicName


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a lookup sends its client."""

    service_url: str
    """pulsar://host:port, of the listener that the client asked for."""
    is_self: bool
    http_url: str = ""
    """http://host:port; empty: not known."""
    service_url_tls: str = ""
    """pulsar+ssl://host:port; empty: there is none, or a listener was asked for by name."""
    http_url_tls: str = ""
    is_redirect: bool = False
    """The client asks again there; otherwise it connects there."""
    is_authoritative: bool = True
    """Of a redirect: the broker there takes the topic; otherwise it decides who does."""


class Destination(Protocol):
    """The broker that a topic moves to, as its clients are told."""

    def url_for(self, listener: str | None) -> str:
        """URL for clients of a listener; empty if they had better look it up.

        `listener`: the name that the client looked topics up by, empty for the default one; None:
        it has looked nothing up on its connection.
        """
        ...


class Tenure(Protocol):
    """The right to serve a topic. It ends by itself, and once ended it never holds again."""

    def holds(self) -> bool:
        """Whether it holds at this very moment, by the broker's own clock.

        To be asked once per batch, and right before anything leaves that only the owner may say:
        receipts, messages, answers. Does not wait. After a pause of the process, whichever path
        comes first finds out.
        """
        ...


class Ownership(Protocol):
    """Decides who serves a topic."""

    async def owner_of(
        self, topic: TopicName, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        """The owner, assigned now if there was none; or who knows better.

        `is_authoritative`: whoever sent the client here has chosen this broker. `listener`: the
        name of the addresses that the client can reach; empty: the default ones.

        Raises:
            NotAllowedError: there is no such listener.
            BrokerMetadataError: that cannot be told now.
        """
        ...

    @property
    def is_serving(self) -> bool:
        """Whether this broker may own anything at this moment, by its own clock."""
        ...

    async def acquire(self, topic: TopicName, *, timeout_s: float) -> Tenure:
        """Make sure, by a look at the store, that this broker owns the topic: before each load.

        Waits up to `timeout_s` for what may pass.

        Raises:
            ServiceNotReadyError: another broker does, or that cannot be told now.
        """
        ...

    async def alone_since_s(self, topic: TopicName) -> float | None:
        """Since when nobody but this broker can have served the topic, by the monotonic clock.

        None: it is not this broker's to look after. A topic that no broker owns is the leader's,
        from this moment on; loading it makes this broker its owner. Takes nothing.

        Raises:
            BrokerMetadataError: that cannot be told now.
        """
        ...


class TopicHolder(Protocol):
    """The topics of this broker, as ownership needs them; `TopicEnds` is one."""

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Topics that are loaded, being loaded or being closed here."""
        ...

    async def hand_over(
        self, names: Sequence[TopicName], destination: Destination | None, *, timeout_s: float
    ) -> None:
        """Close topics so that another owner opens them at once, and tell their clients where.

        Publishes under way are answered first. What is not closed in time is dropped: the next
        owner recovers it.
        """
        ...

    def drop(self, names: Sequence[TopicName], reason: str) -> None:
        """Stop serving at once: nothing more is written, answered or sent; clients look again."""
        ...
