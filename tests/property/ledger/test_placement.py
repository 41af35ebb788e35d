"""Placement against brute force: a choice keeps every promise, and a refusal is right."""

import random
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.ledger.errors import NotEnoughBookiesError
from magnetar.ledger.placing.placement_domains import rack_aware
from magnetar.ledger.placing.placement_search import write_sets
from magnetar.ledger.registration import BookieInfo


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, BookieInfo], int, int, int]:
    racks = draw(st.lists(st.sampled_from(["r1", "r2", "r3", ""]), min_size=1, max_size=6))
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    racks_min = draw(st.integers(1, 3))
    bookies = {
        f"b{n}": BookieInfo(f"b{n}", "host", 1, False, rack=rack) for n, rack in enumerate(racks)
    }
    return bookies, size, quorum, racks_min


def is_spread(
    bookies: dict[str, BookieInfo], members: tuple[str, ...], quorum: int, racks_min: int
) -> bool:
    return all(
        len({bookies[members[index]].rack for index in write_set} - {""}) >= racks_min
        for write_set in write_sets(len(members), quorum)
    )


@given(cases(), st.integers())
@settings(max_examples=300, deadline=None)
def test_enforced_racks_are_kept_and_refused_only_if_impossible(
    case: tuple[dict[str, BookieInfo], int, int, int], seed: int
) -> None:
    bookies, size, quorum, racks_min = case
    needed = min(racks_min, quorum)
    known = [name for name in bookies if bookies[name].rack or needed <= 1]
    try:
        chosen = rack_aware(
            random.Random(seed), racks_min=racks_min, is_enforced=True
        ).choose_ensemble(bookies, ensemble_size=size, write_quorum=quorum, ack_quorum=1)
    except NotEnoughBookiesError:
        assert not any(
            needed <= 1 or is_spread(bookies, members, quorum, needed)
            for members in permutations(known, size)
        )
    else:
        assert len(set(chosen)) == size
        assert needed <= 1 or is_spread(bookies, chosen, quorum, needed)


@given(cases(), st.integers(), st.data())
@settings(max_examples=300, deadline=None)
def test_best_effort_fails_only_for_want_of_bookies_and_excludes_and_avoids(
    case: tuple[dict[str, BookieInfo], int, int, int], seed: int, data: st.DataObject
) -> None:
    bookies, size, quorum, racks_min = case
    names = st.sets(st.sampled_from(sorted(bookies)))
    excluded, avoided = data.draw(names), data.draw(names)
    usable = set(bookies) - excluded
    placement = rack_aware(random.Random(seed), racks_min=racks_min)
    try:
        chosen = placement.choose_ensemble(
            bookies,
            ensemble_size=size,
            write_quorum=quorum,
            ack_quorum=1,
            excluded=excluded,
            avoided=avoided,
        )
    except NotEnoughBookiesError:
        assert len(usable) < size
        return
    assert len(set(chosen)) == size
    assert set(chosen) <= usable
    assert len(set(chosen) & avoided) == max(0, size - len(usable - avoided))
    left = usable - set(chosen)
    try:
        replacement = placement.choose_replacement(
            bookies,
            ensemble=chosen,
            index=seed % size,
            write_quorum=quorum,
            ack_quorum=1,
            excluded=excluded,
            avoided=avoided,
        )
    except NotEnoughBookiesError:
        assert not left
    else:
        assert replacement in left
        assert replacement not in avoided or left <= avoided
