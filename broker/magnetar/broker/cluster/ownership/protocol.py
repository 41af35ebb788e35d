"""Interface of ownership for the rest of the broker. Pure.

Ownership is a hint for routing. Safety comes from fencing the topic's ledgers when it is loaded,
and from the compare-and-set of its ledger list. In addition, a broker that lost its place stops by
itself, before it learns of any fence. That covers what no ledger guards: sending messages to
consumers, and answering their questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.wire import TopicName


@dataclass(frozen=True, slots=True)
class Owner:
    """Destination to which a lookup sends its client."""

    service_url: str
    """pulsar://host:port, of the listener that the client asked for."""
    is_self: bool
    http_url: str = ""
    """http://host:port; empty if unknown."""
    service_url_tls: str = ""
    """pulsar+ssl://host:port; empty if there is none, or the client named a listener."""
    http_url_tls: str = ""
    is_redirect: bool = False
    """Whether the client has to look up there again; otherwise it connects there."""
    is_authoritative: bool = True
    """For a redirect: whether the broker there takes the topic; otherwise it decides which broker
    does."""


class Destination(Protocol):
    """The broker to which a topic moves, with its URLs for clients."""

    def url_for(self, listener: str | None) -> str:
        """Return the URL for clients of a listener; empty if they should look the topic up.

        `listener`: the name under which the client looked topics up, empty for the default one;
        None if it has looked nothing up on its connection.
        """
        ...


class Tenure(Protocol):
    """The right to serve a topic. It ends by itself, and once ended it never holds again."""

    def holds(self) -> bool:
        """Whether it holds at this very moment, by the broker's own clock.

        To be called once per batch, and right before anything is sent that only the owner may send:
        receipts, messages, answers. Does not wait. After a pause of the process, the first caller
        notices the end.
        """
        ...


class Ownership(Protocol):
    """Decides who serves a topic."""

    async def owner_of(
        self, topic: TopicName, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        """Return the owner, assigned now if there was none, or a redirect to a broker that knows
        more.

        `is_authoritative`: the broker that sent the client here has chosen this one. `listener`:
        name of the addresses that the client can reach; empty for the default ones.

        Raises:
            NotAllowedError: there is no such listener.
            BrokerMetadataError: the owner cannot be found out now.
        """
        ...

    @property
    def is_serving(self) -> bool:
        """Whether this broker may own anything at this moment, by its own clock."""
        ...

    async def acquire(self, topic: TopicName, *, timeout_s: float) -> Tenure:
        """Make sure, by a read of the store, that this broker owns the topic. Call it before each
        load.

        Waits up to `timeout_s` for conditions that may pass.

        Raises:
            ServiceNotReadyError: another broker owns it, or the owner cannot be found out now.
        """
        ...

    async def alone_since_s(self, topic: TopicName) -> float | None:
        """Return since when only this broker can have served the topic, by the monotonic clock.

        None if another broker is responsible for the topic. A topic without an owner is the
        leader's responsibility, from this moment on; loading it makes this broker its owner. Takes
        no lease.

        Raises:
            BrokerMetadataError: the owner cannot be found out now.
        """
        ...


class TopicHolder(Protocol):
    """The topics of this broker, as ownership needs them; `TopicEnds` implements it."""

    def names_of(self, belongs: Callable[[TopicName], bool]) -> Sequence[TopicName]:
        """Return topics that are loaded, being loaded or being closed here."""
        ...

    async def hand_over(
        self, names: Sequence[TopicName], destination: Destination | None, *, timeout_s: float
    ) -> None:
        """Close topics so that another owner opens them at once, and send their clients there.

        Pending publishes are answered first. What is not closed in time is dropped: the next owner
        recovers it.
        """
        ...

    def drop(self, names: Sequence[TopicName], reason: str) -> None:
        """Stop serving at once: nothing more is written, answered or sent; clients look topics up
        again."""
        ...
