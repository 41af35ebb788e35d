"""Options of other sources are refused with what is meant here."""

import re

import pytest

from magnetar.arrow.stored import options
from magnetar.arrow.stored.errors import OptionError
from magnetar.arrow.stored.options import CONNECTION_NAMES, OptionReader, hint_for
from magnetar.arrow.stored.source_options import NAMES

KNOWN = {*NAMES, *CONNECTION_NAMES}


def test_hints_name_options_that_there_are() -> None:
    hints = {*options._HINTS.values(), *options._PREFIXES.values()}
    named = {name for hint in hints for name in re.findall(r"options? ([A-Za-z.]+)", hint)}
    named -= {"of"}
    assert {name.rstrip(".") for name in named} <= KNOWN
    assert len(named) > 10


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("minPartitions", "sliceBytes"),
        ("groupId", "subscriptionName"),
        ("encryption.key", "option privateKeyFile"),
        ("pulsar.client.tlsTrustStorePath", "option tlsTrustCertsFile"),
        ("pollTimeoutMs", "leave it out"),
        ("minOffsetsPerTrigger", "option minMessagesPerTrigger"),
        ("kafka.session.timeout.ms", "Kafka's"),
        ("pulsar.reader.receiverQueueSize", "docs/spark.md"),
        ("option.topic", "CREATE TEMPORARY VIEW"),
        ("deduplication", "for writing only"),
        ("startingOfsets", "did you mean startingOffsets"),
    ],
)
def test_what_is_meant_is_said(given: str, meant: str) -> None:
    with pytest.raises(OptionError, match=re.escape(meant)):
        OptionReader({given: "x"}).check_names((*CONNECTION_NAMES, *NAMES))


def test_options_of_the_source_are_refused_by_the_sink_as_such() -> None:
    read = OptionReader({"metadata.url": "zk://a", "service.url": "pulsar://a:1"})
    read.text("service.url")
    with pytest.raises(OptionError, match=r"metadata\.url: the sink has .*for reading only"):
        read.finish("sink")
    assert hint_for("service.url") == ""
