"""A moto process that keeps S3's promise about conditional writes.

    python -m tests.moto_server HOST PORT

moto checks whether an object exists and stores it later, in threads: on a busy machine it may tell
two writers that each was first. S3 promises that one is.
"""

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class OneFirst:
    """Serializes conditional writes."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._one = Lock()

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environment:
            return self._application(environment, start_response)
        with self._one:
            return list(self._application(environment, start_response))


def main() -> None:
    """Run the command."""
    host, port = sys.argv[1], int(sys.argv[2])
    application = DomainDispatcherApplication(create_backend_app)
    run_simple(host, port, OneFirst(application), threaded=True)


if __name__ == "__main__":
    main()
