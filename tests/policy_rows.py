"""Generates the file of policies for the command line from the broker's table.

usage: python -m tests.policy_rows     # writes deploy/magnetar/deploy/policy_rows.json

A row has the names and verbs of the table. The unit of a number is the end of its field's name. The
parts of a value are the fields with a `CommandOption` in its class. Default values are left out.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from magnetar.broker.policies.model import CommandOption, Policies, PolicyValue
from magnetar.broker.policies.table import POLICIES, Policy
from magnetar.deploy.policy_rows import FILE, Part, Row

_UNITS = {"ms": "ms", "s": "s", "minutes": "min", "bytes": "bytes", "mib": "MB"}


def text() -> str:
    """Return the expected content of the file: a line per policy."""
    rows = [json.dumps(_row(each)) for each in POLICIES if each.namespace or each.topic]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _row(policy: Policy) -> dict[str, Any]:
    row = {
        "namespace": policy.namespace,
        "topic": policy.topic,
        "namespace_verb": policy.namespace_verb,
        "topic_query": policy.topic_query,
        "unit": _unit(policy.field),
        "parts": list(_parts(policy)),
    }
    return _unusual(row, Row())


def _parts(policy: Policy) -> Iterator[dict[str, Any]]:
    kind = Policies.model_fields[policy.field].annotation if policy.is_of_topics else None
    if not isinstance(kind, type) or not issubclass(kind, PolicyValue):
        return
    for name, field in kind.model_fields.items():
        for option in field.metadata:
            if isinstance(option, CommandOption):
                part = {
                    "name": option.name,
                    "field": field.serialization_alias,
                    "help": option.help,
                    "unit": _unit(name),
                    "default": None if option.is_required else field.default,
                }
                yield _unusual(part, Part("", "", ""))


def _unit(field: str) -> str:
    """Return the unit of a field's number, by the field's name; "": a plain number."""
    return _UNITS.get(field.rpartition("_")[2], "")


def _unusual(values: Mapping[str, Any], usual: Row | Part) -> dict[str, Any]:
    """Return the values that differ from the defaults."""
    return {name: each for name, each in values.items() if each not in (getattr(usual, name), [])}


if __name__ == "__main__":
    FILE.write_text(text())
