"""HTTP servers in the place of a misbehaving broker: they answer every request alike."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.processes import HOST


@contextmanager
def answering(
    port: int,
    status: int = 200,
    location: str = "",
    waits_for: threading.Event | None = None,
    body: bytes = b"{}",
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[list[str]]:
    """Answer every request with `body`, with an error, or with a redirect to `location`.

    Yields the list of requested paths. `waits_for`: answer only when it is set. `certificate`:
    serve TLS with this certificate and its key.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.path)
            if waits_for is not None:
                waits_for.wait()
            self.send_response(307 if location else status)
            self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, port), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()
