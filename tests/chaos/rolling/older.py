"""The older code that a cluster is upgraded from: a commit of this repository, run by this Python.

There is no release yet. The commit below is the first one with all parts of a cluster, with
transactions, schemas and policies. What is stored has changed since: sealed cookies, passwords of
ledgers, message indexes.
"""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from tests.archives import unpack
from tests.processes import COMPONENTS, ROOT

COMMIT = "0c0662fe5b7d49c16cdc82db9784153e8ab55dc8"
_PROBE = "import magnetar.{0} as part; print(part.__file__)"


class NoHistoryError(Exception):
    """The older code cannot be had here."""


class Older:
    """The older code below a directory. `prefix` has a Python command use it."""

    def __init__(self, directory: Path, *, commit: str = COMMIT, repository: Path = ROOT) -> None:
        """Take the code out of the repository.

        Raises:
            NoHistoryError: there is no such commit, or no git.
        """
        command = ["git", "archive", "--format=tar", commit, "--", *COMPONENTS]
        try:
            ran = subprocess.run(command, cwd=repository, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            raise NoHistoryError(
                f"the older code is commit {commit}, which git does not have here "
                f"({said.decode(errors='replace').strip()}). This drill needs a clone of the "
                "repository with its history: no source archive, and no shallow clone"
            ) from error
        with tarfile.open(fileobj=BytesIO(ran.stdout)) as archive:
            unpack(archive, directory)
        roots = [str(directory / component) for component in COMPONENTS]
        self.prefix = ["env", f"PYTHONPATH={os.pathsep.join(roots)}"]
        self._directory = directory

    def check(self) -> None:
        """Make sure that servers run the older code, and not that of the working tree.

        Raises:
            NoHistoryError: they do not, or it does not start with the packages that are there.
        """
        for component in COMPONENTS:
            command = [*self.prefix, sys.executable, "-c", _PROBE.format(component)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if not ran.stdout.startswith(str(self._directory)):
                raise NoHistoryError(
                    f"magnetar.{component} of the older code cannot be used here: "
                    f"{ran.stdout.strip() or ran.stderr.strip()}"
                )
