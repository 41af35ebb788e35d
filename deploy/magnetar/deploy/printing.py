"""Output of commands on stdout: lines, JSON, times."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def print_json(value: object, *, indent: int | None = None) -> None:
    """Print a value as JSON, on one line unless it is indented."""
    say(json.dumps(value, indent=indent))


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print a line for each name and value, with the values aligned."""
    width = max(map(len, pairs), default=0) + 2
    for name, value in pairs.items():
        say(f"{name:<{width}}{value}")


def time_in_words(milliseconds: int) -> str:
    """Return a time in ms since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
