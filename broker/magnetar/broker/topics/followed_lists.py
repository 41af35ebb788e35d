"""Topic lists of watched namespaces, kept in memory by a watch each: persistent topics, or scalable
ones.

One list serves all watchers of a namespace, on any connection. It is read again after a change, at
most once per `topic_list_pause_ms`: topics may be created by the thousand.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NamespaceNotFoundError
from magnetar.broker.policies.records import Followed
from magnetar.broker.topics import topic_lists
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock

ListNames = Callable[[str], Awaitable[list[str]]]

Listener = Callable[[Sequence[str], Sequence[str]], None]
"""Called with the new topics and the deleted ones."""

_READS_AT_ONCE = 8
_TURN_S_MAX = 0.005
"""Longest time, in seconds, for listeners in one turn of the loop. The cost of one depends on the
names it knows."""


class FollowedList:
    """The topics of one namespace: full names, sorted, without the cluster's own."""

    def __init__(
        self,
        store: MetadataStore,
        namespace: str,
        list_names: ListNames,
        at_once: asyncio.Semaphore,
        clock: Clock,
        *,
        path: str,
        pause_s: float,
    ) -> None:
        self._namespace = namespace
        self._list_names = list_names
        self._clock = clock
        self._pause_s = pause_s
        self._read_s = clock.monotonic_s() - pause_s
        self._followed: Followed[list[str]] = Followed(
            store, path, self._read, self._changed, at_once
        )
        self._measured: list[str] = []
        """The names that `size_bytes` measured last."""
        self._size_bytes = 0
        self.listeners: dict[Listener, None] = {}
        self._untold: deque[tuple[deque[Listener], Sequence[str], Sequence[str]]] = deque()
        """Changes, the oldest first, each with the listeners that have not received it."""

    async def names(self) -> list[str]:
        """Return the names as they are now.

        Raises:
            BrokerMetadataError
        """
        return await self._followed.get()

    async def size_bytes(self) -> int:
        """Return about the bytes that the names take in a frame, as they are now. They are measured
        once for all watchers: nothing else runs meanwhile.

        Raises:
            BrokerMetadataError
        """
        names = await self.names()
        if names is not self._measured:
            self._measured, self._size_bytes = names, topic_lists.size_of(names)
        return self._size_bytes

    @property
    def known(self) -> list[str]:
        """Names as they were last read."""
        return self._followed.value or []

    async def _read(self) -> list[str]:
        left_s = self._read_s + self._pause_s - self._clock.monotonic_s()
        if left_s > 0:
            await asyncio.sleep(left_s)
        self._read_s = self._clock.monotonic_s()
        try:
            names = await self._list_names(self._namespace)
        except NamespaceNotFoundError:
            return []
        return [each for each in names if not naming.is_system_topic(each)]

    def _changed(self, before: list[str], after: list[str]) -> None:
        new, deleted = difference(before, after)
        self._untold.append((deque(self.listeners), new, deleted))
        if len(self._untold) == 1:
            self._tell()

    def _tell(self) -> None:
        """Call some of the listeners, and the others in later turns of the loop: there may be
        thousands.

        Each receives all changes in order.
        """
        if not self._untold:
            return
        listeners, new, deleted = self._untold[0]
        until_s = self._clock.monotonic_s() + _TURN_S_MAX
        try:
            while listeners:
                listener = listeners.popleft()
                if listener in self.listeners:
                    listener(new, deleted)
                if self._clock.monotonic_s() >= until_s:
                    break
        finally:
            if not listeners:
                self._untold.popleft()
            if self._untold:
                asyncio.get_running_loop().call_soon(self._tell)

    def close(self) -> None:
        self._untold.clear()
        self._followed.close()


def difference(before: Sequence[str], after: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the new names and the deleted ones, each sorted."""
    old, now = set(before), set(after)
    return sorted(now - old), sorted(old - now)


class FollowedLists:
    """The lists of all watched namespaces."""

    def __init__(
        self,
        store: MetadataStore,
        list_names: ListNames,
        clock: Clock,
        *,
        pause_ms: int,
        path_of: Callable[[str], str] = naming.topics_path,
    ) -> None:
        """Set up an empty collection of lists.

        Args:
            list_names: lists the topics of a namespace, like `Topics.names`.
            pause_ms: shortest time between two reads of a list.
            path_of: returns the path whose children are the listed topics of a namespace.
        """
        self._store = store
        self._list_names = list_names
        self._clock = clock
        self._pause_s = pause_ms / 1000
        self._path_of = path_of
        self._at_once = asyncio.Semaphore(_READS_AT_ONCE)
        self._lists: dict[str, FollowedList] = {}

    def join(self, namespace: str, listener: Listener) -> FollowedList:
        """Call a listener with the changes from now on."""
        followed = self._lists.get(namespace)
        if followed is None:
            followed = self._lists[namespace] = FollowedList(
                self._store,
                namespace,
                self._list_names,
                self._at_once,
                self._clock,
                path=self._path_of(namespace),
                pause_s=self._pause_s,
            )
        followed.listeners[listener] = None
        return followed

    def leave(self, namespace: str, listener: Listener) -> None:
        """Remove a listener, and a list without listeners."""
        followed = self._lists[namespace]
        del followed.listeners[listener]
        if not followed.listeners:
            del self._lists[namespace]
            followed.close()

    def __len__(self) -> int:
        """Return the number of watched namespaces."""
        return len(self._lists)
