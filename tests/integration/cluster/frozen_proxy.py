"""A TCP proxy that can stop letting anything through, as a network that is cut does."""

import socket
import threading
from types import TracebackType

from tests.processes import HOST, free_ports

_CHUNK = 1 << 16


class FrozenProxy:
    """Passes connections on to a port of this host; a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        (self.port,) = free_ports(1)
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server((HOST, self.port))
        self._open: list[socket.socket] = []

    def __enter__(self) -> "FrozenProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._flows.set()
        self._listener.close()
        for each in self._open:
            each.close()

    def freeze(self) -> None:
        """Let nothing through, both ways; connections stay as they are."""
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
                outer = socket.create_connection((HOST, self._target_port))
            except OSError:
                return
            self._open += [inner, outer]
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK):
                self._flows.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()
