"""Describes what is wrong with a stored value. Pure."""

from pydantic import ValidationError


def first_problem(error: ValidationError, *, whole: str = "value") -> str:
    """Return the first problem that pydantic found: the field, and what is wrong with it.

    Args:
        whole: name to use instead of a field if the value as a whole is wrong.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
