"""The bound on unpersisted publishes of the whole broker.

Producers have no credit in this protocol: the only brake is to stop reading their sockets. Each
connection has limits of its own; this one bounds what all of them together may hold in memory.
"""

from typing import Protocol


class Pausable(Protocol):
    """A connection that can be told to go on reading."""

    def resume_publishing(self) -> None: ...


class PublishBudget:
    """Counts unpersisted bytes; remembers who waits until half of the budget is free again."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.pending_bytes = 0
        # A dict keeps the order of arrival; a set's order would differ from run to run.
        self._waiting: dict[Pausable, None] = {}

    @property
    def is_exhausted(self) -> bool:
        return self.pending_bytes >= self.bytes_max

    def take(self, size_bytes: int) -> None:
        self.pending_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Return bytes; at half of the budget everybody who waits goes on."""
        self.pending_bytes -= size_bytes
        assert self.pending_bytes >= 0
        if self._waiting and self.pending_bytes * 2 <= self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.resume_publishing()

    def wait(self, connection: Pausable) -> None:
        """Have the connection resumed when there is room."""
        self._waiting[connection] = None

    def forget(self, connection: Pausable) -> None:
        self._waiting.pop(connection, None)
