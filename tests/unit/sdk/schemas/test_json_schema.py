"""JSON: what no reader could read is refused by the sender."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, field_serializer

from magnetar.sdk.errors import SchemaValueError
from magnetar.sdk.schemas import AutoProduceSchema, JsonObjectSchema, JsonSchema

ODD = [math.nan, math.inf, -math.inf]


@dataclass
class Reading:
    at: int
    value: float
    maybe: float | None = None
    many: list[float] = field(default_factory=list)
    named: dict[str, float | None] = field(default_factory=dict)
    inner: "Reading | None" = None


class ReadingModel(BaseModel):
    value: float | None = None


class WithTokens(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float
    note: str = "NaN"


class WithTexts(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float


class WithOwnWord(BaseModel):
    value: float | None

    @field_serializer("value")
    def _known(self, value: float | None) -> float | None:
        return None if value is None or math.isnan(value) else value


@pytest.mark.parametrize("odd", ODD)
def test_a_number_that_json_has_no_form_for_is_refused_and_named(odd: float) -> None:
    schema = JsonSchema(Reading)
    for value, where in (
        (Reading(1, odd), "value"),
        (Reading(1, 0.5, odd), "maybe"),
        (Reading(1, 0.5, many=[1.0, odd]), r"many\.1"),
        (Reading(1, 0.5, named={"a": None, "b": odd}), r"named\.b"),
        (Reading(1, 0.5, inner=Reading(2, odd)), r"inner\.value"),
    ):
        with pytest.raises(SchemaValueError, match=rf"Reading\.{where} is {odd}"):
            schema.encode(value)
    with pytest.raises(SchemaValueError, match=r"ReadingModel\.value"):
        JsonSchema(ReadingModel).encode(ReadingModel(value=odd))
    with pytest.raises(SchemaValueError, match=r"WithTokens\.value"):
        JsonSchema(WithTokens).encode(WithTokens(value=odd))
    with pytest.raises(SchemaValueError):
        JsonObjectSchema({"type": "record", "name": "A", "fields": []}).encode({"a": [odd]})


def test_what_can_be_read_again_is_sent() -> None:
    value = Reading(1, 0.5, None, [1e308], {"a": None, "NaN": 1.0}, Reading(2, -0.0))
    schema = JsonSchema(Reading)
    assert schema.decode(schema.encode(value)) == value
    tokens = JsonSchema(WithTokens)
    assert tokens.decode(tokens.encode(WithTokens(value=0.5))).note == "NaN"
    # A class that has a form of its own for them is read by it.
    texts = JsonSchema(WithTexts)
    assert texts.decode(texts.encode(WithTexts(value=math.inf))).value == math.inf
    own = JsonSchema(WithOwnWord)
    assert own.decode(own.encode(WithOwnWord(value=math.nan))).value is None


@pytest.mark.parametrize("raw", [b'{"value": NaN}', b'{"value": [-Infinity]}', b"NaN"])
def test_payloads_that_are_json_to_python_alone_are_refused(raw: bytes) -> None:
    schema = AutoProduceSchema()
    schema.adopt(JsonSchema(Reading).info)
    with pytest.raises(SchemaValueError, match=r"NaN|Infinity"):
        schema.encode(raw)
    # What others have sent is read as far as it can be.
    found: Any = JsonObjectSchema({}).decode(raw)
    assert json.dumps(found)
