"""How far a change feed has read each topic: the token that the next feed continues from. Pure.

A token names, for each topic or partition, the last entry whose changes were all delivered. It is
JSON (docs/formats/change-token.md). Callers store it beside the results of the changes. A topic
that the token does not name is read from its beginning.

Between two feeds nothing retains the topic's entries. The next feed therefore checks that every
entry after the token still exists. Where that cannot be known, the entries count as lost: a missed
change would never be noticed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.arrow.errors import DataLossError, OptionError
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.sdk.message_id import MessageId

TOKEN_FORMAT = 1
_SHOWN_CHARACTERS_MAX = 100
_BEGIN_ANEW = "begin anew, without a token and with an empty table"


@dataclass(frozen=True, slots=True)
class Reached:
    """The last entry of a topic whose changes were all delivered."""

    ledger_id: int
    entry_id: int
    is_end: bool = False
    """Whether this is the last entry of its ledger, and the ledger is closed."""

    @property
    def offset(self) -> MessageId:
        return MessageId(self.ledger_id, self.entry_id)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


def encode_token(reached: Mapping[str, Reached]) -> str:
    """Encode a token: `{"format": 1, "topics": {topic: [ledger, entry, is the end of its
    ledger]}}`."""
    topics = {
        topic: [at.ledger_id, at.entry_id, at.is_end] for topic, at in sorted(reached.items())
    }
    return json.dumps({"format": TOKEN_FORMAT, "topics": topics}, separators=(",", ":"))


def parse_token(text: str) -> dict[str, Reached]:
    """Decode a token that `encode_token` wrote.

    Raises:
        OptionError: the text is not such a token.
    """
    try:
        found = json.loads(text)
        if found["format"] != TOKEN_FORMAT:
            raise ValueError(f"its format is {found['format']}, expected {TOKEN_FORMAT}")
        return {str(topic): _reached(*at) for topic, at in found["topics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            "after",
            f"{str(text)[:_SHOWN_CHARACTERS_MAX]!r} is no token of a change feed of this release "
            f"({error})",
        ) from error


def _reached(ledger_id: object, entry_id: object, is_end: object) -> Reached:
    if type(ledger_id) is not int or type(entry_id) is not int or type(is_end) is not bool:
        raise ValueError("a place is [ledger, entry, true or false]")
    if ledger_id < 0 or entry_id < 0:
        raise ValueError("a place is not below 0")
    return Reached(ledger_id, entry_id, is_end)


def check_unbroken(topic: str, state: TopicState | None, at: Reached) -> None:
    """Check that all entries after a position still exist.

    Args:
        state: None if the topic no longer exists.

    Raises:
        DataLossError: some entries are gone, or may be.
    """
    if state is None or not state.is_there:
        raise DataLossError(f"{topic}: the topic was deleted: {_BEGIN_ANEW}")
    if (state.end.ledger_id, state.end.entry_id) < (at.ledger_id, at.entry_id) and state.ledgers:
        raise DataLossError(
            f"{topic}: it ends at {state.end.ledger_id}:{state.end.entry_id}, before {at}, up to "
            f"where its changes were read: it is another topic of the same name: {_BEGIN_ANEW}"
        )
    if any(each.ledger_id == at.ledger_id for each in state.ledgers):
        return
    # The ledger is gone. If all of it had been read, and no later ledger is gone, nothing was
    # missed.
    if not at.is_end or state.removed_through != at.ledger_id:
        raise DataLossError(
            f"{topic}: its changes were read up to {at}, and were trimmed up to ledger "
            f"{max(state.removed_through, at.ledger_id)} since: later ones are lost, or may be: "
            f"{_BEGIN_ANEW}; keep messages for longer than the feed is away"
        )
