"""What counts for a topic: its own policies over its namespace's over the broker's."""

import json
from pathlib import Path

import pytest

import magnetar.broker
from magnetar.broker.base.errors import UnreadableRecordError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.model import (
    DEFAULTS,
    AutoTopicCreation,
    BacklogPolicy,
    BacklogQuota,
    DispatchRate,
    NamespaceRecord,
    Persistence,
    Policies,
    PublishRate,
    QuotaType,
    Retention,
    SchemaCompatibility,
    SubscriptionType,
    TopicPolicyRecord,
    decode,
)
from magnetar.broker.policies.table import POLICIES, Policy, effective, policies_of_broker


def test_nothing_set_leaves_the_defaults_of_the_broker() -> None:
    defaults = Policies(max_producers=7)
    assert effective(defaults, NamespaceRecord(), Policies()) is not None
    assert effective(defaults, NamespaceRecord(), Policies()) == defaults
    assert effective(defaults, None) == defaults


def test_a_topic_overrides_its_namespace_which_overrides_the_broker() -> None:
    defaults = Policies(max_producers=1, max_consumers=1, max_subscriptions=1)
    namespace = NamespaceRecord(policies=Policies(max_producers=2, max_consumers=2))
    found = effective(defaults, namespace, Policies(max_producers=3))
    assert (found.max_producers, found.max_consumers, found.max_subscriptions) == (3, 2, 1)


def test_a_namespace_does_not_lift_the_encryption_that_the_broker_requires() -> None:
    for required in (True, False):
        defaults = Policies(encryption_required=required)
        for own, wanted in ((None, required), (False, required), (True, True)):
            found = effective(
                defaults, NamespaceRecord(policies=Policies().with_values(encryption_required=own))
            )
            assert found.encryption_required == wanted


def test_zero_or_less_switches_a_limit_of_the_level_below_off() -> None:
    defaults = Policies(max_producers=5, message_ttl_s=60)
    namespace = NamespaceRecord(policies=Policies(max_producers=0, message_ttl_s=0))
    found = effective(defaults, namespace, Policies(publish_rate=PublishRate(messages=-1)))
    assert (found.max_producers, found.message_ttl_s) == (0, 0)
    assert not found.publish_rate.is_limited


def test_retention_keeps_for_ever_apart_from_not_at_all() -> None:
    def of(minutes: int, mib: int) -> tuple[int, int]:
        policies = Policies(retention=Retention(minutes=minutes, mib=mib))
        found = effective(DEFAULTS, NamespaceRecord(policies=policies))
        return found.retention.time_s, found.retention.size_bytes

    assert of(2, 3) == (120, 3 << 20)
    assert of(-1, -1) == (-1, -1)
    assert of(0, 0) == (0, 0)


def test_each_kind_of_backlog_quota_is_overridden_for_itself() -> None:
    size = BacklogQuota(bytes=1000, policy=BacklogPolicy.EVICT)
    age = BacklogQuota(seconds=60, policy=BacklogPolicy.EXCEPTION)
    namespace = NamespaceRecord(
        policies=Policies(backlog_quotas={QuotaType.SIZE: size, QuotaType.AGE: age})
    )
    own = Policies(backlog_quotas={QuotaType.AGE: BacklogQuota(seconds=30)})
    found = effective(DEFAULTS, namespace, own)
    assert (found.size_quota.bytes, found.size_quota.policy) == (1000, BacklogPolicy.EVICT)
    assert (found.age_quota.seconds, found.age_quota.policy) == (30, BacklogPolicy.HOLD)


def test_rates_quorums_types_and_creation_are_told_in_plain_values() -> None:
    namespace = NamespaceRecord(
        policies=Policies(
            dispatch_rate=DispatchRate(messages=10, bytes=-1, period_s=5, relative=True),
            subscription_dispatch_rate=DispatchRate(messages=7),
            persistence=Persistence(ensemble=3, write_quorum=3, ack_quorum=2),
            subscription_types=frozenset({SubscriptionType.SHARED}),
            auto_topic_creation=AutoTopicCreation(allowed=True, is_partitioned=True, partitions=4),
            max_topics=9,
            encryption_required=True,
        )
    )
    own = Policies(subscription_dispatch_rates={"slow": DispatchRate(messages=1)})
    found = effective(DEFAULTS, namespace, own)
    assert found.dispatch_rate == DispatchRate(messages=10, bytes=-1, period_s=5, relative=True)
    assert found.dispatch_rate_of("slow").messages == 1
    assert found.dispatch_rate_of("other").messages == 7
    assert found.persistence == Persistence(ensemble=3, write_quorum=3, ack_quorum=2)
    assert found.subscription_types == {SubscriptionType.SHARED}
    assert found.auto_topic_creation.partitions == 4
    assert (found.max_topics, found.encryption_required) == (9, True)


def test_an_empty_set_of_subscription_types_enables_all() -> None:
    namespace = NamespaceRecord(policies=Policies(subscription_types=frozenset()))
    assert effective(DEFAULTS, namespace).subscription_types == frozenset(SubscriptionType)


def test_the_settings_are_the_lowest_level() -> None:
    settings = BrokerSettings(
        retention_minutes=5, retention_mib=-1, max_producers_per_topic=4, auto_topic_creation=False
    )
    found = policies_of_broker(settings)
    assert (found.retention.time_s, found.retention.size_bytes) == (300, -1)
    assert (found.max_producers, found.auto_topic_creation.allowed) == (4, False)


def test_the_settings_defaults_are_the_documented_defaults() -> None:
    found = policies_of_broker(BrokerSettings())
    wanted = Policies(max_subscriptions=2_000, max_consumers_per_subscription=10_000)
    assert {name: getattr(found, name) for name in Policies.model_fields} == {
        name: getattr(wanted, name) for name in Policies.model_fields
    }


def test_what_a_newer_release_stored_stays_when_a_record_is_changed() -> None:
    stored = b'{"format":1,"policies":{"max_producers":1,"novelty":{"a":2}},"more":[3]}'
    record = decode(TopicPolicyRecord, "/path", stored)
    policies = record.policies.with_values(max_producers=2)
    changed = record.model_copy(update={"policies": policies}).encode()
    assert b'"novelty":{"a":2}' in changed
    assert b'"more":[3]' in changed
    assert b'"max_producers":2' in changed


def test_the_records_of_earlier_releases_are_read_and_written_as_they_were() -> None:
    stored = Path(__file__).with_name("namespace.json").read_bytes()
    record = decode(NamespaceRecord, "/path", stored)
    assert json.loads(record.encode()) == json.loads(stored)
    assert json.loads(stored)["policies"].keys() <= record.policies.model_fields_set
    assert record.policies.model_extra == {}
    found = effective(DEFAULTS, record)
    assert found.retention.time_s == 3600
    assert found.persistence.ack_quorum == 2
    assert found.auto_topic_creation.partitions == 4
    assert found.max_topics == 9
    assert found.encryption_required
    assert not found.allows_schema_update


def test_what_is_set_to_a_default_is_stored_and_unsetting_it_removes_it() -> None:
    policies = Policies().with_values(max_producers=0)
    assert policies != Policies()
    assert json.loads(TopicPolicyRecord(policies=policies).encode())["policies"] == {
        "max_producers": 0
    }
    assert effective(Policies(max_producers=5), None, policies).max_producers == 0
    assert policies.with_values(max_producers=None) == Policies()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.field)
def test_each_policy_has_effect_or_says_why_it_has_none(policy: Policy) -> None:
    broker = Path(magnetar.broker.__file__).parent
    assert bool(policy.acts) != bool(policy.note)
    if policy.acts:
        assert (broker / policy.acts).is_file()


def test_each_policy_of_a_topic_has_a_row() -> None:
    rows = {policy.field for policy in POLICIES if policy.is_of_topics}
    assert rows == set(Policies.model_fields)


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
    def policies(strategy: str | None) -> Policies:
        own = SchemaCompatibility(strategy) if strategy else None
        return Policies().with_values(schema_compatibility=own)

    namespace = NamespaceRecord(policies=policies(of_namespace), schema_auto_update=former)
    found = effective(Policies(), namespace, policies(of_topic))
    assert found.schema_compatibility == counts
