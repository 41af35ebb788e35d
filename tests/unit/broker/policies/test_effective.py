"""What counts for a topic: its own policies over its namespace's over the broker's."""

import pytest

from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.policies import default_policies
from magnetar.broker.policies.effective import DEFAULTS, EffectivePolicies, RateLimit, effective
from magnetar.broker.policies.model import (
    AutoTopicCreation,
    BacklogPolicy,
    BacklogQuota,
    DispatchRate,
    NamespaceRecord,
    Persistence,
    PolicySet,
    PublishRate,
    QuotaType,
    Retention,
    SchemaCompatibility,
    SubscriptionType,
    TopicPolicyRecord,
    decode,
)


def test_nothing_set_leaves_the_defaults_of_the_broker() -> None:
    defaults = EffectivePolicies(max_producers=7)
    assert effective(defaults, NamespaceRecord(), PolicySet()) is not None
    assert effective(defaults, NamespaceRecord(), PolicySet()) == defaults
    assert effective(defaults, None) == defaults


def test_a_topic_overrides_its_namespace_which_overrides_the_broker() -> None:
    defaults = EffectivePolicies(max_producers=1, max_consumers=1, max_subscriptions=1)
    namespace = NamespaceRecord(policies=PolicySet(max_producers=2, max_consumers=2))
    found = effective(defaults, namespace, PolicySet(max_producers=3))
    assert (found.max_producers, found.max_consumers, found.max_subscriptions) == (3, 2, 1)


def test_a_namespace_does_not_lift_the_encryption_that_the_broker_requires() -> None:
    for required in (True, False):
        defaults = EffectivePolicies(encryption_required=required)
        for own, wanted in ((None, required), (False, required), (True, True)):
            found = effective(defaults, NamespaceRecord(encryption_required=own))
            assert found.encryption_required == wanted


def test_zero_or_less_switches_a_limit_of_the_level_below_off() -> None:
    defaults = EffectivePolicies(max_producers=5, ttl_s=60)
    namespace = NamespaceRecord(policies=PolicySet(max_producers=0, message_ttl_s=0))
    found = effective(defaults, namespace, PolicySet(publish_rate=PublishRate(messages=-1)))
    assert (found.max_producers, found.ttl_s) == (0, 0)
    assert not found.publish_rate.is_limited


def test_retention_keeps_for_ever_apart_from_not_at_all() -> None:
    def of(minutes: int, mib: int) -> tuple[int, int]:
        policies = PolicySet(retention=Retention(minutes=minutes, mib=mib))
        found = effective(DEFAULTS, NamespaceRecord(policies=policies))
        return found.retention_time_s, found.retention_bytes

    assert of(2, 3) == (120, 3 << 20)
    assert of(-1, -1) == (-1, -1)
    assert of(0, 0) == (0, 0)


def test_each_kind_of_backlog_quota_is_overridden_for_itself() -> None:
    size = BacklogQuota(bytes=1000, policy=BacklogPolicy.EVICT)
    age = BacklogQuota(seconds=60, policy=BacklogPolicy.EXCEPTION)
    namespace = NamespaceRecord(
        policies=PolicySet(backlog_quotas={QuotaType.SIZE: size, QuotaType.AGE: age})
    )
    own = PolicySet(backlog_quotas={QuotaType.AGE: BacklogQuota(seconds=30)})
    found = effective(DEFAULTS, namespace, own)
    assert (found.backlog_quota_bytes, found.backlog_quota_bytes_policy) == (
        1000,
        BacklogPolicy.EVICT,
    )
    assert (found.backlog_quota_s, found.backlog_quota_s_policy) == (30, BacklogPolicy.HOLD)


def test_rates_quorums_types_and_creation_are_told_in_plain_values() -> None:
    namespace = NamespaceRecord(
        policies=PolicySet(
            dispatch_rate=DispatchRate(messages=10, bytes=-1, period_s=5, relative=True),
            subscription_dispatch_rate=DispatchRate(messages=7),
            persistence=Persistence(ensemble=3, write_quorum=3, ack_quorum=2),
            subscription_types=frozenset({SubscriptionType.SHARED}),
        ),
        auto_topic_creation=AutoTopicCreation(allowed=True, is_partitioned=True, partitions=4),
        max_topics=9,
        encryption_required=True,
    )
    own = PolicySet(subscription_dispatch_rates={"slow": DispatchRate(messages=1)})
    found = effective(DEFAULTS, namespace, own)
    assert found.dispatch_rate == RateLimit(10, 0, 5, relative=True)
    assert found.dispatch_rate_of("slow").messages == 1
    assert found.dispatch_rate_of("other").messages == 7
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (3, 3, 2)
    assert found.subscription_types == {SubscriptionType.SHARED}
    assert (found.auto_topic_is_partitioned, found.auto_topic_partitions) == (True, 4)
    assert (found.max_topics, found.encryption_required) == (9, True)


def test_an_empty_set_of_subscription_types_enables_all() -> None:
    namespace = NamespaceRecord(policies=PolicySet(subscription_types=frozenset()))
    assert effective(DEFAULTS, namespace).subscription_types == frozenset(SubscriptionType)


def test_the_settings_are_the_lowest_level() -> None:
    settings = BrokerSettings(
        retention_minutes=5, retention_mib=-1, max_producers_per_topic=4, auto_topic_creation=False
    )
    found = default_policies(settings)
    assert (found.retention_time_s, found.retention_bytes) == (300, -1)
    assert (found.max_producers, found.auto_topic_creation) == (4, False)


def test_the_settings_defaults_are_the_documented_defaults() -> None:
    found = default_policies(BrokerSettings())
    assert found == EffectivePolicies(
        max_subscriptions=2_000, max_consumers_per_subscription=10_000
    )


def test_what_a_newer_release_stored_stays_when_a_record_is_changed() -> None:
    stored = b'{"format":1,"policies":{"max_producers":1,"novelty":{"a":2}},"more":[3]}'
    record = decode(TopicPolicyRecord, "/path", stored)
    policies = record.policies.model_copy(update={"max_producers": 2})
    changed = record.model_copy(update={"policies": policies}).encode()
    assert b'"novelty":{"a":2}' in changed
    assert b'"more":[3]' in changed
    assert b'"max_producers":2' in changed


def test_a_record_of_a_future_format_is_refused_and_named() -> None:
    with pytest.raises(UnreadableRecordError, match="/path holds no NamespaceRecord of format 1"):
        decode(NamespaceRecord, "/path", b'{"format":2}')


@pytest.mark.parametrize("value", [b"", b"[]", b'{"format":1,"policies":{"max_producers":"x"}}'])
def test_a_record_that_makes_no_sense_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableRecordError):
        decode(NamespaceRecord, "/path", value)


@pytest.mark.parametrize(
    ("of_namespace", "former", "of_topic", "counts"),
    [
        (None, None, None, "FULL"),
        ("UNDEFINED", None, "UNDEFINED", "FULL"),
        ("BACKWARD", None, None, "BACKWARD"),
        ("BACKWARD", None, "UNDEFINED", "BACKWARD"),
        ("BACKWARD", None, "FORWARD", "FORWARD"),
        (None, "AutoUpdateDisabled", None, "ALWAYS_INCOMPATIBLE"),
        ("UNDEFINED", "ForwardTransitive", None, "FORWARD_TRANSITIVE"),
        ("BACKWARD", "Full", None, "BACKWARD"),
        (None, "Full", "BACKWARD", "BACKWARD"),
        (None, "Something", None, "FULL"),
    ],
)
def test_the_strategy_of_schemas_has_a_former_name_that_counts_last(
    of_namespace: str | None, former: str | None, of_topic: str | None, counts: str
) -> None:
    def policies(strategy: str | None) -> PolicySet:
        return PolicySet(schema_compatibility=SchemaCompatibility(strategy) if strategy else None)

    namespace = NamespaceRecord(policies=policies(of_namespace), schema_auto_update=former)
    found = effective(EffectivePolicies(), namespace, policies(of_topic))
    assert found.schema_compatibility == counts
