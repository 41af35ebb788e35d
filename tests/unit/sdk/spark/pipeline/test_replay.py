"""The name of a replay, by which it is known again."""

from magnetar.sdk.spark.pipeline.job import ClusterAddress
from magnetar.sdk.spark.pipeline.replay import ReplaySettings

BROKERS = ClusterAddress(service_url="pulsar://b", admin_url="http://b")


def name(*, topics: str = "", to: str = "t", by_key: int = 0, url: str = "file:/a") -> str:
    settings = ReplaySettings(brokers=BROKERS, archive="a", topics=topics, to=to, by_key=by_key)
    return settings.name_in(url)


def test_replays_of_other_messages_have_other_names() -> None:
    names = {
        name(),
        name(to="u"),
        name(by_key=1),
        name(url="file:/b"),
        name(topics="one"),
        name(topics="one,two"),
    }
    assert len(names) == 6


def test_a_replay_that_is_started_again_has_its_name() -> None:
    assert name(topics="one,two") == name(topics=" two, one")
