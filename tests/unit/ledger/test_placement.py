"""Placement of an ensemble: load, racks, zones, quarantine, and what is said when short."""

import random
from collections.abc import Callable, Sequence

import pytest

from magnetar.ledger.errors import NotEnoughBookiesError
from magnetar.ledger.placement import OpportunisticStriping, Placement, RandomPlacement
from magnetar.ledger.placing.placement_domains import placement_of, rack_aware, zone_aware
from magnetar.ledger.placing.placement_search import write_sets
from magnetar.ledger.registration import BookieInfo
from magnetar.ledger.settings import LedgerSettings

Bookies = dict[str, BookieInfo]


def bookies_of(*racks: str, zone: str = "") -> Bookies:
    """b0, b1, … in these racks; "z1/r1" is rack r1 of zone z1, "" no rack."""
    found: Bookies = {}
    for number, text in enumerate(racks):
        *zones, rack = text.split("/")
        name = f"b{number}"
        found[name] = BookieInfo(
            name, "host", 1000 + number, False, rack=rack, zone=zones[0] if zones else zone
        )
    return found


def racks_of(bookies: Bookies, names: Sequence[str]) -> set[tuple[str, str]]:
    return {(bookies[name].zone, bookies[name].rack) for name in names}


def choose(
    placement: Placement,
    bookies: Bookies,
    size: int = 3,
    quorum: int = 3,
    *,
    excluded: Sequence[str] = (),
    avoided: Sequence[str] = (),
) -> tuple[str, ...]:
    return placement.choose_ensemble(
        bookies,
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=1,
        excluded=excluded,
        avoided=avoided,
    )


def replace(
    placement: Placement,
    bookies: Bookies,
    ensemble: Sequence[str],
    index: int,
    quorum: int = 3,
    *,
    excluded: Sequence[str] = (),
    avoided: Sequence[str] = (),
) -> str:
    return placement.choose_replacement(
        bookies,
        ensemble=ensemble,
        index=index,
        write_quorum=quorum,
        ack_quorum=1,
        excluded=excluded,
        avoided=avoided,
    )


def new_random(seed: int) -> Placement:
    return RandomPlacement(random.Random(seed))


def new_rack(seed: int) -> Placement:
    return rack_aware(random.Random(seed))


def new_zone(seed: int) -> Placement:
    return zone_aware(random.Random(seed))


every_placement = pytest.mark.parametrize("new", [new_random, new_rack, new_zone])
SEEDS = range(50)


@every_placement
def test_the_same_seed_gives_the_same_choice_in_whatever_order_bookies_come(
    new: Callable[[int], Placement],
) -> None:
    bookies = bookies_of("r1", "r2", "r1", "r3", "r2", "")
    turned = dict(reversed(bookies.items()))
    for seed in SEEDS:
        assert choose(new(seed), bookies) == choose(new(seed), turned)


@every_placement
def test_every_bookie_gets_its_share(new: Callable[[int], Placement]) -> None:
    placement = new(1)
    bookies = bookies_of("r1", "r2", "r3", "r1", "r2", "r3")
    counts = dict.fromkeys(bookies, 0)
    for _ in range(600):
        for name in choose(placement, bookies):
            counts[name] += 1
    assert all(200 < count < 400 for count in counts.values()), counts


@every_placement
def test_excluded_bookies_are_never_chosen(new: Callable[[int], Placement]) -> None:
    bookies = bookies_of("r1", "r2", "r3", "r1")
    for seed in SEEDS:
        assert "b1" not in choose(new(seed), bookies, excluded=["b1"])
    with pytest.raises(NotEnoughBookiesError, match="3 bookies is needed, 2 are writable: b2, b3"):
        choose(new(1), bookies, excluded=["b0", "b1"])


@every_placement
def test_quarantined_bookies_are_chosen_only_as_far_as_nothing_else_is_left(
    new: Callable[[int], Placement],
) -> None:
    bookies = bookies_of("r1", "r1", "r1", "r2", "r3")
    for seed in SEEDS:
        assert set(choose(new(seed), bookies, avoided=["b3", "b4"])) == {"b0", "b1", "b2"}
        chosen = choose(new(seed), bookies, avoided=["b2", "b3", "b4"])
        assert {"b0", "b1"} < set(chosen)
        assert replace(new(seed), bookies, ["b0", "b1", "b2"], 0, avoided=["b3"]) == "b4"
        assert (
            replace(new(seed), bookies, ["b0", "b1", "b2"], 0, excluded=["b4"], avoided=["b3"])
            == "b3"
        )


@every_placement
def test_without_a_bookie_left_the_error_says_who_is_there(
    new: Callable[[int], Placement],
) -> None:
    bookies = bookies_of("r1", "r2", "r3")
    with pytest.raises(NotEnoughBookiesError, match=r"replace.*b0.*start more bookies") as error:
        replace(new(1), bookies, ["b0", "b1", "b2"], 0)
    assert error.value.retryable
    with pytest.raises(NotEnoughBookiesError, match="none; start more bookies"):
        choose(new(1), {})


# --- racks ---------------------------------------------------------------------------------------


def test_every_write_set_spans_two_racks() -> None:
    bookies = bookies_of("r1", "r1", "r1", "r1", "r2", "r2")
    for seed in SEEDS:
        for size, quorum in ((3, 3), (2, 2), (4, 2), (4, 3), (5, 3)):
            chosen = choose(
                rack_aware(random.Random(seed), is_enforced=True), bookies, size, quorum
            )
            assert len(set(chosen)) == size
            for write_set in write_sets(size, quorum):
                assert len(racks_of(bookies, [chosen[index] for index in write_set])) == 2


def test_successive_members_come_from_different_racks_where_there_are_enough() -> None:
    bookies = bookies_of("r1", "r1", "r1", "r2", "r3", "r4")
    for seed in SEEDS:
        chosen = choose(rack_aware(random.Random(seed)), bookies)
        assert len(racks_of(bookies, chosen)) == 3


def test_racks_of_one_name_in_two_zones_are_two_racks() -> None:
    bookies = bookies_of("z1/r", "z1/r", "z2/r")
    for seed in SEEDS:
        chosen = choose(rack_aware(random.Random(seed), is_enforced=True), bookies, 2, 2)
        assert "b2" in chosen


def test_the_minimum_of_racks_is_capped_at_the_write_quorum() -> None:
    bookies = bookies_of("r1", "r1")
    placement = rack_aware(random.Random(1), racks_min=2, is_enforced=True)
    assert len(choose(placement, bookies, 2, 1)) == 2


def test_a_short_rack_is_an_error_when_racks_are_enforced() -> None:
    placement = rack_aware(random.Random(1), is_enforced=True)
    with pytest.raises(
        NotEnoughBookiesError,
        match=r"write set of 3 must span 2 racks, and writable are, by rack: r1: b0, b1, b2; "
        r"without a rack, so not used: b3; start bookies in 1 more racks \(--rack\)",
    ):
        choose(placement, bookies_of("r1", "r1", "r1", ""))
    with pytest.raises(NotEnoughBookiesError, match="too few are outside of rack r1"):
        choose(placement, bookies_of("r1", "r1", "r1", "r1", "r1", "r2"), 6, 3)


def test_a_short_rack_is_made_do_with_and_reported_in_best_effort() -> None:
    heard: list[list[str]] = []
    placement = rack_aware(random.Random(1), on_fallback=heard.append)
    bookies = bookies_of("r1", "r1", "r1")
    assert len(choose(placement, bookies)) == 3
    assert len(heard) == 1
    assert heard[0][0].endswith("spans 1 of 2 racks")
    bookies |= {"b9": BookieInfo("b9", "host", 1, False, rack="r2")}
    assert "b9" in choose(placement, bookies)
    assert len(heard) == 1


def test_without_any_rack_there_is_nothing_to_report() -> None:
    heard: list[list[str]] = []
    assert (
        len(choose(rack_aware(random.Random(1), on_fallback=heard.append), bookies_of(*"   "))) == 3
    )
    bookies = bookies_of("", "", "")
    assert len(choose(rack_aware(random.Random(1), on_fallback=heard.append), bookies)) == 3
    assert len(heard) == 1, "the rack named ' ' is a rack"


def test_a_replacement_takes_the_failed_members_rack_again() -> None:
    bookies = bookies_of("r1", "r2", "r3", "r1", "r2", "r3")
    for seed in SEEDS:
        assert replace(rack_aware(random.Random(seed)), bookies, ["b0", "b1", "b2"], 1) == "b4"


def test_a_replacement_keeps_every_write_set_of_its_place_spread() -> None:
    """(4,2): the place 1 is in the write sets (0,1) and (1,2), but not beside place 3."""
    bookies = bookies_of("r1", "r2", "r1", "r2", "r1", "r2")
    placement = rack_aware(random.Random(1), is_enforced=True)
    for _ in range(20):
        assert replace(placement, bookies, ["b0", "b1", "b2", "b3"], 1, quorum=2) == "b5"


def test_the_rack_of_a_member_that_is_away_is_remembered() -> None:
    bookies = bookies_of("r1", "r2", "r1", "r2")
    placement = rack_aware(random.Random(1), is_enforced=True)
    choose(placement, bookies, 2, 2)
    writable = {name: bookies[name] for name in ("b2", "b3")}
    for _ in range(20):
        assert replace(placement, writable, ["b0", "b1"], 1, quorum=2) == "b3"


def test_a_replacement_that_would_break_the_rule_is_refused_or_reported() -> None:
    bookies = bookies_of("r1", "r2", "r1")
    strict = rack_aware(random.Random(1), is_enforced=True)
    with pytest.raises(NotEnoughBookiesError, match=r"replacement for b1 in b0, b1.*1 more racks"):
        replace(strict, bookies, ["b0", "b1"], 1, quorum=2)
    heard: list[list[str]] = []
    soft = rack_aware(random.Random(1), on_fallback=heard.append)
    assert replace(soft, bookies, ["b0", "b1"], 1, quorum=2) == "b2"
    assert heard == [["write set b0, b2 spans 1 of 2 racks"]]


def test_best_effort_rather_gives_up_a_rack_than_takes_a_quarantined_bookie() -> None:
    bookies = bookies_of("r1", "r1", "r2")
    assert set(choose(rack_aware(random.Random(1)), bookies, 2, 2, avoided=["b2"])) == {"b0", "b1"}
    strict = rack_aware(random.Random(1), is_enforced=True)
    assert "b2" in choose(strict, bookies, 2, 2, avoided=["b2"])


# --- zones ---------------------------------------------------------------------------------------


def test_every_write_set_spans_two_zones_and_different_racks_within_them() -> None:
    bookies = bookies_of("z1/r1", "z1/r1", "z1/r2", "z2/r1", "z2/r1", "z2/r2")
    for seed in SEEDS:
        for size, quorum in ((3, 3), (3, 2), (4, 4), (4, 2)):
            if (size, quorum) == (3, 2):
                continue  # an odd ring cannot alternate between two zones
            chosen = choose(
                zone_aware(random.Random(seed), is_enforced=True), bookies, size, quorum
            )
            for write_set in write_sets(size, quorum):
                members = [chosen[index] for index in write_set]
                assert len({bookies[name].zone for name in members}) == 2
                assert len(racks_of(bookies, members)) == quorum


def test_an_odd_ring_does_not_alternate_between_two_zones() -> None:
    bookies = bookies_of("z1/r1", "z1/r2", "z2/r1", "z2/r2")
    with pytest.raises(NotEnoughBookiesError, match="must span 2 zones"):
        choose(zone_aware(random.Random(1), is_enforced=True), bookies, 3, 2)


def test_zones_need_no_racks() -> None:
    bookies = bookies_of("", "", zone="z1") | {"b9": BookieInfo("b9", "host", 1, False, zone="z2")}
    for seed in SEEDS:
        chosen = choose(zone_aware(random.Random(seed), is_enforced=True), bookies, 2, 2)
        assert "b9" in chosen


def test_best_effort_gives_up_racks_before_zones() -> None:
    heard: list[list[str]] = []
    placement = zone_aware(random.Random(1), racks_min=3, on_fallback=heard.append)
    bookies = bookies_of("z1/r1", "z1/r1", "z2/r1")
    assert len(choose(placement, bookies)) == 3
    assert [each.split("spans ")[1] for each in heard[0]] == ["2 of 3 racks"]


# --- options -------------------------------------------------------------------------------------


def test_opportunistic_striping_settles_for_less_down_to_the_write_quorum() -> None:
    bookies = bookies_of("r1", "r2", "r3")
    placement = OpportunisticStriping(rack_aware(random.Random(1)))
    assert len(choose(placement, bookies, 5, 2)) == 3
    assert len(choose(placement, bookies, 3, 2)) == 3
    with pytest.raises(NotEnoughBookiesError, match="4 bookies is needed, 3 are writable"):
        choose(placement, bookies, 5, 4)
    assert replace(placement, bookies, ["b0", "b1"], 1, quorum=2) == "b2"


def test_a_ring_that_cannot_be_coloured_is_given_up_in_bounded_time() -> None:
    """Twelve places, three racks in every three: racks in a row of period three, or nothing."""
    bookies = bookies_of(*["r1"] * 5, *["r2"] * 5, *["r3"] * 3)
    placement = rack_aware(random.Random(1), racks_min=3, is_enforced=True)
    with pytest.raises(NotEnoughBookiesError):
        choose(placement, bookies, 12, 3)


@pytest.mark.parametrize("kind", ["random", "rack", "zone"])
def test_settings_name_the_placement(kind: str) -> None:
    settings = LedgerSettings.model_validate({"placement": kind, "opportunistic_striping": True})
    placement = placement_of(settings, random.Random(1))
    assert len(choose(placement, bookies_of("r1", "r2"), 3, 2)) == 2
    strict = LedgerSettings.model_validate({"placement": kind, "placement_enforced": True})
    if kind == "random":
        assert len(choose(placement_of(strict, random.Random(1)), bookies_of("", ""), 2, 2)) == 2
    else:
        with pytest.raises(NotEnoughBookiesError):
            choose(placement_of(strict, random.Random(1)), bookies_of("", ""), 2, 2)
