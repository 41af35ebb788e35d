"""What is not archived to tables is refused before anything is read."""

import pytest

from magnetar.arrow.errors import OptionError
from magnetar.arrow.iceberg.archiving import ArchiveSettings


def test_scalable_topics_are_refused() -> None:
    source = {
        "service.url": "pulsar://h:1",
        "admin.url": "http://h:1",
        "topic": "topic://public/default/t",
    }
    with pytest.raises(OptionError, match="scalable topics are not archived"):
        ArchiveSettings(source=source, table="lake.t").source_options()
