"""`python -m magnetar.arrow.worker FD`: reads slices for the process that has started it."""

import socket
import sys

from magnetar.arrow.worker_process import serve


def main() -> None:
    """Serve the connection whose descriptor is the first argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
