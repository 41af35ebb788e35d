"""The bundles in the body of a request for a new namespace."""

from typing import Any

import pytest

from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.tenants import _bundles


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 0),
        ({"bundles": None}, 0),
        ({"bundles": {"numBundles": 0}}, 0),
        ({"bundles": {"numBundles": 1}}, 1),
        ({"bundles": 8}, 8),
    ],
)
def test_a_namespace_has_the_bundles_that_it_is_given_or_the_default(
    body: dict[str, Any], count: int
) -> None:
    assert _bundles(body) == count


@pytest.mark.parametrize("count", [True, False, -1, 1.0, "4", 1 << 20])
def test_a_count_of_bundles_that_is_none_is_refused(count: Any) -> None:
    for bundles in (count, {"numBundles": count}):
        if bundles is False:
            continue  # As absent.
        with pytest.raises(HttpRefusal, match="1 to 65536, or 0 for the default, got"):
            _bundles({"bundles": bundles})
