"""Names of topics that have a layout."""

import pytest

from magnetar.sdk.scalable.names import LayoutName, is_scalable_name
from magnetar.sdk.wire.errors import TopicNameError


def test_a_scalable_name_goes_as_it_is_given() -> None:
    name = LayoutName.parse("topic://public/default/t")
    assert str(name) == "topic://public/default/t"
    assert str(name.whole) == "persistent://public/default/t"


def test_a_short_name_is_that_of_an_ordinary_topic() -> None:
    assert str(LayoutName.parse("t")) == "persistent://public/default/t"
    assert not is_scalable_name("t")


@pytest.mark.parametrize(
    "name",
    [
        "topic://t",
        "topic://public/default/",
        "topic://public/default/t-partition-1",
        "t-partition-1",
        "non-persistent://public/default/t",
        "segment://public/default/t/0000-ffff-0",
    ],
)
def test_other_names_are_refused_by_name(name: str) -> None:
    with pytest.raises(TopicNameError):
        LayoutName.parse(name)
