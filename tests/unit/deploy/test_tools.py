"""What the tools say beside what they print."""

import io
import sys

import pytest

from magnetar.deploy.tools import _say_stored


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("count", "words"), [(1, "1 message stored"), (2, "2 messages stored")])
def test_a_person_is_told_what_keeps_messages_and_a_script_is_not(
    monkeypatch: pytest.MonkeyPatch, count: int, words: str
) -> None:
    for stream, lines in ((Terminal(), 2), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stderr", stream)
        _say_stored(count)
        told = stream.getvalue().splitlines()
        assert told[0] == words
        assert len(told) == lines
        assert ("until every subscription has acknowledged" in told[-1]) is (lines == 2)
