"""Bundles under generated layouts: every topic in exactly one, and splits lose none."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.cluster.balance.bundles import (
    HASH_MAX,
    Bundle,
    BundleError,
    BundleId,
    Layout,
    halves,
    hash_of,
    middle_of_range,
    middle_of_weights,
)
from magnetar.sdk.wire import TopicName

hashes = st.integers(0, HASH_MAX)
layouts = st.sets(st.integers(1, HASH_MAX - 1), max_size=20).map(
    lambda inner: Layout((0, *sorted(inner), HASH_MAX))
)
local_names = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=30
)
topics = local_names.map(lambda name: TopicName("persistent", "acme", "orders", name))


@given(layouts, hashes)
def test_each_hash_is_in_exactly_one_bundle(layout: Layout, hashed: int) -> None:
    holders = [bundle for bundle in layout.bundles if hashed in bundle]
    assert holders == [layout.bundle_at(hashed)]


@given(layouts)
def test_the_edges_of_every_bundle_are_in_exactly_one(layout: Layout) -> None:
    for edge in layout.boundaries:
        for hashed in {max(edge - 1, 0), edge, min(edge + 1, HASH_MAX)}:
            assert sum(hashed in bundle for bundle in layout.bundles) == 1


@given(topics)
def test_the_hash_of_a_topic_is_the_crc32_of_its_full_name(topic: TopicName) -> None:
    assert hash_of(topic) == zlib.crc32(str(topic).encode())


@given(layouts, topics)
def test_a_topic_is_held_by_one_bundle_of_its_namespace(layout: Layout, topic: TopicName) -> None:
    mine = [BundleId("acme/orders", bundle) for bundle in layout.bundles]
    assert [each.bundle for each in mine if each.holds(topic)] == [layout.bundle_of(topic)]
    assert not any(BundleId("acme/other", each).holds(topic) for each in layout.bundles)


@given(layouts, st.data())
def test_a_split_moves_no_hash_out_of_the_halves_and_touches_no_other_bundle(
    layout: Layout, data: st.DataObject
) -> None:
    wide = [bundle for bundle in layout.bundles if bundle.upper - bundle.lower > 1]
    bundle = data.draw(st.sampled_from(wide))
    at = data.draw(st.integers(bundle.lower + 1, bundle.upper - 1))
    after = layout.split(bundle, at)
    assert len(after) == len(layout) + 1
    assert after.covering(bundle) == halves(bundle, at)
    for other in layout.bundles:
        if other != bundle:
            assert other in after
            assert after.covering(other) == (other,)
    for hashed in {bundle.lower, at - 1, at, bundle.upper - 1, bundle.upper}:
        if hashed in bundle:
            assert after.bundle_at(hashed) in halves(bundle, at)


@given(layouts, hashes, hashes)
def test_a_split_is_made_inside_of_a_bundle_that_is_there_or_not_at_all(
    layout: Layout, lower: int, at: int
) -> None:
    bundle = layout.bundle_at(lower)
    if bundle.lower < at < bundle.upper:
        assert at in layout.split(bundle, at).boundaries
    else:
        with pytest.raises(BundleError):
            layout.split(bundle, at)


@given(st.integers(1, 300))
def test_an_even_layout_has_bundles_of_one_width(count: int) -> None:
    layout = Layout.even(count)
    assert len(layout) == count
    widths = [bundle.upper - bundle.lower for bundle in layout.bundles]
    assert max(widths) - min(widths) <= 1


@given(layouts)
def test_names_are_read_back(layout: Layout) -> None:
    for bundle in layout.bundles:
        assert Bundle.parse(bundle.name) == bundle
        whole = BundleId("acme/orders", bundle)
        assert BundleId.parse(str(whole)) == whole


@given(st.text(max_size=40))
def test_any_text_is_a_bundle_or_refused(text: str) -> None:
    for parse in (Bundle.parse, BundleId.parse):
        try:
            assert str(parse(text)) == text
        except BundleError:
            pass


@given(layouts)
def test_the_middle_of_a_range_is_inside(layout: Layout) -> None:
    for bundle in layout.bundles:
        if bundle.upper - bundle.lower > 1:
            assert bundle.lower < middle_of_range(bundle) < bundle.upper
        else:
            with pytest.raises(BundleError):
                middle_of_range(bundle)


@given(st.data())
def test_the_middle_of_weights_divides_better_than_any_other_split(data: st.DataObject) -> None:
    bundle = Bundle(1000, 1064)
    weights = data.draw(
        st.lists(st.tuples(st.integers(1000, 1063), st.integers(0, 100)), max_size=12)
    )

    def difference(at: int) -> int:
        return abs(
            sum(weight for hashed, weight in weights if hashed < at)
            - sum(weight for hashed, weight in weights if hashed >= at)
        )

    separating = sorted({hashed for hashed, _ in weights})[1:]
    if not separating:
        with pytest.raises(BundleError):
            middle_of_weights(bundle, weights)
        return
    at = middle_of_weights(bundle, weights)
    assert bundle.lower < at < bundle.upper
    assert at in separating
    assert difference(at) == min(map(difference, separating))


def test_ten_thousand_topics_spread_evenly_over_bundles() -> None:
    layout = Layout.even(16)
    counts = dict.fromkeys(layout.bundles, 0)
    for number in range(10_000):
        name = TopicName("persistent", "public", "default", f"bench-{number:05}")
        counts[layout.bundle_of(name)] += 1
    assert max(counts.values()) < 1.15 * 10_000 / 16
