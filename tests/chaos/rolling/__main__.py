"""`make chaos ROLLING=1`: the drill of a rolling upgrade, with one JSON line as its result.

usage: python -m tests.chaos.rolling [--dir DIR]
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.rolling.drill import run
from tests.chaos.rolling.older import NoHistoryError

_NOT_RUN = 2


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    arguments = parser.parse_args()
    # Whoever ends the drill ends all its processes.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-rolling-"))
    try:
        result = run(directory)
    except NoHistoryError as error:
        sys.stderr.write(f"not run: {error}\n")
        return _NOT_RUN
    (directory / "result.json").write_text(json.dumps(result, indent=1))
    sys.stdout.write(json.dumps(result) + "\n")
    if not result["ok"]:
        sys.stderr.write(f"promises were broken; all files are in {directory}\n")
        return 1
    if arguments.dir is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
