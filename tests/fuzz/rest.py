"""`python -m tests.fuzz.rest [--examples N] [--seconds S] [--seed N] [--url URL]`

Schemathesis over the description of the HTTP interface: requests that fit it and others, against a
server of its own or the one at URL. No answer is a 5xx, none is missing. As part of `make test` a
share of all operations is asked, once each.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core.result import Ok

from tests.standalone import Standalone

TIMEOUT_S = 30.0
LEFT_OUT = ("/admin/v2/brokers/shutdown",)


@dataclass
class Result:
    """What came of it."""

    operations: int = 0
    requests: int = 0
    findings: list[str] = field(default_factory=list)


def operations_of(url: str) -> Sequence[Any]:
    """All operations that the server describes, but what would end it."""
    description = schemathesis.openapi.from_url(f"{url}/openapi.json")
    every = list(description.get_all_operations())
    usable = [each.ok() for each in every if isinstance(each, Ok)]
    assert len(usable) == len(every), "the description has operations that make no sense"
    return [each for each in usable if each.path not in LEFT_OUT]


def fuzz(
    url: str, operations: Sequence[Any], *, examples: int, seconds: float, first_seed: int
) -> Result:
    """Ask so many requests of each operation, as long as there is time."""
    result = Result()
    until = time.monotonic() + seconds
    for operation in operations:
        if time.monotonic() > until:
            break
        result.operations += 1
        _ask(url, operation, examples, first_seed, result)
    return result


def _ask(url: str, operation: Any, examples: int, first_seed: int, result: Result) -> None:
    @seed(first_seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        result.requests += 1
        answer = case.call(base_url=url, timeout=TIMEOUT_S)
        if answer.status_code >= 500:
            result.findings.append(
                f"{case.method} {case.formatted_path} {case.query} {case.body!r:.200}: "
                f"{answer.status_code} {answer.text[:200]}"
            )

    one()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20, help="requests of each operation")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="time for all of it")
    parser.add_argument("--seed", type=int, help="default: a new one, printed")
    parser.add_argument("--url", default="", help="a server that runs; default: one of its own")
    given_arguments = parser.parse_args()
    first = given_arguments.seed
    if first is None:
        first = random.SystemRandom().getrandbits(31)
    sys.stdout.write(f"seed {first}\n")
    with tempfile.TemporaryDirectory() as directory:
        server = Standalone(Path(directory) / "data")
        try:
            if not given_arguments.url:
                server.start()
            url = given_arguments.url or server.http_url
            result = fuzz(
                url,
                operations_of(url),
                examples=given_arguments.examples,
                seconds=given_arguments.seconds,
                first_seed=first,
            )
        finally:
            server.__exit__(None, None, None)
    sys.stdout.write(
        f"{result.requests} requests of {result.operations} operations, "
        f"{len(result.findings)} findings\n"
    )
    sys.stdout.writelines(f"{each}\n" for each in result.findings)
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
