"""Where the `magnetar` command begins, before anything that takes time to import.

The first process of a container is sent no signal that it has no handler for: a SIGTERM while half
a second of imports runs would be lost, and the container killed when its grace is over. A process
that was started without standard streams gets some before anything opens a file.
"""

import os
import signal


def main() -> None:
    """Entry point of the `magnetar` command."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
    from magnetar.deploy.standard_error import fill_standard_descriptors

    fill_standard_descriptors()
    from magnetar.deploy.cli import main as run

    run()


def _end(number: int, _: object) -> None:
    # A server has its own handlers when all is imported; until then nothing was begun.
    os._exit(128 + number)


if __name__ == "__main__":
    main()
