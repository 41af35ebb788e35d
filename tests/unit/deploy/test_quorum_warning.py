"""What a broker says at its start of quorums with which one disk is the only promise."""

import pytest
from structlog.testing import capture_logs

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.deploy.broker_server import warn_of_one_copy


@pytest.mark.parametrize(
    ("quorum", "warns"),
    [((1, 1, 1), True), ((3, 3, 1), True), ((3, 2, 1), True), ((2, 2, 2), False)],
)
def test_an_ack_quorum_of_one_is_warned_of(quorum: tuple[int, int, int], warns: bool) -> None:
    ensemble, write, ack = quorum
    settings = BrokerSettings(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    with capture_logs() as lines:
        warn_of_one_copy(settings)
    assert [each["event"] for each in lines] == ["ack_quorum_of_one"] * warns
    if warns:
        assert "--bookies 3" in lines[0]["reason"]
