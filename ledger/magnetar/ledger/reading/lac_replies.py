"""What a reply to READ_LAC proves. Pure.

A LAC is believed only if a packet with a good digest says it: the last entry's, in whose header it
was piggy-backed, or the explicit LAC packet. Both are statements of the ledger's writer, so the
larger of the two counts, and the largest of all bookies.
"""

from typing import NamedTuple

from magnetar.ledger.digest import PacketCodec
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.wire_bodies import LacReply


class ProvenLac(NamedTuple):
    """What one bookie's reply says."""

    last_add_confirmed: int
    """The highest LAC that is proven; -1 if there is none."""
    error: DigestMismatchError | None
    """A packet is bad: what the bookie knows may be more."""


def proven_lac(codec: PacketCodec, reply: LacReply) -> ProvenLac:
    """Check both packets."""
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
