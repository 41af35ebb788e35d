"""Numbers and booleans in the bodies of requests: JSON of their own kind, or JSON text of it."""

import pkgutil
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import magnetar.broker.http as http
from magnetar.broker.base.json_values import LONG_MAX, Flag, Number, WholeNumber
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.policy import BACKLOG_QUOTA, shape_of
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.topics import PartitionedTopicMetadata
from magnetar.broker.policies.table import POLICIES

for _module in pkgutil.iter_modules(http.__path__):
    import_module(f"{http.__name__}.{_module.name}")


def _below(body: type[BaseModel]) -> list[type[BaseModel]]:
    return [each for kind in body.__subclasses__() for each in (kind, *_below(kind))]


BODIES: list[type[BaseModel]] = [*_below(RequestBody), PartitionedTopicMetadata]
_SAMPLES: dict[str, Any] = {"integer": 3, "number": 0.5, "boolean": True, "string": "x"}
_EMPTY: dict[str, Any] = {"array": []}


def _kind(schema: dict[str, Any]) -> str:
    kinds = [each.get("type", "") for each in schema.get("anyOf", [schema])]
    return next((kind for kind in kinds if kind in _SAMPLES), "")


def _sample(schema: dict[str, Any], part: dict[str, Any]) -> Any:
    part = schema.get("$defs", {}).get(part.get("$ref", "").rpartition("/")[2], part)
    if "enum" in part:
        return part["enum"][0]
    return _SAMPLES.get(_kind(part), _EMPTY.get(part.get("type", ""), {}))


def _as_text(sample: Any) -> str:
    return str(sample).lower() if isinstance(sample, bool) else str(sample)


def _fields() -> list[Any]:
    found = []
    for body in BODIES:
        schema = body.model_json_schema()
        whole = {
            name: _sample(schema, part)
            for name, part in schema["properties"].items()
            if name in schema.get("required", ())
        }
        for name, part in schema["properties"].items():
            if _kind(part) in ("integer", "number", "boolean"):
                found.append(
                    pytest.param(body, whole, name, _kind(part), id=f"{body.__name__}.{name}")
                )
    return found


@pytest.mark.parametrize(("body", "whole", "name", "kind"), _fields())
def test_a_field_takes_its_value_as_text(
    body: type[BaseModel], whole: dict[str, Any], name: str, kind: str
) -> None:
    sample = _SAMPLES[kind]
    plain = body.model_validate({**whole, name: sample})
    assert body.model_validate({**whole, name: _as_text(sample)}) == plain
    nonsenses: tuple[Any, ...] = ("", "x", "3 x", "NaN", "1_0", [], {})
    for nonsense in nonsenses:
        with pytest.raises(ValidationError):
            body.model_validate({**whole, name: nonsense})


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each.field)
def test_a_policy_that_is_a_number_or_a_boolean_takes_text(policy: Any) -> None:
    kind = shape_of(policy).schema().get("type", "")
    if kind not in ("integer", "boolean"):
        return
    sample = _as_text(_SAMPLES[kind])
    assert shape_of(policy).parse(f'"{sample}"'.encode()) == shape_of(policy).parse(sample.encode())
    with pytest.raises(HttpRefusal):
        shape_of(policy).parse(b'"x"')


def test_the_quota_of_a_go_client_is_taken() -> None:
    body = b'{"limit":"10240","limitSize":"-1","limitTime":"-1","policy":"producer_exception"}'
    assert BACKLOG_QUOTA.parse(body).bytes == 10240


@pytest.mark.parametrize("value", [True, False, "true", 3.5, "3.5", "3.0", str(LONG_MAX + 1), 1e30])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(WholeNumber).validate_python(value)


@pytest.mark.parametrize("value", [True, "nan", "inf", "Infinity", "0x1", "1,5"])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Number).validate_python(value)


@pytest.mark.parametrize("value", [2, "yes", "1", "on", 1.0])
def test_what_is_no_boolean_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Flag).validate_python(value)


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (WholeNumber, " 3 ", 3),
        (WholeNumber, "-1", -1),
        (WholeNumber, 3.0, 3),
        (Number, "1e2", 100.0),
        (Number, ".5", 0.5),
        (Number, 2, 2.0),
        (Flag, "TRUE", True),
        (Flag, " false", False),
        (Flag, 1, True),
    ],
)
def test_other_spellings_are_taken(kind: Any, value: object, taken: object) -> None:
    assert TypeAdapter(kind).validate_python(value) == taken
