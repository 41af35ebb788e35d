"""When bookies count as lost, and when an audit is due; time is a number here."""

import pytest

from magnetar.ledger.autorecovery.lost_bookies import DueAudit, LossRules, LostBookies

RULES = LossRules(
    gather_s=1.0,
    mass_loss_share=0.4,
    mass_loss_bookies_min=2,
    mass_loss_window_s=300.0,
    mass_loss_wait_s=30.0,
)
TEN = [f"b{number}" for number in range(10)]


def bookies(*, delay_s: float = 0.0, settled_s: float = 0.0) -> LostBookies:
    """Ten bookies, all of which are registered at 0 s."""
    made = LostBookies(RULES, settled_s=settled_s, delay_s=delay_s)
    made.on_registered(TEN, now_s=0.0)
    made.on_cookies(TEN, now_s=0.0)
    return made


def without(*gone: str) -> list[str]:
    return [bookie_id for bookie_id in TEN if bookie_id not in gone]


def audit(lost: LostBookies) -> None:
    """An audit that succeeds, while nothing happens."""
    lost.on_audited(lost.begin_audit())


def test_while_all_are_registered_there_is_no_audit() -> None:
    assert bookies().due(100.0) is None


def test_without_a_delay_a_lost_bookie_is_audited_after_the_gathering() -> None:
    lost = bookies()
    lost.on_registered(without("b1"), now_s=10.0)
    assert lost.due(10.0) == DueAudit(11.0, "lost")
    assert lost.open == {"b1"}


def test_a09_a_bookie_that_turns_read_only_is_not_lost() -> None:
    """Both lists make up what is registered; the lists themselves are the term's business."""
    lost = bookies()
    lost.on_registered([*without("b1"), "b1"], now_s=10.0)
    assert lost.due(20.0) is None


def test_a10_bookies_that_went_while_there_was_no_auditor_are_known_from_their_cookies() -> None:
    lost = LostBookies(RULES, settled_s=15.0, delay_s=0.0)
    lost.on_registered(without("b1"), now_s=0.0)
    lost.on_cookies(TEN, now_s=0.0)
    assert lost.open == {"b1"}
    assert lost.due(0.0) == DueAudit(15.0, "lost")


def test_what_an_audit_has_dealt_with_is_not_audited_again() -> None:
    lost = bookies()
    lost.on_registered(without("b1"), now_s=10.0)
    audit(lost)
    assert lost.due(1000.0) is None
    assert list(lost.away) == ["b1"]


def test_a_bookie_that_comes_back_and_goes_again_is_audited_again() -> None:
    lost = bookies()
    lost.on_registered(without("b1"), now_s=10.0)
    audit(lost)
    lost.on_registered(TEN, now_s=20.0)
    lost.on_registered(without("b1"), now_s=30.0)
    assert lost.due(30.0) == DueAudit(31.0, "lost")


def test_a_bookie_that_was_back_during_the_audit_is_not_covered_by_it() -> None:
    lost = bookies()
    lost.on_registered(without("b1"), now_s=10.0)
    covered = lost.begin_audit()
    lost.on_registered(TEN, now_s=20.0)
    lost.on_registered(without("b1"), now_s=21.0)
    lost.on_audited(covered)
    assert lost.due(21.0) == DueAudit(22.0, "lost")


def test_a_single_lost_bookie_is_waited_for() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1"), now_s=10.0)
    assert lost.is_delayed
    assert lost.due(10.0) == DueAudit(310.0, "delayed")
    assert (lost.delayed_scheduled, lost.delayed_cancelled) == (1, 0)


def test_the_delayed_audit_is_cancelled_when_the_bookie_comes_back() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1"), now_s=10.0)
    lost.on_registered(TEN, now_s=309.0)
    assert not lost.is_delayed
    assert lost.due(1000.0) is None
    assert (lost.delayed_scheduled, lost.delayed_cancelled) == (1, 1)


def test_a_restart_one_after_the_other_never_leads_to_an_audit() -> None:
    lost = bookies(delay_s=60.0)
    now_s = 0.0
    for name in TEN:
        lost.on_registered(without(name), now_s=now_s)
        now_s += 50.0
        assert (due := lost.due(now_s)) is not None
        assert due.at_s > now_s
        lost.on_registered(TEN, now_s=now_s)
        assert lost.due(now_s) is None
    assert lost.delayed_cancelled == 10


def test_with_a_second_lost_bookie_nothing_is_waited_for() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1"), now_s=10.0)
    lost.on_registered(without("b1", "b2"), now_s=50.0)
    assert not lost.is_delayed
    assert lost.due(50.0) == DueAudit(11.0, "lost")


def test_after_the_audit_of_one_the_next_single_one_is_waited_for_again() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1"), now_s=10.0)
    audit(lost)
    lost.on_registered(without("b1", "b2"), now_s=500.0)
    assert lost.due(500.0) == DueAudit(800.0, "delayed")


def test_one_that_goes_while_the_others_are_audited_gets_its_own_delay() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1", "b2"), now_s=10.0)
    covered = lost.begin_audit()
    lost.on_registered(without("b1", "b2", "b3"), now_s=20.0)
    lost.on_audited(covered)
    assert lost.due(20.0) == DueAudit(320.0, "delayed")


def test_a_changed_delay_counts_from_the_moment_when_the_bookie_went() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1"), now_s=10.0)
    lost.on_delay(600.0, now_s=100.0)
    assert lost.due(100.0) == DueAudit(610.0, "delayed")
    lost.on_delay(0.0, now_s=200.0)
    assert lost.due(200.0) == DueAudit(11.0, "lost")
    assert lost.delayed_cancelled == 0


def test_the_same_delay_again_asks_for_an_audit_at_once() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_delay(300.0, now_s=50.0)
    assert lost.due(50.0) == DueAudit(50.0, "asked")
    lost.begin_audit()
    assert lost.due(50.0) is None


def test_who_asks_during_an_audit_gets_another_one() -> None:
    lost = bookies()
    lost.on_asked(now_s=50.0)
    covered = lost.begin_audit()
    lost.on_asked(now_s=60.0)
    lost.on_audited(covered)
    assert lost.due(61.0) == DueAudit(60.0, "asked")


def test_asking_makes_an_audit_due_although_a_delay_is_running() -> None:
    lost = bookies(delay_s=300.0)
    lost.on_registered(without("b1"), now_s=10.0)
    lost.on_asked(now_s=20.0)
    assert lost.due(20.0) == DueAudit(20.0, "asked")
    audit(lost)
    assert not lost.is_delayed
    assert lost.due(1000.0) is None
    assert lost.delayed_cancelled == 0


def test_a11_when_many_go_at_once_the_audit_waits_and_the_alarm_is_on() -> None:
    lost = bookies()
    lost.on_registered(without(*TEN[:5]), now_s=10.0)
    assert lost.is_mass_loss(10.0)
    assert lost.due(10.0) == DueAudit(40.0, "mass_loss")


def test_a11_bookies_that_register_again_after_an_outage_are_not_lost() -> None:
    lost = bookies()
    lost.on_registered([], now_s=10.0)
    lost.on_registered(TEN[:9], now_s=15.0)
    assert not lost.is_mass_loss(15.0)
    lost.on_registered(TEN, now_s=16.0)
    assert lost.due(16.0) is None


def test_a11_the_last_one_that_is_still_away_when_the_others_are_back_gets_its_time() -> None:
    lost = bookies()
    lost.on_registered([], now_s=10.0)
    lost.on_registered(TEN[:5], now_s=12.0)
    lost.on_registered(TEN[:9], now_s=15.0)
    assert lost.due(15.0) == DueAudit(42.0, "lost")
    lost.on_registered(TEN, now_s=41.0)
    assert lost.due(100.0) is None


def test_a11_more_that_go_lengthen_the_wait() -> None:
    lost = bookies()
    lost.on_registered(without(*TEN[:5]), now_s=10.0)
    lost.on_registered(without(*TEN[:6]), now_s=30.0)
    assert lost.due(30.0) == DueAudit(60.0, "mass_loss")


def test_a11_a_mass_loss_lasts_until_enough_of_its_bookies_are_back() -> None:
    lost = bookies()
    lost.on_registered(without(*TEN[:5]), now_s=10.0)
    audit(lost)
    assert lost.is_mass_loss(86_400.0), "no time that passes brings a bookie back"
    lost.on_registered(without(*TEN[:6]), now_s=86_400.0)
    lost.on_registered(without(*TEN[1:6]), now_s=90_000.0)
    assert lost.is_mass_loss(180_000.0), "more that go are part of it"
    lost.on_registered(without(*TEN[1:5]), now_s=180_000.0)
    assert not lost.is_mass_loss(180_000.0)
    lost.on_registered(without(*TEN[:5]), now_s=180_010.0)
    assert lost.is_mass_loss(180_010.0), "a bookie that comes and goes does not end it"
    assert lost.is_mass_loss(270_000.0)


def test_a11_a_mass_loss_that_ended_does_not_come_back_with_a_single_bookie() -> None:
    lost = bookies()
    lost.on_registered(without(*TEN[:5]), now_s=10.0)
    lost.on_registered(without(*TEN[:4]), now_s=1000.0)
    assert not lost.is_mass_loss(1000.0)
    lost.on_registered(without(*TEN[:4], "b9"), now_s=90_000.0)
    assert not lost.is_mass_loss(90_000.0), "one of six"
    lost.on_registered(without(*TEN[:4], *TEN[7:]), now_s=90_010.0)
    assert lost.is_mass_loss(90_010.0), "three of six are another mass loss"


@pytest.mark.parametrize("more", [0, 1])
def test_a11_old_cookies_that_a_new_auditor_finds_are_no_mass_loss_for_good(more: int) -> None:
    """A new auditor cannot tell bookies that died over months from an outage of this minute."""
    lost = LostBookies(RULES, settled_s=15.0, delay_s=0.0)
    lost.on_registered(TEN[4:], now_s=0.0)
    lost.on_cookies([*TEN, "old"], now_s=0.0)
    assert lost.is_mass_loss(0.0), "it may be an outage"
    lost.on_registered(TEN[4 + more :], now_s=60.0)
    assert lost.is_mass_loss(3_600.0), "no sooner than operators can come"
    assert not lost.is_mass_loss(86_400.0)
    lost.on_registered(TEN[5 + more :], now_s=86_400.0)
    assert not lost.is_mass_loss(86_400.0), "one that goes a day later is a single loss"


def test_a11_a_mass_loss_lasts_when_the_auditor_goes_with_it() -> None:
    lost = LostBookies(RULES, settled_s=15.0, delay_s=0.0)
    lost.on_cookies(TEN, now_s=0.0)
    lost.on_registered(without(*TEN[:5]), now_s=0.0)
    audit(lost)
    lost.on_registered(without(*TEN[:6]), now_s=3_600.0)
    lost.on_registered(without(*TEN[1:6]), now_s=4_000.0)
    assert lost.is_mass_loss(5_000.0), "one that comes and goes does not end it"
    lost.on_registered(without(*TEN[1:5]), now_s=5_000.0)
    assert not lost.is_mass_loss(5_000.0), "enough are back"


def test_a11_a_mass_loss_lasts_until_enough_of_its_bookies_are_decommissioned() -> None:
    lost = bookies()
    lost.on_registered(without(*TEN[:5]), now_s=10.0)
    lost.on_asked(now_s=1000.0)
    audit(lost)
    assert lost.is_mass_loss(1000.0), "who asks for an audit gets one, at the same pace"
    lost.on_cookies(without(*TEN[:2]), now_s=2000.0)
    assert not lost.is_mass_loss(2000.0)


def test_a11_a_bookie_that_comes_and_goes_in_a_mass_loss_holds_up_no_audit() -> None:
    """The wait is for bookies that went lately; else one of them could put it off for ever."""
    lost = bookies()
    lost.on_registered(without(*TEN[:6]), now_s=10.0)
    lost.on_registered(without(*TEN[:5]), now_s=1000.0)
    lost.on_registered(without(*TEN[:6]), now_s=1010.0)
    assert lost.is_mass_loss(1010.0)
    assert lost.due(1010.0) == DueAudit(40.0, "mass_loss")


@pytest.mark.parametrize(("gone", "is_mass_loss"), [(4, False), (5, True)])
def test_a11_the_share_is_a_bound_and_not_reached_by_it(gone: int, is_mass_loss: bool) -> None:
    lost = bookies()
    lost.on_registered(without(*TEN[:gone]), now_s=10.0)
    assert lost.is_mass_loss(10.0) is is_mass_loss


def test_a11_a_single_bookie_of_two_is_no_mass_loss() -> None:
    lost = LostBookies(RULES, settled_s=0.0, delay_s=0.0)
    lost.on_registered(["b1", "b2"], now_s=0.0)
    lost.on_registered(["b1"], now_s=1.0)
    assert not lost.is_mass_loss(1.0)


def test_a11_losses_one_by_one_over_hours_are_no_mass_loss() -> None:
    lost = bookies()
    for number in range(1, 8):
        lost.on_registered(without(*TEN[:number]), now_s=number * 3600.0)
        assert not lost.is_mass_loss(number * 3600.0)


def test_nothing_is_believed_before_the_auditor_has_settled() -> None:
    lost = bookies(settled_s=15.0)
    lost.on_registered(without("b1"), now_s=2.0)
    assert lost.due(2.0) == DueAudit(15.0, "lost")


def test_a_bookie_whose_cookie_is_deleted_is_not_known_any_more() -> None:
    lost = bookies()
    lost.on_registered(without("b1"), now_s=10.0)
    lost.on_cookies(without("b1"), now_s=20.0)
    assert not lost.away
    assert lost.due(100.0) is None


def test_a_bookie_without_a_cookie_is_known_once_it_was_seen() -> None:
    lost = LostBookies(RULES, settled_s=0.0, delay_s=0.0)
    lost.on_registered(["b1", "b2", "b3"], now_s=0.0)
    lost.on_registered(["b1", "b2"], now_s=5.0)
    assert lost.open == {"b3"}
