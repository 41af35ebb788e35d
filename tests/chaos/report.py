"""What the commands of all drills do around a run: a directory, a JSON line, an exit status."""

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def seed_of(wanted: int | None) -> int:
    """Return the seed that was asked for, or a new one."""
    return random.SystemRandom().getrandbits(31) if wanted is None else wanted


def run_and_report(
    run: Callable[[Path], Mapping[str, object]], directory: Path | None, *, name: str
) -> int:
    """Run a drill, print its result, and return the exit status of the command.

    Args:
        run: gets a directory for its files; its result has `ok`.
        directory: where the files are kept; None: in a temporary one, which stays if promises were
            broken.
        name: of the drill, for the temporary directory.
    """
    files = directory or Path(tempfile.mkdtemp(prefix=f"magnetar-{name}-"))
    result = run(files)
    sys.stdout.write(json.dumps(result) + "\n")
    if not result["ok"]:
        sys.stderr.write(f"promises were broken; all files are in {files}\n")
        return 1
    if directory is None:
        shutil.rmtree(files)
    return 0
