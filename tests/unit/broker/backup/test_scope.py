"""The scope of a backup (`scope.py`)."""

import pytest

from magnetar.broker.base.errors import InvalidNameError, InvalidTopicNameError
from magnetar.broker.base.naming import log_path, topic_of
from magnetar.broker.features.backup.scope import Scope, is_backed_up, topic_of_log

TOPIC = topic_of("persistent://t/n/a b")


@pytest.mark.parametrize("name", ["t/n/x", "persistent://t/n/a b%2F~é", "t/n/x-partition-3"])
def test_a_logs_path_says_which_topic_it_is_of(name: str) -> None:
    assert topic_of_log(log_path(topic_of(name))) == topic_of(name)


@pytest.mark.parametrize(
    "path",
    [
        "/managed-ledgers/t/n/transactions/x",
        "/managed-ledgers/t/n/persistent",
        "/other/t/n/persistent/x",
        "/managed-ledgers/t/n/persistent/x/cursor",
    ],
)
def test_other_paths_are_of_no_topic(path: str) -> None:
    assert topic_of_log(path) is None


def test_everything_is_in_an_empty_scope() -> None:
    scope = Scope.of()
    assert scope.has_topic(TOPIC)
    assert scope.has_namespace("t/n")
    assert scope.has_tenant("t")
    assert str(scope) == ""


@pytest.mark.parametrize(
    ("scope", "tenant", "namespace", "topic"),
    [
        (Scope.of(tenant="t"), True, True, True),
        (Scope.of(tenant="u"), False, False, False),
        (Scope.of(namespace="t/n"), True, True, True),
        (Scope.of(namespace="t/m"), True, False, False),
        (Scope.of(topic="t/n/a b"), True, True, True),
        (Scope.of(topic="t/n/b"), True, True, False),
        (Scope.of(topic="u/n/a b"), False, False, False),
    ],
)
def test_a_scope_has_what_is_in_it_and_what_that_is_in(
    scope: Scope, tenant: bool, namespace: bool, topic: bool
) -> None:
    found = (scope.has_tenant("t"), scope.has_namespace("t/n"), scope.has_topic(TOPIC))
    assert found == (tenant, namespace, topic)


def test_a_topic_is_meant_with_its_partitions() -> None:
    scope = Scope.of(topic="t/n/x")
    assert scope.has_topic(topic_of("t/n/x-partition-0"))
    assert not Scope.of(topic="t/n/x-partition-1").has_topic(topic_of("t/n/x-partition-0"))


@pytest.mark.parametrize(
    ("tenant", "namespace", "topic"),
    [("t", "t/n", ""), ("", "t", ""), ("t/n", "", ""), ("", "", "non-persistent://t/n/x")],
)
def test_what_cannot_be_meant_is_refused(tenant: str, namespace: str, topic: str) -> None:
    with pytest.raises(InvalidNameError):
        Scope.of(tenant=tenant, namespace=namespace, topic=topic)


def test_a_topic_of_no_known_shape_is_refused() -> None:
    with pytest.raises(InvalidTopicNameError):
        Scope.of(topic="a/b")


def test_topics_of_the_cluster_itself_are_left_out() -> None:
    assert is_backed_up(TOPIC)
    assert not is_backed_up(topic_of("pulsar/system/transaction_coordinator_assign-partition-0"))
