"""Entry point of the `magnetar` command, before the slow imports.

The first process of a container gets only signals that it has a handler for. Without one, a SIGTERM
during the half second of imports would be lost, and the container killed when its grace period
ends. A process started without standard streams gets some before it opens a file.
"""

import os
import signal
import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import typer

_MISSING_STATUS = 9
"""Exit status of `MissingProgramError`, whose module cannot be imported here."""


def main() -> None:
    """Entry point of the `magnetar` command."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
    from magnetar.deploy.standard_error import fill_standard_descriptors

    fill_standard_descriptors()
    _run()


def _run() -> None:
    try:
        from magnetar.deploy.cli import app, run_app
        from magnetar.deploy.help_layout import command_of
    except ModuleNotFoundError as error:
        if (error.name or "magnetar").partition(".")[0] == "magnetar":
            raise
        sys.stderr.write(
            f"magnetar: the command needs the package {error.name}, which a client does without: "
            "pip install 'magnetar[server]'\n"
        )
        sys.exit(_MISSING_STATUS)
    # Only the command runs: calling the application would lay out its help pages anew.
    run_app(cast("typer.Typer", command_of(app)))


def _end(number: int, _: object) -> None:
    # When all is imported, a server has its own handlers; until then nothing was begun.
    os._exit(128 + number)


if __name__ == "__main__":
    main()
