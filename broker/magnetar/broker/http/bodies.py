"""What bodies of requests have in common. Pure."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class RequestBody(BaseModel):
    """Unknown fields are ignored, and a field that is null is one that was left out: clients in Go
    send nulls for empty lists."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: each for name, each in value.items() if each is not None}
        return value
