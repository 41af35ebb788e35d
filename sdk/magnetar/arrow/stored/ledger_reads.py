"""The entries of a ledger, from any of its bookies that has them, verified end to end.

Replicas are asked in the order of the write set, beginning with the one that answered last: its
read-ahead is warm. A replica that fails, lacks an entry or returns a wrong digest is skipped. A
read fails only when all replicas of an entry have failed, and its error lists their reasons.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from magnetar.arrow.stored.bookie_link import BookieConnector, BookieLink
from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    EntryLossError,
    UnreachableError,
)
from magnetar.arrow.stored.slices import Address, BookieSecurity, LedgerPart
from magnetar.ledger.digest import PacketCodec, length_in, packet_codec, read_key
from magnetar.ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.quorum import stored_ranges, write_set

_SMALL_READ_BYTES = 4096

_FINAL = (NoSuchEntryError, NoSuchLedgerOnBookieError, DigestMismatchError)
"""Errors of a replica that does not have an entry as it was written, and will not have it."""


class LedgerReads:
    """Reads of the ledgers of a task, over one connection per bookie."""

    def __init__(
        self,
        addresses: dict[str, Address],
        *,
        request_bytes: int,
        bookie_timeout_ms: int,
        security: BookieSecurity,
    ) -> None:
        """
        Raises:
            OptionError: a file of the security settings cannot be used.
        """
        self._addresses = dict(addresses)
        self._request_bytes = request_bytes
        self._connector = BookieConnector(security, timeout_ms=bookie_timeout_ms)
        self._links: dict[str, BookieLink] = {}
        self._favourite = ""
        self._not_telling: set[str] = set()
        """Bookies that failed to list the entries they hold."""

    def know(self, addresses: Mapping[str, Address]) -> None:
        """Add the addresses of more bookies."""
        self._addresses.update(addresses)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        """Yield runs of payloads in order, each with the id of its first entry.

        Raises:
            DataLossError: no replica of an entry has it; EntryLossError if one of them has the
                ledger, or bookies that may have later entries were not asked.
            CorruptDataError: every replica that has the entry returns another than was written. Or
                the last entry of a closed ledger contradicts the length in the metadata: one of the
                two is not what was written, and the end may be wrong.
            UnreachableError: the replicas do not answer.
        """
        codec = packet_codec(part.ledger_id, DigestType(part.digest_type), part.password)
        at = part.first
        while at <= part.last:
            before = at
            problems: list[LedgerError] = []
            for bookie_id, end in self._replicas(part, at):
                try:
                    for run in self._from_bookie(part, codec, bookie_id, at, end):
                        yield run
                        at = run[0] + len(run[1])
                        self._favourite = bookie_id
                except LedgerError as error:
                    problems.append(error)
                if at > before:
                    break  # the next entries may come from this replica again, or from any other
            else:
                failure = _failed(part.ledger_id, at, problems)
                if type(failure) is DataLossError and self._may_go_on(part, at):
                    raise EntryLossError(str(failure), may_have_moved=True)
                raise failure

    def one(self, part: LedgerPart, entry_id: int) -> bytes:
        """Return the payload of one entry.

        Raises:
            As `entries`.
        """
        codec = packet_codec(part.ledger_id, DigestType(part.digest_type), part.password)
        problems: list[LedgerError] = []
        for bookie_id, _ in self._replicas(part, entry_id):
            try:
                for _, payloads in self._from_bookie(part, codec, bookie_id, entry_id, entry_id):
                    return payloads[0]
            except LedgerError as error:
                problems.append(error)
        raise _failed(part.ledger_id, entry_id, problems)

    def first_held(self, part: LedgerPart) -> int:
        """Return the first of these entries that may exist; the one after the last if none does.

        This uses the lists of all bookies that may have any of the entries. A bookie that does not
        answer may have the first entry that it was assigned. It is asked only once, since each
        request may cost a timeout.
        """
        found = part.last + 1
        for bookie_id, first in _given(part, part.first).items():
            if first >= found:
                break  # the remaining bookies were assigned later entries
            try:
                if bookie_id in self._not_telling:
                    raise BookieUnavailableError(f"bookie {bookie_id} has not told before")
                held = self._link(bookie_id).first_held(
                    part.ledger_id, part.first, found - 1, key=read_key(part.password)
                )
            except NoSuchLedgerOnBookieError:
                continue
            except LedgerError:
                self._not_telling.add(bookie_id)
                held = first
            found = found if held is None else min(found, held)
        return found

    def _may_go_on(self, part: LedgerPart, at: int) -> bool:
        """Return whether bookies that are not replicas of this entry may have later ones."""
        asked = {bookie_id for bookie_id, _ in self._replicas(part, at)}
        return at < part.last and not asked.issuperset(_given(part, at))

    def _from_bookie(
        self, part: LedgerPart, codec: PacketCodec, bookie_id: str, first: int, last: int
    ) -> Iterator[tuple[int, list[bytes]]]:
        link = self._link(bookie_id)
        request_bytes = self._request_bytes if last > first else _SMALL_READ_BYTES
        for at, block in link.blocks(
            part.ledger_id, first, last, request_bytes, key=read_key(part.password)
        ):
            payloads, problem = codec.open_payloads(block, at, last - at + 1)
            if payloads:
                if part.length >= 0 and at + len(payloads) - 1 == part.last:
                    _check_length(part, length_in(block, len(payloads) - 1))
                yield at, payloads
            if problem is not None:
                raise DigestMismatchError(f"bookie {bookie_id}: {problem}") from problem

    def _link(self, bookie_id: str) -> BookieLink:
        link = self._links.get(bookie_id)
        if link is None:
            address = self._addresses.get(bookie_id)
            if address is None:
                # It was not up when the query was planned, but it may hold the entries.
                raise BookieUnavailableError(f"bookie {bookie_id} was not registered")
            link = BookieLink(bookie_id, address, self._connector)
            self._links[bookie_id] = link
        return link

    def _replicas(self, part: LedgerPart, entry_id: int) -> Sequence[tuple[str, int]]:
        """Return the bookies that have the entry, each with the last entry up to which it has
        all."""
        at = bisect_right(part.ensembles, entry_id, key=lambda each: each.first_entry_id)
        bookies = part.ensembles[at - 1].bookies
        last = part.last
        if at < len(part.ensembles):
            last = min(last, part.ensembles[at].first_entry_id - 1)
        size, write_quorum = len(bookies), part.write_quorum
        found = []
        for index in write_set(entry_id, ensemble_size=size, write_quorum=write_quorum):
            _, end = next(
                stored_ranges(index, entry_id, last, ensemble_size=size, write_quorum=write_quorum)
            )
            found.append((bookies[index], end))
        if write_quorum == size:  # every bookie has everything: spread the ledgers over them
            turn = part.ledger_id % size
            found = found[turn:] + found[:turn]
        else:
            found.sort(key=lambda each: -each[1])
        farthest = max(end for _, end in found)
        # A stable sort: only the favourite moves, and only if no other bookie has more.
        found.sort(key=lambda each: each[0] != self._favourite or each[1] < farthest)
        return found


def _given(part: LedgerPart, first: int) -> dict[str, int]:
    """Return the bookies that were assigned entries from `first` to the end of the part.

    Each has the first entry that may have come to it; they are in ascending order of that.
    """
    at = bisect_right(part.ensembles, first, key=lambda each: each.first_entry_id)
    given: dict[str, int] = {}
    for each in part.ensembles[at - 1 :]:
        if each.first_entry_id <= part.last:
            for bookie_id in each.bookies:
                given.setdefault(bookie_id, max(first, each.first_entry_id))
    return given


def _check_length(part: LedgerPart, said: int) -> None:
    if said != part.length:
        raise CorruptDataError(
            f"ledger {part.ledger_id} is closed at entry {part.last} with {part.length} bytes, "
            f"and that entry says {said} bytes: the metadata is not what was written. Bring it "
            f"back from a backup of the metadata store"
        )


def _failed(ledger_id: int, entry_id: int, problems: Sequence[LedgerError]) -> Exception:
    said = "; ".join(dict.fromkeys(str(each) for each in problems)) or "no replica answered"
    where = f"entry {entry_id} of ledger {ledger_id} cannot be read"
    if not problems or not all(isinstance(each, _FINAL) for each in problems):
        # A replica that gave no reason, or did not answer, may have the entry.
        return UnreachableError(f"{where}: {said}")
    if any(isinstance(each, DigestMismatchError) for each in problems):
        return CorruptDataError(f"{where}: {said}")
    without_ledger = [isinstance(each, NoSuchLedgerOnBookieError) for each in problems]
    if all(without_ledger):
        return DataLossError(f"{where}: {said}")
    return EntryLossError(f"{where}: {said}", may_have_moved=any(without_ledger), is_denied=True)
