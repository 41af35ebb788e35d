"""A bookie's description of itself: whether it takes writes, and how full its directories are.

It is the answer to an INFO without a body, as JSON; layout: docs/formats/bookie-frame.md. The
answer needs no disk reads: the bookie returns the results of its last check of the directories. A
bookie of an older release returns no directories.
"""

import asyncio
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.ledger.channel import BookieChannel
from magnetar.ledger.errors import BookieProtocolError, BookieUnavailableError
from magnetar.ledger.wire import Frame, Op, Status

DIRECTORIES_MAX: Final = 1_000
"""More than any bookie has; an answer with more is refused."""
_NO_LEDGER: Final = -1

DirectoryUse = Literal["bookie", "journal", "ledgers"]
"""`bookie`: the bookie's own directory, which holds the others unless settings say otherwise."""


class DirectoryFacts(BaseModel):
    """One directory of a bookie, and its file system."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    use: DirectoryUse
    free_bytes: int = Field(ge=0)
    total_bytes: int = Field(ge=0)
    level: str = ""
    """Fill level of a ledger directory: `free`, `almost full`, or `full` (takes no entries)."""


class BookieFacts(BaseModel):
    """The description that a bookie gives of itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str = ""
    writable: bool
    read_only_reasons: tuple[str, ...] = ()
    """Reasons why it takes no ordinary writes; empty if it takes them."""
    directories: tuple[DirectoryFacts, ...] = Field(default=(), max_length=DIRECTORIES_MAX)


def decode_facts(body: bytes) -> BookieFacts:
    """Decode the answer to an INFO.

    Raises:
        BookieProtocolError: the body is not such an answer.
    """
    try:
        return BookieFacts.model_validate_json(body)
    except ValidationError as error:
        raise BookieProtocolError(
            f"an answer to INFO that cannot be read: {error.errors()[0]['msg']}: {body[:80]!r}"
        ) from error


async def ask_facts(channel: BookieChannel) -> BookieFacts:
    """Ask a bookie for its facts, within the time limit of a request.

    Raises:
        BookieUnavailableError: the bookie does not answer.
        BookieProtocolError: the answer cannot be read.
    """
    reply: asyncio.Future[Frame | BookieUnavailableError]
    reply = asyncio.get_running_loop().create_future()

    def on_reply(found: Frame | BookieUnavailableError) -> None:
        if not reply.done():  # a cancelled caller no longer waits
            reply.set_result(found)

    channel.send(Op.INFO, (), on_reply, ledger_id=_NO_LEDGER)
    found = await reply
    if isinstance(found, BookieUnavailableError):
        raise found
    if found.status != Status.OK:
        text = found.body.decode("utf-8", "replace")
        raise BookieProtocolError(f"INFO was refused with status {found.status}: {text}")
    return decode_facts(found.body)
