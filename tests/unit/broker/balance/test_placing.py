"""Choice of the broker that gets a bundle without an owner."""

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId, Layout
from magnetar.broker.cluster.balance.load_report import BundleCosts, BundleLoad, LoadReport
from magnetar.broker.cluster.balance.placing import Candidate, Placing

COSTS = BundleCosts(BrokerSettings(bundle_bytes_rate_max=100e6))
BUNDLES = [BundleId("public/default", bundle) for bundle in Layout.even(64).bundles]


def placing(*candidates: Candidate, remembered_s: float = 15.0) -> Placing:
    made = Placing(COSTS, usage_percent_max=85.0, remembered_s=remembered_s)
    made.learn(candidates)
    return made


def candidate(
    name: str,
    topics: int = 0,
    *,
    cpu: float = 0.0,
    topics_max: int = 100_000,
    bundle: BundleId | None = None,
    is_draining: bool = False,
) -> Candidate:
    owned = {str(bundle or f"{name}/x/0x00000000_0xffffffff"): BundleLoad(topics=topics)}
    report = LoadReport(
        cpu_percent=cpu,
        topics=topics,
        topics_max=topics_max,
        bundles=owned if topics or bundle else {},
    )
    return Candidate(name, report, is_draining=is_draining)


def test_the_broker_with_the_least_to_do_gets_it() -> None:
    choice = placing(candidate("a", 900), candidate("b", 300), candidate("c", 600))
    assert choice.choose(BUNDLES[0], now_s=0.0) == "b"


def test_a_broker_that_has_joined_just_now_has_nothing_to_do() -> None:
    choice = placing(candidate("a", 1), Candidate("b", None))
    assert choice.choose(BUNDLES[0], now_s=0.0) == "b"


def test_nobody_gets_it_when_nobody_is_there() -> None:
    assert placing().choose(BUNDLES[0], now_s=0.0) is None


def test_two_who_ask_for_one_bundle_are_sent_to_one_place() -> None:
    choice = placing(candidate("a"), candidate("b"))
    first = choice.choose(BUNDLES[0], now_s=0.0)
    choice.choose(BUNDLES[1], now_s=0.0)
    assert choice.choose(BUNDLES[0], now_s=1.0) == first


def test_many_bundles_at_once_are_spread_although_no_report_has_come() -> None:
    choice = placing(candidate("a"), candidate("b"), candidate("c"), candidate("d"))
    given = [choice.choose(bundle, now_s=0.0) for bundle in BUNDLES]
    assert {given.count(name) for name in "abcd"} == {16}


def test_a_bundle_whose_clients_are_not_back_yet_counts_for_what_it_cost() -> None:
    """The owner died; the new one reports the bundle with one of its 800 topics."""
    heavy, next_one, later = BUNDLES[:3]
    load = {str(heavy): BundleLoad(topics=800)}
    choice = placing(Candidate("dead", LoadReport(topics=800, topics_max=1000, bundles=load)))
    choice.learn([Candidate("a", None), candidate("b", 10)])
    assert choice.choose(heavy, now_s=0.0) == "a"
    choice.learn([candidate("a", 1, bundle=heavy), candidate("b", 100)])
    assert choice.choose(next_one, now_s=1.0) == "b"
    # After the time for which a choice is remembered, what is reported counts.
    assert choice.choose(later, now_s=20.0) == "a"


def test_an_old_choice_is_forgotten_in_time_also_if_a_newer_one_was_reported_first() -> None:
    old, new = BUNDLES[:2]
    loads = {str(old): BundleLoad(topics=500), str(new): BundleLoad(topics=1)}
    choice = placing(Candidate("a", LoadReport(bundles=loads)))
    choice.note(old, "b", now_s=0.0)
    choice.note(new, "b", now_s=10.0)
    other = candidate("c", 100)
    for shown in ([new], [new, old]):
        report = LoadReport(bundles={str(each): BundleLoad(topics=1) for each in shown})
        choice.learn([Candidate("b", report), other])
    assert choice.choose(BUNDLES[2], now_s=14.9) == "c", "the clients of the old one may come back"
    assert choice.choose(BUNDLES[3], now_s=15.0) == "b"


def test_bundles_of_a_broker_that_died_are_spread_by_what_they_cost() -> None:
    loads = [800, 200, 200, 200, 200]
    dead = Candidate(
        "dead",
        LoadReport(
            bundles={
                str(bundle): BundleLoad(topics=topics)
                for bundle, topics in zip(BUNDLES, loads, strict=False)
            }
        ),
    )
    choice = placing(dead, Candidate("a", None), Candidate("b", None))
    choice.learn([Candidate("a", None), Candidate("b", None)])
    given: dict[str | None, int] = {}
    for bundle, topics in zip(BUNDLES, loads, strict=False):
        name = choice.choose(bundle, now_s=0.0)
        given[name] = given.get(name, 0) + topics
    assert given == {"a": 800, "b": 800}


def test_a_choice_is_forgotten_when_the_report_shows_the_bundle() -> None:
    choice = placing(candidate("a"), candidate("b"))
    name = choice.choose(BUNDLES[0], now_s=0.0)
    assert name == "a"
    choice.learn([candidate("a", 1, bundle=BUNDLES[0]), candidate("b")])
    assert choice.assigned(now_s=0.0) == {}


def test_a_choice_that_no_report_shows_is_forgotten_in_time() -> None:
    choice = placing(candidate("a"), candidate("b"), remembered_s=15.0)
    assert choice.choose(BUNDLES[0], now_s=0.0) == "a"
    assert choice.choose(BUNDLES[1], now_s=14.9) == "b"
    assert choice.choose(BUNDLES[2], now_s=15.0) == "a"


def test_a_chosen_broker_that_goes_is_replaced_at_once() -> None:
    choice = placing(candidate("a"), candidate("b"))
    assert choice.choose(BUNDLES[0], now_s=0.0) == "a"
    choice.learn([candidate("b")])
    assert choice.choose(BUNDLES[0], now_s=0.1) == "b"


def test_a_draining_or_excluded_broker_gets_nothing() -> None:
    choice = placing(candidate("a", is_draining=True), candidate("b"), candidate("c", 5))
    assert choice.choose(BUNDLES[0], now_s=0.0, excluding=["b"]) == "c"
    assert choice.choose(BUNDLES[1], now_s=0.0, excluding=["b", "c"]) is None


def test_a_full_broker_gets_nothing_even_if_it_is_the_only_one() -> None:
    choice = placing(candidate("a", 500, topics_max=500))
    assert choice.choose(BUNDLES[0], now_s=0.0) is None


def test_topics_that_were_just_given_away_count_for_the_maximum() -> None:
    known = Candidate("dead", LoadReport(bundles={str(BUNDLES[0]): BundleLoad(topics=400)}))
    choice = placing(known, candidate("a", 200, topics_max=500))
    choice.learn([candidate("a", 200, topics_max=500)])
    assert choice.choose(BUNDLES[0], now_s=0.0) == "a"
    assert choice.choose(BUNDLES[1], now_s=0.0) is None


def test_an_overloaded_broker_is_passed_over_unless_all_are() -> None:
    choice = placing(candidate("a", 1, cpu=95.0), candidate("b", 900, cpu=50.0))
    assert choice.choose(BUNDLES[0], now_s=0.0) == "b"
    choice = placing(candidate("a", 1, cpu=95.0), candidate("b", 900, cpu=90.0))
    assert choice.choose(BUNDLES[0], now_s=0.0) == "a"
