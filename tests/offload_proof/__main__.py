"""`make offload-proof BYTES=n STORE=s3`: the proof of tiered storage, with one JSON line as result.

usage: python -m tests.offload_proof [--bytes N] [--store s3|directory] [--dir DIR]
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.offload_proof.proof import Plan, run
from tests.offload_proof.stores import STORES


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="of all payloads")
    parser.add_argument("--store", choices=sorted(STORES), default="s3")
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    arguments = parser.parse_args()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-offload-proof-"))
    result = run(Plan(arguments.bytes, arguments.store), directory)
    sys.stdout.write(json.dumps(result) + "\n")
    if not result["ok"]:
        sys.stderr.write(f"promises were broken; all files are in {directory}\n")
        return 1
    if arguments.dir is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
