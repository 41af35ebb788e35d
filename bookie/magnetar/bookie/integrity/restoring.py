"""Restoring of entries: fetched from another bookie, and stored here like those of an add."""

from dataclasses import dataclass, field

from magnetar.bookie.errors import IntegrityError, NoOtherCopyError
from magnetar.bookie.integrity.own_entries import confirmed_end
from magnetar.bookie.integrity.own_requests import OwnRequests
from magnetar.bookie.integrity.peers import Peers
from magnetar.ledger.digest import master_key
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.under_replication import ENTRY_ID_MAX, Range


@dataclass(slots=True)
class Restored:
    """Result for a range of entries."""

    stored: list[Range] = field(default_factory=list)
    entries: int = 0
    bytes: int = 0
    missing: list[Range] = field(default_factory=list)
    """Entries whose fetch or write failed in this attempt; a later one may succeed."""
    lost: list[Range] = field(default_factory=list)
    """Confirmed entries that no other bookie has."""
    is_interrupted: bool = False
    """Whether the other bookies, or this one, are in trouble: continuing now would be in vain."""
    has_ended: bool = False
    """Whether the range had no end, and the ledger has no more entries."""
    reason: str = ""
    """The first error that made an entry missing or lost."""

    def _note(self, error: IntegrityError) -> None:
        self.reason = self.reason or str(error)


async def restore(
    metadata: LedgerMetadata, wanted: Range, peers: Peers, requests: OwnRequests
) -> Restored:
    """Fetch and store the entries of a range that belongs on this bookie. Errors are in the result.

    An entry in the last fragment of an open ledger need not exist anywhere else: it counts as
    missing, not as lost. A range without an end ends at the first such entry.
    """
    result = Restored()
    key = master_key(metadata.password)
    at, last = wanted
    confirmed = confirmed_end(metadata)
    while at <= last:
        try:
            packets = await peers.fetch(metadata, at, last)
            await requests.add(metadata.ledger_id, key, packets)
        except NoOtherCopyError as error:
            result._note(error)
            if at <= confirmed:
                result.lost.append((at, at))
            elif last == ENTRY_ID_MAX:
                result.has_ended = True
                break
            else:
                result.missing.append((at, at))
            at += 1
        except IntegrityError as error:
            result._note(error)
            result.missing.append((at, last))
            result.is_interrupted = True
            break
        else:
            result.stored.append((at, at + len(packets) - 1))
            result.entries += len(packets)
            result.bytes += sum(map(len, packets))
            at += len(packets)
    return result
