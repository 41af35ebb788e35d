"""`make chaos ROLLING=1`: the drill of a rolling upgrade, with one JSON line as its result.

usage: python -m tests.chaos.rolling [--dir DIR]
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.chaos.report import run_and_report
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
    try:
        return run_and_report(_run, arguments.dir, name="rolling")
    except NoHistoryError as error:
        sys.stderr.write(f"not run: {error}\n")
        return _NOT_RUN


def _run(directory: Path) -> dict[str, object]:
    result = run(directory)
    (directory / "result.json").write_text(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    sys.exit(main())
