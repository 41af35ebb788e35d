"""`make chaos CLUSTER=1 FAULTS=n SEED=n`: the drill of the cluster, one JSON line as its result.

usage: python -m tests.chaos.cluster [--times N] [--seed N] [--only NAME[,NAME]]
           [--zookeepers 1|3] [--network namespaces|proxies] [--dir DIR]
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import structlog

from tests.chaos.cluster.drill import Plan, run
from tests.chaos.cluster.faults import FAULTS
from tests.command_server import fork_servers_of_this_process

_IN_USER_NAMESPACE = "MAGNETAR_CHAOS_IN_USER_NAMESPACE"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20, help="how often each fault")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--only", default="", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--zookeepers", type=int, choices=[1, 3], default=3)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--autorecovery", type=int, default=1, help="processes; 0: none")
    parser.add_argument("--network", choices=["namespaces", "proxies"], default="")
    parser.add_argument("--dir", type=Path, help="keep all files here (default: temporary)")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name] or [
        name for name, fault in FAULTS.items() if fault.zookeepers_min <= arguments.zookeepers
    ]
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    _become_root_of_a_namespace(arguments.network)
    seed = random.SystemRandom().getrandbits(31) if arguments.seed is None else arguments.seed
    sys.stderr.write(
        f"seed {seed}; once more: make chaos CLUSTER=1 FAULTS={arguments.times} SEED={seed}\n"
    )
    plan = Plan(
        seed=seed,
        faults=dict.fromkeys(names, arguments.times),
        zookeepers=arguments.zookeepers,
        brokers=arguments.brokers,
        bookies=arguments.bookies,
        topics=arguments.topics,
        autorecovery=arguments.autorecovery,
        network=arguments.network,
    )
    fork_servers_of_this_process()
    # Whoever ends the drill ends all its processes.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    # What the drill's own ledger client says is of no interest.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-cluster-"))
    result = run(plan, directory)
    (directory / "result.json").write_text(json.dumps(result, indent=1))
    sys.stdout.write(json.dumps(result) + "\n")
    if not result["ok"]:
        sys.stderr.write(f"promises were broken; all files are in {directory}\n")
        return 1
    if arguments.dir is None:
        shutil.rmtree(directory)
    return 0


def _become_root_of_a_namespace(network: str) -> None:
    """Start over as root of a user namespace if the process is not root and may have one."""
    if network == "proxies" or os.geteuid() == 0 or _IN_USER_NAMESPACE in os.environ:
        return
    if shutil.which("unshare") is None:
        return
    os.environ[_IN_USER_NAMESPACE] = "1"
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    probe = os.spawnlp(os.P_WAIT, command[0], *command, "true")
    if probe == 0:
        os.execvp(
            command[0], [*command, sys.executable, "-m", "tests.chaos.cluster", *sys.argv[1:]]
        )


if __name__ == "__main__":
    sys.exit(main())
