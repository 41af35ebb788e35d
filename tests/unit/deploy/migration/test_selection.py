import pytest

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.migration.selection import (
    Clusters,
    TopicPlan,
    chosen_namespaces,
    namespaces_wanted,
    plain_topics,
    tenant_body,
)
from magnetar.sdk.wire import TopicName


def test_namespaces_are_given_with_commas() -> None:
    assert namespaces_wanted(" a/b, c/d,a/b,") == ("a/b", "c/d")
    assert namespaces_wanted("") == ()
    for text in ("a", "a/b/c", "a/"):
        with pytest.raises(SettingsError, match="tenant/namespace"):
            namespaces_wanted(text)


def test_all_namespaces_but_the_clusters_own_are_moved_if_none_is_given() -> None:
    found = ["public/default", "pulsar/system", "pulsar/host:8080", "public/functions", "a/east/b"]
    assert chosen_namespaces([*found, "a/b:2"], ()) == ["a/b:2", "public/default"]
    assert chosen_namespaces(found, ("public/functions",)) == ["public/functions"]


def test_a_namespace_that_the_source_does_not_have_is_told() -> None:
    with pytest.raises(SettingsError, match="no namespace a/c; it has a/b"):
        chosen_namespaces(["a/b"], ("a/c",))


def test_topics_are_plain_if_they_are_no_partitions_and_no_system_topics() -> None:
    base = "persistent://public/default/"
    names = [
        f"{base}plain",
        f"{base}parts-partition-0",
        f"{base}parts-partition-1",
        f"{base}lone-partition-3",
        f"{base}__change_events",
        f"{base}__transaction_buffer_snapshot",
        f"{base}__mine",
    ]
    found, refused = plain_topics(names, {f"{base}parts": 2})
    assert [str(each) for each in found] == [f"{base}plain"]
    assert len(refused) == 2
    assert "__mine" in refused[0]
    assert "lone-partition-3" in refused[1]


def test_a_plain_topic_with_the_name_of_a_partitioned_one_is_told() -> None:
    name = "persistent://public/default/x"
    found, refused = plain_topics([name, f"{name}-partition-0"], {name: 1})
    assert found == []
    (line,) = refused
    assert line.startswith(f"topic {name} is not moved: ")
    assert plain_topics([name], {name: 0}) == ([], []), "there is a note about the whole topic"


def test_a_topic_has_its_messages_in_its_partitions() -> None:
    name = TopicName.parse("parts")
    assert [str(each) for each in TopicPlan(name, 2).parts] == [
        "persistent://public/default/parts-partition-0",
        "persistent://public/default/parts-partition-1",
    ]
    assert TopicPlan(name).parts == (name,)
    assert TopicPlan(TopicName.parse("non-persistent://a/b/c"), 2).parts == ()


def test_a_tenant_may_use_the_clusters_that_the_target_knows() -> None:
    clusters = Clusters("java", "ours", frozenset({"ours"}))
    info = {"adminRoles": ["z", "a"], "allowedClusters": ["java", "west"]}
    assert tenant_body(info, clusters) == (
        {"adminRoles": ["a", "z"], "allowedClusters": ["ours"]},
        ["west"],
    )
