"""How far a reader may read, and which last add confirmed (LAC) a bookie's reply proves. Pure.

A LAC is proven only by a packet with a good digest: the last entry, whose header carries a LAC, or
the explicit LAC packet. Both are statements of the ledger's writer, so the larger of the two
counts, and the largest of all bookies.

In a ledger that is not closed, entries up to a proven LAC may be read, and the entries of earlier
fragments: an ensemble change begins behind the LAC. In a closed ledger, entries up to the last one
may be read. Whatever arrives late or twice, the bound never moves backwards, nor above the final
last entry (rules 9.3 and 9.4).
"""

from typing import NamedTuple

from magnetar.ledger.digest import PacketCodec
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    DigestMismatchError,
    InvalidLedgerMetadataError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.wire_bodies import LacReply


class ReadBound:
    """The read limit of one handle."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._ledger_id = metadata.ledger_id
        self.last_entry_id = -1
        """Highest entry id that may be read; -1 if there is none."""
        self.is_final = False
        """Whether the ledger is closed: then the bound is its end."""
        self.adopt(metadata)

    def learn(self, last_add_confirmed: int) -> bool:
        """Apply a proven LAC; return whether it moved the bound.

        A LAC above the end of a closed ledger is ignored. It is impossible, since the end is at or
        above every entry that was ever confirmed.
        """
        if self.is_final or last_add_confirmed <= self.last_entry_id:
            return False
        self.last_entry_id = last_add_confirmed
        return True

    def adopt(self, metadata: LedgerMetadata) -> None:
        """Apply the ledger's metadata.

        Raises:
            InvalidLedgerMetadataError: the ledger ends before an entry that had been confirmed.
                Another client broke the protocol, and entries that were read are lost.
        """
        if metadata.state is not LedgerState.CLOSED:
            self.learn(metadata.last_fragment.first_entry_id - 1)
            return
        if metadata.last_entry_id < self.last_entry_id:
            raise InvalidLedgerMetadataError(
                f"ledger {self._ledger_id} was closed at entry {metadata.last_entry_id}, but entry "
                f"{self.last_entry_id} had been confirmed: entries were lost"
            )
        self.last_entry_id = metadata.last_entry_id
        self.is_final = True

    def check(self, last: int) -> None:
        """Check that an entry may be read.

        Raises:
            BeyondLastConfirmedError: entry `last` may not be read.
        """
        if last > self.last_entry_id:
            raise BeyondLastConfirmedError(
                f"ledger {self._ledger_id}: entry {last} is above the last add confirmed "
                f"{self.last_entry_id}; "
                + (
                    "the ledger is closed and has no such entry"
                    if self.is_final
                    else "wait_beyond or read_last_add_confirmed tell when there is more"
                )
            )


class ProvenLac(NamedTuple):
    """The result of checking one bookie's reply."""

    last_add_confirmed: int
    """Highest LAC that is proven; -1 if there is none."""
    error: DigestMismatchError | None
    """The error of a bad packet: the bookie may know a higher LAC. None if all are good."""


def proven_lac(codec: PacketCodec, reply: LacReply) -> ProvenLac:
    """Check both packets of a READ_LAC reply."""
    heard = -1
    bad: DigestMismatchError | None = None
    if reply.last_packet:
        try:
            heard = codec.open_some_packet(reply.last_packet).last_add_confirmed
        except DigestMismatchError as error:
            bad = error
    if reply.explicit_packet:
        try:
            heard = max(heard, codec.open_lac(reply.explicit_packet))
        except DigestMismatchError as error:
            bad = error
    return ProvenLac(heard, bad)
