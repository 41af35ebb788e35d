"""Pulsar's names of dynamic settings lead to ours, or to a reason."""

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.dynamic import ALL_NAMES, NAMES, under_both_names
from magnetar.broker.policies.pulsar_names import OURS, PULSARS, WITHOUT_MEANING, our_setting


def test_each_name_leads_to_one_setting_that_can_be_changed_and_back() -> None:
    assert set(OURS.values()) <= set(NAMES)
    assert {PULSARS[ours]: ours for ours in OURS.values()} == dict(OURS)
    assert not set(OURS) & set(WITHOUT_MEANING)
    assert not set(OURS) & set(NAMES)
    assert set(ALL_NAMES) == set(NAMES) | set(OURS)
    assert all(WITHOUT_MEANING.values())


@pytest.mark.parametrize("name", OURS)
def test_the_value_of_a_broker_is_one_that_pulsars_name_takes(name: str) -> None:
    """The units are the same: what is shown under Pulsar's name can be set under it."""
    shown = under_both_names({key: str(value) for key, value in BrokerSettings()})[name]
    ours, value = our_setting(name, shown)
    settings = BrokerSettings.model_validate({ours: value})
    assert getattr(settings, ours) == getattr(BrokerSettings(), ours)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("dispatchThrottlingRatePerTopicInMsg", "-1", ("dispatch_rate_messages", "0")),
        ("backlogQuotaDefaultLimitBytes", " -1", ("backlog_quota_bytes", "0")),
        ("defaultRetentionSizeInMB", "-1", ("retention_mib", "-1")),
        ("dispatch_rate_messages", "-1", ("dispatch_rate_messages", "-1")),
        ("unheardOf", "1", ("unheardOf", "1")),
    ],
)
def test_no_limit_is_said_in_our_way(name: str, value: str, wanted: tuple[str, str]) -> None:
    assert our_setting(name, value) == wanted
