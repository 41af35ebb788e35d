"""A process of moto's that keeps S3's word about conditional writes.

    python -m tests.moto_server HOST PORT

moto looks whether an object is there and stores it later, in threads: on a busy machine two writers
may both be told that they were first. S3 promises that one is.
"""

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class OneFirst:
    """Has conditional writes wait for each other."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._one = Lock()

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environment:
            return self._application(environment, start_response)
        with self._one:
            return list(self._application(environment, start_response))


def main() -> None:
    """The command."""
    host, port = sys.argv[1], int(sys.argv[2])
    application = DomainDispatcherApplication(create_backend_app)
    run_simple(host, port, OneFirst(application), threaded=True)


if __name__ == "__main__":
    main()
