"""What a bookie tells of itself: whether it takes writes, and how full its directories are.

The answer to an INFO without a body, as JSON; layout: docs/formats/bookie-frame.md. Nothing is read
from a disk for it: the bookie tells what its last look at the directories has found. A bookie of a
release before this one tells no directories.
"""

import asyncio
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.ledger.channel import BookieChannel
from magnetar.ledger.errors import BookieProtocolError, BookieUnavailableError
from magnetar.ledger.wire import Frame, Op, Status

DIRECTORIES_MAX: Final = 1_000
"""More than any bookie has: an answer with more is refused."""
_NO_LEDGER: Final = -1

DirectoryUse = Literal["bookie", "journal", "ledgers"]
"""`bookie`: its own directory, which holds the others unless they lie elsewhere."""


class DirectoryFacts(BaseModel):
    """One directory of a bookie, and the file system that it is on."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    use: DirectoryUse
    free_bytes: int = Field(ge=0)
    total_bytes: int = Field(ge=0)
    level: str = ""
    """Of a ledger directory: `free`, `almost full` or `full`, which takes no more entries."""


class BookieFacts(BaseModel):
    """One bookie, as it describes itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str = ""
    writable: bool
    read_only_reasons: tuple[str, ...] = ()
    """Why it takes no ordinary writes; empty: it takes them."""
    directories: tuple[DirectoryFacts, ...] = Field(default=(), max_length=DIRECTORIES_MAX)


def decode_facts(body: bytes) -> BookieFacts:
    """
    Raises:
        BookieProtocolError: this is no answer to INFO.
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
        if not reply.done():  # a caller that was cancelled waits no more
            reply.set_result(found)

    channel.send(Op.INFO, (), on_reply, ledger_id=_NO_LEDGER)
    found = await reply
    if isinstance(found, BookieUnavailableError):
        raise found
    if found.status != Status.OK:
        text = found.body.decode("utf-8", "replace")
        raise BookieProtocolError(f"INFO was refused with status {found.status}: {text}")
    return decode_facts(found.body)
