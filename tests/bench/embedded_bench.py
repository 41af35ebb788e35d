"""Start and stop times of an embedded broker: `python -m tests.bench.embedded_bench`.

Medians of fresh processes: the import, the first start, and later ones. Wall time says how long a
test waits; processor time says what it costs, whatever other work the machine does.
"""

import json
import statistics
import subprocess
import sys
import time

from tests.processes import magnetar_environment

_PROCESSES = 3
_STARTS = 5


def measure() -> dict[str, float]:
    """Measure in this process, which has imported nothing yet."""
    at = _now()
    from magnetar.testing.broker import Broker

    figures = _since("import", at)
    later: list[dict[str, float]] = []
    for number in range(_STARTS):
        broker = Broker()
        at = _now()
        broker.start()
        figures_now = _since("first_start" if number == 0 else "start", at)
        at = _now()
        broker.stop()
        figures_now |= _since("stop", at)
        if number == 0:
            figures |= figures_now
        else:
            later.append(figures_now)
    for name in later[0]:
        figures[name] = statistics.median(each[name] for each in later)
    return figures


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(name: str, at: tuple[float, float]) -> dict[str, float]:
    wall_s, cpu_s = _now()
    return {f"{name}_s": wall_s - at[0], f"{name}_cpu_s": cpu_s - at[1]}


def main() -> None:
    if sys.argv[1:] == ["--inside"]:
        print(json.dumps(measure()))
        return
    rows = [
        json.loads(
            subprocess.run(
                [sys.executable, "-m", __spec__.name, "--inside"],
                env=magnetar_environment(),
                capture_output=True,
                check=True,
            ).stdout
        )
        for _ in range(_PROCESSES)
    ]
    medians = {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}
    print(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
