from datetime import datetime

import pytest

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.quantities import (
    duration_ms,
    moment_ms,
    parse_duration_ms,
    parse_message_id,
    parse_moment_ms,
    parse_size_bytes,
)

NOW_MS = 1_795_000_000_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90s", 90_000),
        ("250ms", 250),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("3d", 259_200_000),
        ("2w", 1_209_600_000),
        ("1 H", 3_600_000),
        ("0", 0),
    ],
)
def test_a_duration_has_units(text: str, wanted: int) -> None:
    assert parse_duration_ms(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "60", "h", "1x", "1h30", "-1h", "1h,2m", "1e3s", "9" * 310 + "s"]
)
def test_what_has_no_unit_is_no_duration(text: str) -> None:
    assert parse_duration_ms(text) is None
    with pytest.raises(SettingsError, match="--timeout"):
        duration_ms("--timeout", text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64k", 64 << 10),
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("1.5G", 3 << 29),
        ("10 GB", 10 << 30),
    ],
)
def test_sizes_are_multiples_of_1024(text: str, wanted: int) -> None:
    assert parse_size_bytes(text) == wanted


@pytest.mark.parametrize("text", ["", "G", "10X", "-1", "1h", "9" * 310, "9" * 300 + "P"])
def test_what_is_no_number_is_no_size(text: str) -> None:
    assert parse_size_bytes(text) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("now", NOW_MS),
        ("-1h", NOW_MS - 3_600_000),
        ("1h ago", NOW_MS - 3_600_000),
        ("-100000w", 0),
        (str(NOW_MS), NOW_MS),
        ("0", 0),
        ("1970-01-01T00:00:01+00:00", 1_000),
        ("1970-01-01T00:00:01.5Z", 1_500),
    ],
)
def test_a_moment_is_relative_or_a_date(text: str, wanted: int) -> None:
    assert parse_moment_ms(text, now_ms=NOW_MS) == wanted


def test_a_date_without_a_zone_is_local_time() -> None:
    wanted = datetime(2026, 11, 26, 23).timestamp() * 1000
    assert parse_moment_ms("2026-11-26T23:00", now_ms=NOW_MS) == wanted


@pytest.mark.parametrize("text", ["", "1h", "yesterday", "2026", "1795000000", "-x", "9" * 40])
def test_a_moment_that_could_be_two_things_is_refused(text: str) -> None:
    assert parse_moment_ms(text, now_ms=NOW_MS) is None
    with pytest.raises(SettingsError, match="--start"):
        moment_ms("--start", text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("209:1", (209, 1, -1, -1)),
        ("209:1:0", (209, 1, 0, -1)),
        ("209:1:-1:998", (209, 1, -1, 998)),
        ("209:1:2:0", (209, 1, 2, 0)),
    ],
)
def test_an_id_is_read_as_it_is_printed(text: str, wanted: tuple[int, ...]) -> None:
    assert parse_message_id(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":1", "a:b", "1:2:x", "1:2:3:4:5", "-1:-1", f"1:{'9' * 5000}"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    assert parse_message_id(text) is None
