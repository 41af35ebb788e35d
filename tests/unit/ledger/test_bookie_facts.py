"""What a bookie tells of itself is read, whatever release it has; nonsense is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.bookie_facts import DIRECTORIES_MAX, DirectoryFacts, decode_facts
from magnetar.ledger.errors import BookieProtocolError

DIRECTORY: dict[str, Any] = {
    "path": "/data/ledgers",
    "use": "ledgers",
    "free_bytes": 10,
    "total_bytes": 100,
    "level": "almost full",
}


def answer(**more: Any) -> bytes:
    return json.dumps({"bookie_id": "b1", "writable": True, **more}).encode()


def test_directories_are_read_and_fields_of_later_releases_passed_over() -> None:
    facts = decode_facts(answer(directories=[{**DIRECTORY, "later": 1}], later={}))
    assert facts.writable
    assert facts.directories == (
        DirectoryFacts(
            path="/data/ledgers", use="ledgers", free_bytes=10, total_bytes=100, level="almost full"
        ),
    )


def test_a_bookie_of_an_older_release_tells_no_directories() -> None:
    facts = decode_facts(answer(version="1", read_only_reasons=["a disk of the bookie is full"]))
    assert facts.directories == ()
    assert facts.read_only_reasons == ("a disk of the bookie is full",)


def test_so_many_directories_are_read_and_no_more() -> None:
    found = decode_facts(answer(directories=[DIRECTORY] * DIRECTORIES_MAX))
    assert len(found.directories) == DIRECTORIES_MAX
    with pytest.raises(BookieProtocolError, match="cannot be read"):
        decode_facts(answer(directories=[DIRECTORY] * (DIRECTORIES_MAX + 1)))


@pytest.mark.parametrize(
    "change",
    [{"use": "something"}, {"free_bytes": -1}, {"total_bytes": "much"}, {"path": None}],
)
def test_a_directory_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BookieProtocolError, match="cannot be read"):
        decode_facts(answer(directories=[{**DIRECTORY, **change}]))


@given(st.binary(max_size=60))
def test_any_bytes_are_facts_or_an_error_of_the_protocol(body: bytes) -> None:
    try:
        decode_facts(body)
    except BookieProtocolError:
        pass
