"""How far a reader may read, and which last add confirmed (LAC) a bookie's reply proves. Pure.

A LAC is believed only if a packet with a good digest says it: the last entry's, in whose header it
was piggy-backed, or the explicit LAC packet. Both are statements of the ledger's writer, so the
larger of the two counts, and the largest of all bookies.

Of a ledger that is not closed, everything up to a proven LAC may be read, and what earlier
fragments hold: an ensemble change begins behind the LAC. Of a closed one, everything up to its last
entry. Whatever arrives late or twice, the bound never moves backwards nor above the final last
entry (rules 9.3 and 9.4).
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
    """The bound of one handle."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._ledger_id = metadata.ledger_id
        self.last_entry_id = -1
        """The highest entry that may be read; -1 for none."""
        self.is_final = False
        """The ledger is closed: there will never be more."""
        self.adopt(metadata)

    def learn(self, last_add_confirmed: int) -> bool:
        """A proven LAC was heard; whether it was news.

        A LAC above the end of a closed ledger cannot be (the end is at or above every entry that
        was ever confirmed), and is not believed.
        """
        if self.is_final or last_add_confirmed <= self.last_entry_id:
            return False
        self.last_entry_id = last_add_confirmed
        return True

    def adopt(self, metadata: LedgerMetadata) -> None:
        """The ledger's metadata was read, perhaps anew.

        Raises:
            InvalidLedgerMetadataError: the ledger ends before an entry that had been confirmed.
                Somebody broke the protocol; what was read is gone.
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
        """
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
    """What one bookie's reply says."""

    last_add_confirmed: int
    """The highest LAC that is proven; -1 if there is none."""
    error: DigestMismatchError | None
    """A packet is bad: what the bookie knows may be more."""


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
