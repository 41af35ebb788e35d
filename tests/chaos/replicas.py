"""Every replica of a closed ledger, read from its bookie directly and checked without the client.

The ledger client would pass over a bad replica. Here each bookie of each write set is asked for its
own copy, and packets are taken apart by hand.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import google_crc32c

from magnetar.ledger.digest import read_key
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.wire import Frame, Status, decode_block
from tests.bookie_parts import BookieClient, read_request
from tests.chaos.content import payload_of

_HEADER = struct.Struct(">qqqq")
_OVERHEAD_BYTES = _HEADER.size + 4


@dataclass(slots=True)
class Copies:
    """How many replicas of the entries of a ledger there are, and what is wrong with them."""

    counts: list[int]
    """Good copies by entry id."""
    missing: list[tuple[int, str]] = field(default_factory=list)
    """Entries, and the bookie of their write set that has none."""
    wrong: list[str] = field(default_factory=list)


async def read_copies(
    metadata: LedgerMetadata,
    bookies: dict[str, BookieClient],
    *,
    expected: Callable[[int, int], bytes] | None = payload_of,
) -> Copies:
    """Ask every bookie of every fragment for all that it should hold.

    Args:
        expected: the payload of an entry of a ledger; None: not known, its digest must do.
    """
    copies = Copies([0] * (metadata.last_entry_id + 1))
    starts = [fragment.first_entry_id for fragment in metadata.ensembles]
    ends = [*(start - 1 for start in starts[1:]), metadata.last_entry_id]
    for fragment, end in zip(metadata.ensembles, ends, strict=True):
        for index, bookie_id in enumerate(fragment.bookies):
            wanted = [
                entry_id
                for entry_id in range(fragment.first_entry_id, end + 1)
                if (index - entry_id) % metadata.ensemble_size < metadata.write_quorum
            ]
            await _read_copy(metadata, bookie_id, bookies[bookie_id], wanted, copies, expected)
    return copies


async def _read_copy(
    metadata: LedgerMetadata,
    bookie_id: str,
    bookie: BookieClient,
    wanted: list[int],
    copies: Copies,
    expected: Callable[[int, int], bytes] | None,
) -> None:
    ledger_id, key = metadata.ledger_id, read_key(metadata.password)
    at = 0
    while at < len(wanted):
        entry_id = wanted[at]
        reply = await bookie.ask(
            lambda number, first=entry_id: read_request(  # type: ignore[misc]  # bound now, not later
                number, ledger_id, first, wanted[-1], key=key
            )
        )
        del bookie.replies[reply.request_id]
        end = entry_id + _check(reply, ledger_id, entry_id, f"bookie {bookie_id}", copies, expected)
        if end == entry_id:
            copies.missing.append((entry_id, bookie_id))
            at += 1
        # With striping a reply ends at the first gap; but a bookie may also hold entries that are
        # not its own, from a recovery that had other members in mind.
        while at < len(wanted) and wanted[at] < end:
            copies.counts[wanted[at]] += 1
            at += 1


def _check(
    reply: Frame,
    ledger_id: int,
    first: int,
    who: str,
    copies: Copies,
    expected: Callable[[int, int], bytes] | None,
) -> int:
    """Check the packets of a reply; returns how many there are."""
    if reply.status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
        return 0
    if reply.status != Status.OK:
        copies.wrong.append(
            f"ledger {ledger_id} entry {first}: {who} answers {Status(reply.status).name}"
        )
        return 0
    packets = decode_block(reply.body[8:]).packets()
    for entry_id, packet in enumerate(packets, start=first):
        head, digest = packet[: _HEADER.size], packet[_HEADER.size : _OVERHEAD_BYTES]
        payload = packet[_OVERHEAD_BYTES:]
        ids = _HEADER.unpack(head)[:2]
        is_whole = google_crc32c.value(head + payload) == int.from_bytes(digest, "big")
        if not is_whole or ids != (ledger_id, entry_id):
            copies.wrong.append(f"ledger {ledger_id} entry {entry_id}: {who} has damage: {ids}")
        elif expected is not None and payload != expected(ledger_id, entry_id):
            copies.wrong.append(
                f"ledger {ledger_id} entry {entry_id}: {who} has another payload: {payload[:40]!r}"
            )
    return len(packets)
