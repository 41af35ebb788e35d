"""What the drill's processes write down, and how the verdict reads it.

Everything goes straight to the file with one `write` and stays there when the process is killed.
Acknowledgements are binary (ledger id i64, entry id i64, digest u64), everything else is a line of
text: a word, then numbers.
"""

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_ACK = struct.Struct(">qqQ")

# Lines: the writer opened LEDGER; closed it at LAST with LENGTH; gave it up because of ERROR
OPENED, CLOSED, FAILED = "opened", "closed", "failed"
# the recoverer closed LEDGER at LAST with LENGTH; the reader has read LEDGER up to ENTRY
RECOVERED, READ = "recovered", "read"
# the bookie refused an add to LEDGER, with STATUS; it fenced LEDGER
REFUSED, FENCED = "refused", "fenced"
# a promise was broken
WRONG = "wrong"
# the process came to an orderly end, and has told the cluster which copies are missing
ENDED = "ended"


class Event(NamedTuple):
    """One line."""

    word: str
    numbers: tuple[int, ...]
    text: str
    """For FAILED and WRONG: what happened."""


class Journal:
    """The files of one process; append only."""

    def __init__(self, directory: Path, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._events = os.open(directory / f"{name}.events", flags, 0o644)
        self._acks = os.open(directory / f"{name}.acks", flags, 0o644)

    def note(self, word: str, *numbers: int, text: str = "") -> None:
        line = " ".join([word, *map(str, numbers), text]).replace("\n", " ")
        os.write(self._events, line.rstrip().encode() + b"\n")

    def acknowledged(self, ledger_id: int, first: int, digests: Sequence[int]) -> None:
        """Record that consecutive entries were acknowledged. Returns when that is written down."""
        pack = _ACK.pack
        os.write(
            self._acks,
            b"".join([pack(ledger_id, first + at, digest) for at, digest in enumerate(digests)]),
        )


class UnorderedAcknowledgementsError(Exception):
    """A writer was told of an entry before one with a smaller id (I8)."""


def read_acknowledged(directory: Path) -> dict[int, "array[int]"]:
    """By ledger, the digests of its acknowledged entries, from entry 0 on.

    Raises:
        UnorderedAcknowledgementsError
    """
    found: dict[int, array[int]] = {}
    for path in sorted(directory.glob("*.acks")):
        data = path.read_bytes()
        whole = len(data) - len(data) % _ACK.size  # the process may have died in between
        for ledger_id, entry_id, digest in _ACK.iter_unpack(data[:whole]):
            digests = found.get(ledger_id)
            if digests is None:
                digests = found[ledger_id] = array("Q")
            if entry_id != len(digests):
                raise UnorderedAcknowledgementsError(
                    f"{path.name}: entry {entry_id} of ledger {ledger_id} was acknowledged "
                    f"after {len(digests)} entries"
                )
            digests.append(digest)
    return found


def read_events(directory: Path) -> Iterator[tuple[str, list[Event]]]:
    """The lines of each process, by its name."""
    for path in sorted(directory.glob("*.events")):
        yield path.stem, list(events_in(path))


def events_in(path: Path) -> Iterator[Event]:
    """The lines of one process."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        word, *rest = line.split()
        numbers: list[int] = []
        while rest and rest[0].lstrip("-").isdecimal():
            numbers.append(int(rest.pop(0)))
        yield Event(word, tuple(numbers), " ".join(rest))
