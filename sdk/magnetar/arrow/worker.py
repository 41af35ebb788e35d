"""`python -m magnetar.arrow.worker FD`: reads slices for the process that started it.

Arrow imports pandas, if it is installed, as soon as it makes an array of a list, to check whether
the list is a pandas object. The import takes longer than reading a million rows, and the worker has
no use for pandas. The worker therefore hides it.
"""

import socket
import sys
from collections.abc import Sequence


class _WithoutPandas:
    """A module finder that runs before all others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Refuse to find pandas; leave all other modules to the next finder.

        Raises:
            ModuleNotFoundError: the module is pandas.
        """
        if name == "pandas":
            raise ModuleNotFoundError("workers do without pandas", name=name)


def do_without_pandas() -> None:
    """Hide pandas from all modules of this process."""
    sys.meta_path.insert(0, _WithoutPandas())


def main() -> None:
    """Serve the connection whose descriptor is the first argument."""
    do_without_pandas()
    from magnetar.arrow.worker_process import serve  # now, since it loads Arrow

    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
