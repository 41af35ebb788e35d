"""Commits to a table that a catalog fails, or whose answers are lost: without a broker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from magnetar.arrow.errors import CatalogError
from magnetar.arrow.iceberg.commits import Head
from magnetar.arrow.iceberg.evolution import stored_schema
from magnetar.arrow.iceberg.iceberg_table import COMMIT_TRIES_MAX, IcebergTable
from magnetar.arrow.iceberg.watermark import Mark
from magnetar.arrow.stored.column_types import value_fields
from magnetar.arrow.stored.dropped_fields import with_dropped_fields
from magnetar.arrow.stored.slices import ValueSchema

OLD = pa.schema([pa.field("a", pa.int64())])
NEW = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])
MARKS = {"t": Mark(1, 2)}


class Around:
    """Counts the waits, and ends the job in the one with number `ends_at`."""

    def __init__(self, ends_at: int = -1) -> None:
        self.waits = 0
        self._ends_at = ends_at

    def token(self) -> str:
        return "a token"

    def jitter(self) -> float:
        return 1.0

    def wait(self, _: float) -> bool:
        self.waits += 1
        return self.waits == self._ends_at


class FailingCatalog(SqlCatalog):
    """Fails so many commits, and loses the answers to so many after that."""

    failures = 0
    lost_answers = 0

    def commit_table(self, *arguments: Any, **named: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("the request was lost")
        answer = super().commit_table(*arguments, **named)
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("the answer was lost")
        return answer


@pytest.fixture
def catalog(tmp_path: Path) -> FailingCatalog:
    url = f"sqlite:///{tmp_path}/catalog.db"
    return FailingCatalog("c", uri=url, warehouse=f"file://{tmp_path}")


def made(catalog: FailingCatalog, around: Around) -> IcebergTable:
    table = IcebergTable(catalog, "lake.t", around)
    table.create(OLD)
    return table


def evolve(table: IcebergTable) -> None:
    table.evolve(NEW)


def append(table: IcebergTable) -> None:
    table.append(pa.table({"a": [1]}, OLD), MARKS, Head())


CHANGES = pytest.mark.parametrize("change", [evolve, append])


def is_changed(catalog: FailingCatalog, change: Callable[[IcebergTable], None]) -> bool:
    table = catalog.load_table("lake.t")
    if change is evolve:
        return bool(table.schema().as_arrow().names == ["a", "b"])
    return bool(table.scan().to_arrow().num_rows == 1)


def test_a_dropped_field_keeps_the_type_that_its_column_has(catalog: FailingCatalog) -> None:
    """An older release made the column int, and Iceberg widens no int to double."""
    table = IcebergTable(catalog, "lake.t", Around())
    versions = [dropped("int"), dropped("double")]
    for held, expected in [("", "double"), ("int", "int"), ("double", "double")]:
        if held:
            catalog.create_namespace_if_not_exists("lake")
            catalog.create_table("lake.t", stored_schema(value_fields(dropped(held))))
        table.load()
        found = with_dropped_fields(
            dropped(), versions, suits=lambda one: table.takes(stored_schema(value_fields(one)))
        )
        assert value_fields(found) == value_fields(dropped(expected))
        if held:
            table.evolve(stored_schema(value_fields(found)))
            catalog.drop_table("lake.t")


def dropped(*kinds: str) -> ValueSchema:
    """Return a schema with a field `a`, and a field `b` of this type."""
    fields = [{"name": "a", "type": "int"}, *({"name": "b", "type": each} for each in kinds)]
    return ValueSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))


@CHANGES
def test_a_change_that_is_applied_costs_no_wait(
    catalog: FailingCatalog, change: Callable[[IcebergTable], None]
) -> None:
    around = Around()
    table = made(catalog, around)
    catalog.lost_answers = 1
    change(table)
    assert is_changed(catalog, change)
    assert around.waits == 0


@CHANGES
@pytest.mark.parametrize("lost_answers", [0, 1])
def test_the_last_try_counts(
    catalog: FailingCatalog, change: Callable[[IcebergTable], None], lost_answers: int
) -> None:
    table = made(catalog, Around())
    catalog.failures, catalog.lost_answers = COMMIT_TRIES_MAX - 1, lost_answers
    change(table)
    assert is_changed(catalog, change)


@CHANGES
def test_one_failure_too_many_is_an_error(
    catalog: FailingCatalog, change: Callable[[IcebergTable], None]
) -> None:
    table = made(catalog, Around())
    catalog.failures = COMMIT_TRIES_MAX
    with pytest.raises(CatalogError, match=f"failed {COMMIT_TRIES_MAX} times.*request was lost"):
        change(table)
    assert not is_changed(catalog, change)


@CHANGES
def test_a_job_that_is_to_end_tries_no_more(
    catalog: FailingCatalog, change: Callable[[IcebergTable], None]
) -> None:
    around = Around(ends_at=2)
    table = made(catalog, around)
    catalog.failures = COMMIT_TRIES_MAX
    with pytest.raises(CatalogError, match=r"failed 2 times, and the job is to end.*request"):
        change(table)
    assert around.waits == 2
    assert catalog.failures == COMMIT_TRIES_MAX - 2
