"""What people write down about a topic: properties of its log, beside the broker's own. Pure."""

from collections.abc import Mapping

_PREFIX = "topic."


def as_stored(properties: Mapping[str, str]) -> dict[str, str]:
    """Under names that no property of the broker has."""
    return {_PREFIX + name: value for name, value in properties.items()}


def as_told(properties: Mapping[str, str]) -> dict[str, str]:
    """People's among all properties of a log, under their own names."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in properties.items()
        if name.startswith(_PREFIX)
    }
