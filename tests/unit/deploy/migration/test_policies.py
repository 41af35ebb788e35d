from magnetar.broker.policies.table import POLICIES
from magnetar.deploy.migration.policies import (
    DURING,
    TOPIC_POLICIES,
    comparable,
    namespace_plan,
    permissions_in,
    topic_setting,
)
from magnetar.deploy.migration.selection import Clusters

CLUSTERS = Clusters("java", "ours", frozenset({"ours", "west"}))


def of_topic(name: str, value: object) -> object:
    (policy,) = [each for each in TOPIC_POLICIES if each.topic == name]
    return topic_setting(policy, value, CLUSTERS)


def test_a_policy_is_set_where_the_target_has_it() -> None:
    document = {
        "message_ttl_in_seconds": 60,
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 5},
        "topicDispatchRate": {"java": {"dispatchThrottlingRateInMsg": 9}, "east": {}},
        "compaction_threshold": 100,
        "backlog_quota_map": {"message_age": {"limitTime": 5, "policy": "producer_exception"}},
        "deduplicationEnabled": False,
    }
    plan = namespace_plan(document, CLUSTERS)
    found = {each.name: each for each in plan.settings}
    assert (found["message_ttl_in_seconds"].path, found["message_ttl_in_seconds"].body) == (
        "messageTTL",
        60,
    )
    assert found["topicDispatchRate"].body == {"dispatchThrottlingRateInMsg": 9}
    assert (found["compaction_threshold"].method, found["compaction_threshold"].body) == (
        "PUT",
        100,
    )
    assert found["backlogQuota message_age"].query == {"backlogQuotaType": "message_age"}
    assert found["deduplicationEnabled"].body is False
    assert plan.unknown == ()


def test_what_the_target_does_not_know_is_told_one_by_one() -> None:
    document = {"dancing_policies": {"steps": 3}, "migrated": False, "new_limit": 7, "other": None}
    assert namespace_plan(document, CLUSTERS).unknown == (
        "dancing_policies = {'steps': 3}",
        "new_limit = 7",
    )


def test_a_policy_without_effect_is_told() -> None:
    plan = namespace_plan({"entryFilters": {"entryFilterNames": "x"}}, CLUSTERS)
    assert len(plan.notes) == 1
    assert "entry filters are not supported" in plan.notes[0]


def test_the_compatibility_of_schemas_is_given_back_in_the_end() -> None:
    for document, expected in (
        ({}, "UNDEFINED"),
        ({"schema_compatibility_strategy": "BACKWARD"}, "BACKWARD"),
    ):
        plan = namespace_plan(document, CLUSTERS)
        assert [
            each.body for each in plan.settings if each.name == "schema_compatibility_strategy"
        ] == [expected]
    assert DURING == "ALWAYS_COMPATIBLE"


def test_clusters_have_the_names_that_they_have_at_the_target() -> None:
    plan = namespace_plan({"replication_clusters": ["java", "west", "north"]}, CLUSTERS)
    (found,) = [each for each in plan.settings if each.path == "replication"]
    assert found.body == ["ours", "west"]
    assert any("north" in note for note in plan.notes)
    alone = namespace_plan({"replication_clusters": ["java"]}, CLUSTERS)
    assert [each for each in alone.settings if each.path == "replication"] == []
    for allowed, expected in ((["java", "west", "north"], ["ours", "west"]), (["java"], ["ours"])):
        plan = namespace_plan({"allowed_clusters": allowed}, CLUSTERS)
        assert [each.body for each in plan.settings if each.path == "allowedClusters"] == [expected]


def test_policies_compare_under_the_names_of_their_clusters() -> None:
    rate = {"dispatchThrottlingRateInMsg": 9}
    ones = comparable({"topicDispatchRate": {"java": rate}, "offload_threshold": -1}, "java")
    others = comparable({"topicDispatchRate": {"ours": rate}}, "ours")
    assert ones == others == {"topicDispatchRate": rate}


def test_policies_of_topics_are_set_if_they_say_anything() -> None:
    for name, value in (
        ("maxProducers", None),
        ("schemaValidationEnforced", False),
        ("subscriptionTypesEnabled", []),
        ("replication", ["north"]),
    ):
        assert of_topic(name, value) is None
    ttl = of_topic("messageTTL", 5)
    assert (ttl.query, ttl.body) == ({"messageTTL": "5"}, None)  # type: ignore[attr-defined]
    assert of_topic("deduplicationEnabled", False).body is False  # type: ignore[attr-defined]


def test_a_topic_that_is_not_copied_with_its_namespace_is_not_copied_at_the_target() -> None:
    for value, expected in ((["java"], ["ours"]), (["java", "west", "north"], ["ours", "west"])):
        assert of_topic("replication", value).body == expected  # type: ignore[attr-defined]


def test_every_policy_of_a_topic_of_the_table_is_looked_at() -> None:
    assert {each.topic for each in TOPIC_POLICIES} == {each.topic for each in POLICIES} - {""}


def test_permissions_are_read_under_the_names_of_all_releases() -> None:
    topics = {"persistent://a/b/c": {"role": ["produce", "consume"]}, "persistent://a/b/d": {}}
    for key in ("destination_auth", "topic_auth"):
        found = permissions_in(
            {"auth_policies": {"namespace_auth": {"r": ["consume"]}, key: topics}}
        )
        assert found.namespace == {"r": ["consume"]}
        assert found.topics == {"persistent://a/b/c": {"role": ["consume", "produce"]}}
    assert permissions_in({}).topics == {}


def test_a_quota_is_compared_without_the_former_name_of_its_limit() -> None:
    quota = {"limitSize": 5, "limitTime": -1, "policy": "producer_exception"}
    ones = comparable({"backlog_quota_map": {"message_age": {**quota, "limit": 5}}}, "java")
    assert ones == comparable({"backlog_quota_map": {"message_age": quota}}, "ours")
    assert comparable({"backlog_quota_map": {"message_age": {"limit": 5}}}, "java") == {
        "backlogQuota message_age": {"limit": 5}
    }
