"""Bundles as Pulsar names and cuts them, and what is refused."""

import pytest

from magnetar.broker.cluster.balance.bundles import (
    HASH_MAX,
    Bundle,
    BundleError,
    BundleId,
    Layout,
    middle_of_weights,
)


def test_a_namespace_begins_with_the_four_bundles_that_pulsar_gives_it() -> None:
    assert [bundle.name for bundle in Layout.even(4).bundles] == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]


def test_a_lease_stands_below_its_namespace() -> None:
    bundle = BundleId("public/default", Bundle(0x40000000, 0x80000000))
    assert bundle.lease_path == "/namespace/public/default/0x40000000_0x80000000"


def test_the_highest_hash_is_in_the_last_bundle_only() -> None:
    bundles = Layout.even(4).bundles
    assert [HASH_MAX in bundle for bundle in bundles] == [False, False, False, True]


@pytest.mark.parametrize(
    "boundaries",
    [(), (0,), (0, 5), (1, HASH_MAX), (0, 7, 7, HASH_MAX), (0, 9, 3, HASH_MAX)],
)
def test_boundaries_with_gaps_or_out_of_order_are_refused(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(BundleError):
        Layout(boundaries)


@pytest.mark.parametrize("bundle", [(5, 5), (6, 5), (-1, 5), (0, HASH_MAX + 1)])
def test_a_range_that_holds_nothing_is_refused(bundle: tuple[int, int]) -> None:
    with pytest.raises(BundleError):
        Bundle(*bundle)


@pytest.mark.parametrize(
    "name",
    ["", "0x0_0x4", "0x00000000-0x40000000", "0x40000000_0x00000000", "0X00000000_0X40000000"],
)
def test_a_name_of_another_shape_is_refused(name: str) -> None:
    with pytest.raises(BundleError):
        Bundle.parse(name)


def test_weights_outside_of_the_bundle_are_refused() -> None:
    with pytest.raises(BundleError):
        middle_of_weights(Bundle(0, 10), [(11, 1.0)])
