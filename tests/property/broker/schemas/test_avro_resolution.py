"""What the broker says of Avro definitions, against fastavro, which really reads."""

import io
from typing import Any

import fastavro
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.schemas import InvalidSchemaError
from magnetar.broker.schemas.avro import parse, why_unreadable
from tests.property.broker.schemas.avro_definitions import data_of, evolved, records

_SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def why(reader: Any, writer: Any) -> str | None:
    return why_unreadable(reader=parse(reader), writer=parse(writer))


def read(written: bytes, writer: Any, reader: Any) -> Any:
    return fastavro.schemaless_reader(
        io.BytesIO(written), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )


@_SETTINGS
@given(records())
def test_a_definition_reads_itself(definition: dict[str, Any]) -> None:
    assert why(definition, definition) is None


@_SETTINGS
@given(st.data())
def test_what_is_called_readable_can_be_read(data: st.DataObject) -> None:
    writer = data.draw(records())
    reader = data.draw(evolved(writer))
    if why(reader, writer) is not None:
        return
    value = data.draw(data_of(writer))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(writer), value)
    read(written.getvalue(), writer, reader)


@_SETTINGS
@given(st.data())
def test_a_field_that_is_dropped_or_has_a_default_is_no_problem(data: st.DataObject) -> None:
    writer = data.draw(records())
    kept = [each for each in writer["fields"] if data.draw(st.booleans())]
    added = [{"name": "added", "type": "string", "default": ""}]
    assert why({**writer, "fields": kept + added}, writer) is None
    assert why(writer, {**writer, "fields": writer["fields"] + added}) is None


@_SETTINGS
@given(records())
def test_a_new_field_without_a_default_cannot_be_read(definition: dict[str, Any]) -> None:
    added = [*definition["fields"], {"name": "added", "type": "string"}]
    problem = why({**definition, "fields": added}, definition)
    assert problem == "/added: it is not written, and has no default"


@_SETTINGS
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=5)
        | st.sampled_from(
            ["record", "enum", "fixed", "array", "map", "int", "null", "a.b", "type", "name"]
        ),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "name",
                        "fields",
                        "items",
                        "values",
                        "symbols",
                        "size",
                        "default",
                        "aliases",
                        "namespace",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_is_a_definition_or_refused(definition: Any) -> None:
    try:
        parsed = parse(definition)
    except InvalidSchemaError:
        return
    assert why_unreadable(reader=parsed, writer=parsed) is None
