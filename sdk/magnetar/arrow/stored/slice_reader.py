"""The rows of a slice, as Arrow batches.

Entries come from bookies. From the first entry whose bookies cannot be reached, they come through a
broker. An unreachable bookie may still hold the entries: brokers are nearer to it. If bookies
answer that entries are gone or damaged, that is final. If they no longer have the ledger, it may
have left them for an object store, or for other bookies, since the query was planned: it comes
through a broker, whose answer is final. The silence of a broker that has the ledger confirms the
loss of one entry, if a bookie that has the ledger denies it. A ledger that was in an object store
when the query was planned is then read from the store, and through a broker if this executor cannot
read it.

A worker process reads many slices, one after the other (`settle_worker`). Modules imported by its
second task stay for good: `gc.freeze` takes them out of every later round of the garbage collector.
That round costs a third of the time otherwise, since each slice makes very many objects. Freezing
at the first task would be too early: not everything is imported before the first batch.

The process also keeps its memory. Blocks and batches of a megabyte come and go a hundred times a
second, and the C library would return each to the system and fetch it again, page by page. On a
virtual machine that costs more than the processing.
"""

import ctypes
import gc
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.broker_reads import BrokerReads
from magnetar.arrow.stored.encrypted_messages import decryption_of
from magnetar.arrow.stored.entries import EntryRows
from magnetar.arrow.stored.errors import (
    DataLossError,
    EntryLossError,
    HeadlessMessageError,
    SilentBrokerError,
    UnreachableError,
)
from magnetar.arrow.stored.ledger_reads import LedgerReads
from magnetar.arrow.stored.slices import LEDGERS_BEFORE_MAX, LedgerPart, Slice
from magnetar.sdk.settings import ClientSettings

if TYPE_CHECKING:
    from magnetar.arrow.stored.object_reads import ObjectLedgerReads

_log = logging.getLogger(__name__)

CHUNK_LOOK_BACK_ENTRIES_MAX = 200_000
"""Most entries before the end of a message that are searched for its first chunk."""

_LOOK_BACK_ENTRIES_MIN = 16
_LOOK_BACK_ENTRIES_MAX = 1024
_LOOK_BACK_BYTES = 1 << 20
"""Approximate bytes that are fetched together while searching backwards."""

_LOSS_LINES_MAX = 10
"""Most log lines per ledger about lost entries."""


class SliceReader:
    """Turns the entries of one slice into rows."""

    def __init__(
        self,
        wanted: Slice,
        rows: ArrowRows,
        reads: "Reads",
        *,
        entries: type[EntryRows] = EntryRows,
    ) -> None:
        """
        Args:
            rows: of this slice alone.
            reads: of the task; its creator closes it.
            entries: decodes entries.
        """
        self._slice = wanted
        self._rows = rows
        self._entries = entries(
            rows,
            topic=wanted.topic,
            fetch_before=self._before,
            decompressed_bytes_max=wanted.settings.decompressed_bytes_max,
            chunked_bytes_max=wanted.settings.chunked_bytes_max,
            decrypt=decryption_of(wanted.settings.private_key_file),
        )
        self._reads = reads

    def batches(self) -> Iterator[pa.RecordBatch]:
        parts = self._slice.parts
        for part in parts:
            yield from self._part(part, is_first=part is parts[0], is_last=part is parts[-1])
        if self._rows.rows:
            yield from self._taken()

    def _taken(self) -> Iterator[pa.RecordBatch]:
        batch = self._rows.take()
        if batch.num_rows:  # empty if everything was left out
            yield batch

    def _part(self, part: LedgerPart, *, is_first: bool, is_last: bool) -> Iterator[pa.RecordBatch]:
        rows, add = self._rows, self._entries.add
        skip = self._slice.skip_through_batch_index if is_first else -1
        stop = self._slice.stop_at_batch_index if is_last else -1
        aborted = part.aborted
        for first, payloads in self._entries_of(part):
            for entry_id, payload in enumerate(payloads, first):
                if aborted and _has(aborted, entry_id):
                    continue
                if entry_id == part.first and skip >= 0:
                    stops = stop if entry_id == part.last else -1
                    add(part.ledger_id, entry_id, payload, skip_through=skip, stop_at=stops)
                elif entry_id == part.last and stop >= 0:
                    add(part.ledger_id, entry_id, payload, stop_at=stop)
                else:
                    add(part.ledger_id, entry_id, payload)
                if rows.is_full:
                    yield from self._taken()

    def _entries_of(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the entries that exist.

        Raises:
            DataLossError: some are gone, and `fail_on_data_loss` is set.
        """
        at = part.first
        losses = _Losses(self._slice.topic, part.ledger_id)
        try:
            while at <= part.last:
                try:
                    for first, payloads in self._reads.entries(replace(part, first=at)):
                        losses.end_run()
                        yield first, payloads
                        at = first + len(payloads)
                    return
                except DataLossError as error:
                    if self._slice.settings.fail_on_data_loss:
                        raise DataLossError(
                            f"{self._slice.topic}: {error}. It was trimmed, or the topic was "
                            f"deleted, while the query was running; set failOnDataLoss to false to "
                            f"go on with what is left"
                        ) from error
                    after = part.last + 1
                    if isinstance(error, EntryLossError) and at < part.last:
                        after = self._reads.first_held(replace(part, first=at + 1))
                    losses.add(at, after - 1, str(error))
                    at = after
        finally:
            losses.end()

    def _before(self, ledger_id: int, entry_id: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the entries before this one, with their ledgers and ids, nearest first, to find the
        beginning of a chunked message.

        Raises:
            HeadlessMessageError: the beginning is not within the limits, or is gone, and
                `fail_on_data_loss` is set.
        """
        left, step = CHUNK_LOOK_BACK_ENTRIES_MAX, _LOOK_BACK_ENTRIES_MIN
        parts = [*self._slice.before, *self._slice.parts]
        at = next(n for n, each in enumerate(parts) if each.ledger_id == ledger_id)
        reads = _reads_of(self._slice)
        try:
            last = entry_id - 1
            for part in reversed(parts[: at + 1]):
                last = min(last, part.last)
                while last >= 0 and left > 0:
                    first = max(0, last - step + 1)
                    some = _widened(part, first, last)
                    found = [
                        (part.ledger_id, number, each)
                        for at_first, payloads in reads.entries(some)
                        for number, each in enumerate(payloads, at_first)
                    ]
                    yield from reversed(found)
                    left -= last - first + 1
                    last = first - 1
                    is_small = sum(len(each) for _, _, each in found) < _LOOK_BACK_BYTES
                    step = min(2 * step, _LOOK_BACK_ENTRIES_MAX) if is_small else step
                last = (1 << 63) - 1
            if left <= 0 or len(self._slice.before) >= LEDGERS_BEFORE_MAX:
                looked = CHUNK_LOOK_BACK_ENTRIES_MAX - left
                self._beginning_not_found(f"is not among the {looked} entries before it")
            elif self._slice.is_cut_off:
                self._beginning_not_found("went with a ledger before it was read")
        except DataLossError as error:
            self._beginning_not_found(f"is gone: {error}")
        finally:
            reads.close()

    def _beginning_not_found(self, why: str) -> None:
        """Report a lost beginning: the producer stored it before the end of the message."""
        said = f"it is the end of a message in chunks, and its beginning {why}"
        if self._slice.settings.fail_on_data_loss:
            raise HeadlessMessageError(f"{said}; set failOnDataLoss to false to leave it out")
        _log.warning("%s: a message is left out: %s", self._slice.topic, said)


class _Losses:
    """Logs runs of skipped entries of a ledger, up to a limit.

    A bookie that has lost its disk may have had every third entry.
    """

    def __init__(self, topic: str, ledger_id: int) -> None:
        self._where = f"{topic}: ledger {ledger_id}"
        self._first, self._last, self._why = 0, -1, ""
        self._runs = self._entries = 0

    def add(self, first: int, last: int, why: str) -> None:
        """Add entries `first` to `last`, adjacent to the last run if no entry came in between."""
        if self._last < self._first:
            self._first, self._why = first, why
        self._last = last

    def end_run(self) -> None:
        """End the current run: an entry has come."""
        count = self._last - self._first + 1
        if count <= 0:
            return
        self._runs += 1
        self._entries += count
        if self._runs <= _LOSS_LINES_MAX:
            _log.warning(
                "%s: passed over what is gone: %d entries, %d to %d: %s",
                self._where,
                count,
                self._first,
                self._last,
                self._why,
            )
        self._first, self._last = 0, -1

    def end(self) -> None:
        """End the last run: no more entries come."""
        self.end_run()
        if self._runs > _LOSS_LINES_MAX:
            _log.warning(
                "%s: passed over what is gone: %d entries in all, in %d places",
                self._where,
                self._entries,
                self._runs,
            )


class Reads(Protocol):
    """A source of entries: bookies, brokers, or one as the fallback of the other."""

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]: ...

    def first_held(self, part: LedgerPart) -> int: ...

    def close(self) -> None: ...


def _reads_of(wanted: Slice, before: Reads | None = None) -> Reads:
    """`before` has the reads of the task's previous slice, which end here."""
    settings = wanted.settings
    if any(part.ensembles or part.object for part in wanted.parts) or not wanted.parts:
        return FallbackReads(wanted, before if isinstance(before, FallbackReads) else None)
    return BrokerReads(wanted.topic, settings.service_url, settings.client or ClientSettings())


class ReadsInTurn:
    """Gives the reads of one slice after the other; connections to bookies are reused. For one
    thread."""

    def __init__(self) -> None:
        self._reads: Reads | None = None

    def of(self, wanted: Slice) -> Reads:
        """Return the reads of the next slice; the previous ones must not be used any more.

        Raises:
            OptionError: a file of the bookies' security cannot be used.
        """
        before, made = self._reads, _reads_of(wanted, self._reads)
        hands_on = isinstance(before, FallbackReads) and isinstance(made, FallbackReads)
        if before is not None and not hands_on:
            before.close()
        self._reads = made
        return made

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        if self._reads is not None:
            self._reads.close()
            self._reads = None


def _has(bitmap: bytes, at: int) -> bool:
    return at >> 3 < len(bitmap) and bool(bitmap[at >> 3] & 1 << (at & 7))


def _widened(part: LedgerPart, first: int, last: int) -> LedgerPart:
    """Return other entries of the same ledger."""
    return LedgerPart(
        part.ledger_id,
        first,
        last,
        part.ensembles,
        part.write_quorum,
        part.digest_type,
        part.password,
        object=part.object,
    )


class FallbackReads:
    """Reads of one slice, with brokers as the fallback.

    After a fallback to brokers, this slice and the following slices of the task stay with brokers.
    """

    def __init__(self, wanted: Slice, before: "FallbackReads | None" = None) -> None:
        """`before` has the reads of the task's previous slice; its connections to bookies are
        reused.

        Raises:
            OptionError: a file of the bookies' security cannot be used.
        """
        self._slice = wanted
        settings = wanted.settings
        self._brokers: BrokerReads | None = None
        self._objects: ObjectLedgerReads | None = None
        self._object_problem: UnreachableError | DataLossError | None = None
        """Error that stopped reads of objects from this process."""
        self._problem: UnreachableError | None = None
        """Error that stopped reads from bookies."""
        self._denied = -1
        """Ledger that neither bookies nor brokers have."""
        self._bookies: LedgerReads
        if before is not None:
            self._bookies, self._problem = before._bookies, before._problem
            self._bookies.know(wanted.addresses)
            self._objects, before._objects = before._objects, None
            self._object_problem = before._object_problem
            if before._brokers is not None:
                before._brokers.close()  # usually of another topic
        else:
            self._bookies = LedgerReads(
                wanted.addresses,
                request_bytes=settings.request_bytes,
                bookie_timeout_ms=settings.bookie_timeout_ms,
                security=settings.bookie_security,
            )

    def close(self) -> None:
        self._bookies.close()
        if self._objects is not None:
            self._objects.close()
        if self._brokers is not None:
            self._brokers.close()

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        """Yield runs of payloads in order, each with the id of its first entry.

        Raises:
            DataLossError, CorruptDataError: see `LedgerReads.entries`.
            UnreachableError: neither bookies, nor the object store, nor brokers deliver them.
        """
        loss: DataLossError | None = None
        if self._problem is None and part.ensembles:
            try:
                for first, payloads in self._bookies.entries(part):
                    yield first, payloads
                    part = replace(part, first=first + len(payloads))
                return
            except UnreachableError as error:
                if not self._slice.settings.service_url and part.object is None:
                    raise
                self._turn_to_brokers(error)
            except DataLossError as error:
                # Otherwise it has left the bookies since the query was planned.
                if part.object is None:
                    if not self._may_be_elsewhere(part, error):
                        raise
                    loss = error
        if part.object is not None and self._object_problem is None:
            try:
                for first, payloads in self._stored().entries(part):
                    yield first, payloads
                    part = replace(part, first=first + len(payloads))
                return
            except (UnreachableError, DataLossError) as error:
                # Objects that are missing here may be on a disk that only the brokers have.
                if not self._slice.settings.service_url:
                    raise
                self._object_problem = error
                _log.warning("%s: objects come through brokers: %s", self._slice.topic, error)
        yield from self._through_brokers(part, loss)

    def _through_brokers(
        self, part: LedgerPart, loss: DataLossError | None
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield entries as `entries` does; `loss` is what the bookies have answered."""
        has_come = False
        try:
            for run in self._opened().entries(part):
                has_come = True
                yield run
        except UnreachableError as error:
            # A broker that cannot read what a bookie of the ledger denied confirms the loss: it
            # retries for ever. If no bookie has the ledger, or the broker has sent entries, the
            # ledger is elsewhere, and may only be out of reach for a while.
            is_silent = isinstance(error, SilentBrokerError) and not has_come
            if is_silent and isinstance(loss, EntryLossError) and loss.is_denied:
                raise loss from error  # the broker says nothing of later entries
            problem = loss or (self._problem if part.object is None else self._object_problem)
            if problem is None:
                raise
            raise UnreachableError(f"{problem}; nor through brokers: {error}") from error
        except DataLossError as error:
            if loss is None:
                raise
            self._denied = part.ledger_id
            raise loss from error

    def _may_be_elsewhere(self, part: LedgerPart, error: DataLossError) -> bool:
        """Return whether brokers may have what bookies denied.

        Entries of a ledger that its bookies still have are not elsewhere.
        """
        if isinstance(error, EntryLossError) and not error.may_have_moved:
            return False
        return bool(self._slice.settings.service_url) and part.ledger_id != self._denied

    def _turn_to_brokers(self, error: UnreachableError) -> None:
        self._problem = error
        _log.warning("%s: reading through brokers: %s", self._slice.topic, error)
        self._bookies.close()

    def first_held(self, part: LedgerPart) -> int:
        """Return the first of these entries that may exist; the one after the last if none does."""
        if self._problem is not None or not part.ensembles:
            return part.first
        return self._bookies.first_held(part)

    def _stored(self) -> "ObjectLedgerReads":
        if self._objects is None:
            # Imported here: most tasks read no object, and it has to load much.
            from magnetar.arrow.stored.object_reads import ObjectLedgerReads

            settings = self._slice.settings
            self._objects = ObjectLedgerReads(
                request_bytes=settings.request_bytes, key_file=settings.object_key_file
            )
        return self._objects

    def _opened(self) -> BrokerReads:
        if self._brokers is None:
            settings = self._slice.settings
            self._brokers = BrokerReads(
                self._slice.topic, settings.service_url, settings.client or ClientSettings()
            )
        return self._brokers


_IDLE = 20
"""One more than the highest niceness: idle scheduling."""

_GC_THRESHOLD = 100_000
"""New objects before a collection. Rows are freed by reference counts, without the collector."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""
_MAPPED_FROM_BYTES = 32 << 20
"""Only larger blocks are returned to the system at once: the highest value that mallopt allows."""
_KEPT_BYTES_MAX = 64 << 20
"""Most free bytes that are kept at the end of the heap."""

_tasks = 0
_settled = 0


def settle_worker(niceness: int) -> None:
    """Prepare the process for reading. Called at the start of each task; `niceness` as in
    `ReadSettings`."""
    global _tasks, _settled
    _tasks += 1
    if _tasks == 1:
        gc.set_threshold(_GC_THRESHOLD, 50, 100)
        _keep_memory()
    elif _tasks == 2:
        gc.collect()
        gc.freeze()
    if niceness > _settled:
        _give_way(niceness)
        _settled = niceness


def _keep_memory() -> None:
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library, with other rules
    set_option(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def _give_way(niceness: int) -> None:
    """Lower the scheduling priority of this process. It cannot be raised again."""
    if niceness >= _IDLE and hasattr(os, "SCHED_IDLE"):
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
        except OSError:
            niceness = _IDLE - 1  # not allowed here: use the lowest priority of an ordinary process
    try:
        os.nice(min(niceness, _IDLE - 1))
    except OSError:
        pass  # reading works without it
