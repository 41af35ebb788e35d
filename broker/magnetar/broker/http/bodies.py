"""What bodies of requests have in common. Pure."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

LONG_MAX = (1 << 63) - 1
"""Of whole numbers: Pulsar's tools know no larger ones, and what reckons with them has an end."""


class RequestBody(BaseModel):
    """Unknown fields are ignored, and a field that is null is one that was left out: clients in Go
    send nulls for empty lists. What parsers take for numbers and JSON has no word for (NaN) could
    be written into a record and never be read again."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, each in value.items():
            if isinstance(each, int) and abs(each) > LONG_MAX:
                raise ValueError(f"{name} has more than 64 bits")
        return {name: each for name, each in value.items() if each is not None}
