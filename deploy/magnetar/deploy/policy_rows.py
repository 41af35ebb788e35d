"""Policies as `magnetar admin` names them: their HTTP paths, and the units of their values.

The rows are those of the broker's table (`magnetar.broker.policies.table`). Importing the table
takes longer than a command runs, so the rows are read from `policy_rows.json`, which `python -m
tests.policy_rows` writes from the table.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.quantities import (
    DURATION_HELP,
    SIZE_HELP,
    parse_duration_ms,
    parse_size_bytes,
)

Kind = Literal["namespace", "topic"]
Unit = Literal["", "ms", "s", "min", "bytes", "MB"]

FILE = Path(__file__).with_suffix(".json")

_FACTORS: Mapping[Unit, int] = {"ms": 1, "s": 1_000, "min": 60_000, "bytes": 1, "MB": 1 << 20}
_UNLIMITED = "-1"


@dataclass(frozen=True, slots=True)
class Part:
    """An option of a policy that has parts."""

    name: str
    """Name on the command line, without dashes."""
    field: str
    """Field of the JSON object that is sent."""
    help: str
    unit: Unit = ""
    default: object = None
    """Default value; None: the option is required."""

    @property
    def metavar(self) -> str:
        """Placeholder for the value in a help page."""
        if self.unit in ("ms", "s", "min"):
            return "DURATION"
        return "SIZE" if self.unit else "VALUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy."""

    namespace: str = ""
    """Last part of the path for a namespace; "": only topics have the policy."""
    topic: str = ""
    """Last part of the path for a topic; "": only namespaces have the policy."""
    namespace_verb: str = "POST"
    topic_query: str = ""
    """Part of the query that carries the value for a topic, instead of a body."""
    unit: Unit = ""
    """Unit of a value that is a number."""
    parts: tuple[Part, ...] = ()

    def path(self, kind: Kind) -> str:
        """Return the last part of the path."""
        return self.namespace if kind == "namespace" else self.topic


BACKLOG_QUOTA = Row(
    parts=(
        Part(
            "limit",
            "limitSize",
            "Bytes of a backlog, with --type destination_storage.",
            "bytes",
            -1,
        ),
        Part("limit-time", "limitTime", "Age of a backlog, with --type message_age.", "s", -1),
        Part(
            "policy",
            "policy",
            "producer_request_hold, producer_exception or consumer_backlog_eviction.",
        ),
    )
)
"""The backlog quota, whose routes have a form of their own: one quota of each type can be set."""


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return all policies with routes of the usual form, in the order of the broker's table."""
    return tuple(
        Row(**{**each, "parts": tuple(Part(**part) for part in each.get("parts", ()))})
        for each in json.loads(FILE.read_text())
    )


def names_of(kind: Kind) -> dict[str, Row]:
    """Return the rows by the names of their commands."""
    known = {_kebab(each.path(kind)): each for each in rows() if each.path(kind)}
    return {**known, "backlog-quota": BACKLOG_QUOTA}


def _kebab(name: str) -> str:
    """Convert a camel-case name: maxProducersPerTopic becomes max-producers-per-topic, messageTTL
    message-ttl."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def value_of(row: Row, text: str) -> object:
    """Parse the one argument that holds the whole value of a policy: JSON, or a number with a unit.

    Raises:
        SettingsError: the text is neither.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        if row.unit:
            found = _in_unit(text, row.unit)
            if found is not None:
                return found
        raise SettingsError(f"bad value {text!r}: give {value_help(row)}") from error


def value_help(row: Row) -> str:
    """Return the form of a policy's value, for help and errors."""
    if row.unit in ("ms", "s", "min"):
        return f"a duration, as {DURATION_HELP}; or a number of {row.unit}"
    if row.unit:
        return f"a size, as {SIZE_HELP}; or a number of {row.unit}"
    return "JSON, as 60, true or {...}"


def part_of(part: Part, text: str) -> object:
    """Parse the value of an option.

    Raises:
        SettingsError: the text is not a value of the option's unit.
    """
    if part.unit:
        found = -1 if text == _UNLIMITED else _in_unit(text, part.unit)
        if found is None:
            is_time = part.unit in ("ms", "s", "min")
            forms = f"a duration, as {DURATION_HELP}" if is_time else f"a size, as {SIZE_HELP}"
            raise SettingsError(f"bad --{part.name} {text!r}: give {forms}")
        return found
    try:
        return json.loads(text)
    except ValueError:
        return text


def _in_unit(text: str, unit: Unit) -> int | None:
    """Return a duration or size as a whole number of units; None if it is not one."""
    is_time = unit in ("ms", "s", "min")
    found = parse_duration_ms(text) if is_time else parse_size_bytes(text)
    if found is None or found % _FACTORS[unit]:
        return None
    return found // _FACTORS[unit]
