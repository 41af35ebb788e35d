from typing import Any

import pytest
from pydantic import ValidationError

from magnetar.ledger.settings import ObjectReadSettings

LIMITS = [
    ("object_index_cache_bytes", 0, None),
    ("object_read_memory_bytes", 48 << 20, None),
    ("object_read_window_bytes", 0, 256 << 20),
    ("object_read_range_bytes", 1, 1 << 30),
    ("object_read_ranges_max", 1, 64),
    ("object_reads_max", 1, 1024),
    ("object_read_idle_s", 0, 3_600),
]


@pytest.mark.parametrize(("field", "least", "most"), LIMITS)
def test_bounds_of_reading_objects_have_limits(field: str, least: int, most: int | None) -> None:
    def of(value: int) -> ObjectReadSettings:
        values: dict[str, Any] = {field: value}
        return ObjectReadSettings(**values)

    for value in (least, *([] if most is None else [most])):
        assert getattr(of(value), field) == value
    for value in (least - 1, *([] if most is None else [most + 1])):
        with pytest.raises(ValidationError, match=field):
            of(value)


@pytest.mark.parametrize("value", [0.0, 600.1])
def test_a_request_to_an_object_store_has_a_deadline_of_at_most_ten_minutes(value: float) -> None:
    assert ObjectReadSettings(object_read_timeout_s=600).object_read_timeout_s == 600
    with pytest.raises(ValidationError, match="object_read_timeout_s"):
        ObjectReadSettings(object_read_timeout_s=value)


def test_no_window_is_larger_than_the_memory_of_all() -> None:
    ObjectReadSettings(object_read_memory_bytes=0, object_read_window_bytes=0)
    with pytest.raises(ValidationError, match="is above object_read_memory_bytes 10"):
        ObjectReadSettings(object_read_memory_bytes=10, object_read_window_bytes=11)
