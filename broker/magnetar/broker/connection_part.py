"""A part of a connection: it knows the connection, and does not keep it alive.

A connection owns its parts. If they owned it in turn, each closed connection would be a circle,
which only a full garbage collection frees: a minute's worth of clients that connect and go would
lie in memory. So a part looks its connection up, and whatever may outlast the socket holds the
connection itself: the requests under way (`Connection.start`), producers with publishes under way
and consumers (as their `Peer`).
"""

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection


class ConnectionPart:
    """What one connection does of one kind."""

    def __init__(self, connection: "Connection") -> None:
        self._whole = weakref.ref(connection)

    @property
    def _connection(self) -> "Connection":
        """The connection that this is a part of; not for every message."""
        connection = self._whole()
        assert connection is not None, "the connection is gone, and its part is used"
        return connection
