"""The first exchange on a connection to a bookie: the intended bookie and the answering one. Pure.

An address only says where a bookie was registered when the registration was read. By the time that
a request arrives, another bookie may listen there, of the same cluster or of another. It would
store entries and deny ledgers in place of the intended one: two copies silently become one. So a
client first sends INFO with the id of the bookie that it intends. It sends nothing else before that
bookie has answered. Any other bookie refuses and ends the connection.

A bookie of an older release ignores the contents of INFO, but answers with its own id, which is all
that the client needs. A client of an older release sends no hello, and is served as before. Layout:
docs/formats/bookie-frame.md.
"""

import json
from typing import NamedTuple

from magnetar.ledger.errors import (
    BookieProtocolError,
    SecretRefusedError,
    WrongBookieError,
)
from magnetar.ledger.wire import Frame, Op, Status, encode_frame

HELLO_ID = (1 << 64) - 1
"""Request id of the hello: no other request has it."""
HELLO_LEDGER_ID = 0
NO_ENTRY_ID = -1
READS_TAKE_KEYS = "reads_take_keys"
"""In an answer to INFO: the bookie requires the master key of a ledger that has a password, and
understands it in every request. Older releases do not send it."""


class BookieIdentity(NamedTuple):
    """A bookie's id, and the cluster that it belongs to."""

    bookie_id: str
    instance_id: str
    """Id of the cluster. Empty if it is not known; then only the bookie id is compared."""

    def is_other_than(self, other: "BookieIdentity") -> bool:
        """Return whether the two differ in a field that both know."""
        return self.bookie_id != other.bookie_id or (
            bool(self.instance_id)
            and bool(other.instance_id)
            and self.instance_id != other.instance_id
        )

    def __str__(self) -> str:
        cluster = f" of cluster {self.instance_id}" if self.instance_id else ""
        return f"bookie {self.bookie_id}{cluster}"


def encode_hello(meant: BookieIdentity) -> bytes:
    """Encode the first frame of a client."""
    return encode_frame(
        Op.INFO,
        request_id=HELLO_ID,
        ledger_id=HELLO_LEDGER_ID,
        entry_id=NO_ENTRY_ID,
        body=json.dumps(meant._asdict()).encode(),
    )


def decode_identity(body: bytes) -> BookieIdentity:
    """Decode the bookie that a hello is meant for, or that an answer comes from.

    Raises:
        BookieProtocolError: the body is neither.
    """
    try:
        said = json.loads(body)
        bookie_id, instance_id = said["bookie_id"], said.get("instance_id", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BookieProtocolError(f"an INFO that names no bookie: {body[:80]!r}") from error
    if not isinstance(bookie_id, str) or not isinstance(instance_id, str):
        raise BookieProtocolError(f"an INFO whose names are no texts: {body[:80]!r}")
    return BookieIdentity(bookie_id, instance_id)


def check_answer(frame: Frame, meant: BookieIdentity) -> None:
    """Check that the first frame of a connection comes from the intended bookie.

    Raises:
        WrongBookieError: another bookie answers.
        SecretRefusedError: the bookie requires the shared secret.
        BookieProtocolError: the frame does not answer a hello.
    """
    if frame.is_response and frame.op == Op.AUTH:
        raise SecretRefusedError(frame.body.decode("utf-8", "replace"))
    if not frame.is_response or frame.op != Op.INFO or frame.request_id != HELLO_ID:
        kind = "response" if frame.is_response else "request"
        raise BookieProtocolError(f"the hello was answered by a {kind} of operation {frame.op}")
    if frame.status == Status.WRONG_BOOKIE:
        raise WrongBookieError(frame.body.decode("utf-8", "replace"))
    if frame.status != Status.OK:
        text = frame.body.decode("utf-8", "replace")
        raise BookieProtocolError(f"the hello was refused with status {frame.status}: {text}")
    answering = decode_identity(frame.body)
    if answering.is_other_than(meant):
        raise WrongBookieError(f"expected {meant}, but {answering} answered")
