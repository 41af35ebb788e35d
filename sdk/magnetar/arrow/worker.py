"""`python -m magnetar.arrow.worker FD`: reads slices for the process that has started it.

Arrow loads pandas, where there is one, as soon as it makes an array of a list: to ask whether the
list is pandas'. That takes longer than to read a million rows, in a process that has no use for
pandas. So there is none here.
"""

import socket
import sys
from collections.abc import Sequence


class _WithoutPandas:
    """A finder of modules, asked before all others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """
        Raises:
            ModuleNotFoundError: it is pandas. All else is looked for further on.
        """
        if name == "pandas":
            raise ModuleNotFoundError("workers do without pandas", name=name)


def do_without_pandas() -> None:
    """Let no module of this process find pandas."""
    sys.meta_path.insert(0, _WithoutPandas())


def main() -> None:
    """Serve the connection whose descriptor is the first argument."""
    do_without_pandas()
    from magnetar.arrow.worker_process import serve  # now, since it loads Arrow

    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
