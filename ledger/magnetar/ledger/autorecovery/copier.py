"""Copies entries to bookies that lack them: reads of runs, recovery adds of the same packets.

A run is read from one replica after another until one has good copies of it. Each packet's digest
and identity is checked; a packet that fails is never copied (defect A13) but reported for repair.
The packets are forwarded unchanged, length field included, as recovery adds with the ledger's
master key, which a fenced ledger accepts (defect A2). A bookie's OK means that they are durable
there.

The bytes under way are bounded over all ledgers, and paced in bytes per second. A run takes a few
read requests in sequence, each followed by one write request per target bookie; several runs are
copied in parallel. The only work per entry is the digest.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.ledger.autorecovery.fragments import Piece, Span
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import PacketCodec, codec_for, master_key, read_key
from magnetar.ledger.errors import BookieUnavailableError, DigestMismatchError, LedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock
from magnetar.ledger.quorum import write_set
from magnetar.ledger.reading.bookie_requests import ask, check_status, read_reply_block
from magnetar.ledger.reading.read_errors import READ_ERRORS, is_negative, worst_error
from magnetar.ledger.reading.replica_order import ReplicaFacts, replica_order, sticky_first
from magnetar.ledger.under_replication import Range
from magnetar.ledger.wire import EntryBlock, Flag, Frame, Op, encode_block, encode_read_body

_ENTRY_BYTES_GUESSED = 16 << 10
"""Assumed size of an entry if the ledger is not closed, since its metadata then has no length."""

_REQUESTS_IN_ORDER = 8
"""Requests that one lane makes in sequence, to one bookie as long as it gives good copies. A bookie
that is read in order reads adjacent stored entries together. If its neighbours were asked in turn,
each of them would read both ends of such a block again."""


class _Run(NamedTuple):
    first: int
    last: int
    targets: tuple[str, ...]
    number: int
    """Number of the run within the span; the members are read from in turn by this number."""


@dataclass(slots=True)
class CopyResult:
    """Result of copying the entries of one span."""

    entries: int = 0
    lost: list[Range] = field(default_factory=list)
    """Entries that every bookie of their write set is certain not to have in a good copy."""
    failures: list[str] = field(default_factory=list)
    """Why other entries were not copied. They may be on bookies that do not answer now."""
    is_unreachable: bool = False
    """Whether some of these failures are reads: no bookie could return the entries at present."""

    @property
    def is_complete(self) -> bool:
        """Whether every entry is durable on every bookie that it was meant for."""
        return not self.lost and not self.failures


class BytesBudget:
    """Budget of bytes under way; callers get their share in the order of the calls."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free. The size is at most that of the budget."""
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(size)
            elif (size, future) in self._waiting:  # else `give_back` has skipped it
                self._waiting.remove((size, future))
            raise

    def give_back(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            needed, future = self._waiting.popleft()
            if future.done():
                continue
            self._free -= needed
            future.set_result(None)


class Copier:
    """Copies for one worker, over all its ledgers."""

    def __init__(
        self,
        channels: ChannelPool,
        *,
        facts_of: Callable[[str], ReplicaFacts],
        clock: Clock,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        on_bad_replica: Callable[[int, int, str, DigestMismatchError], None],
    ) -> None:
        self._channels = channels
        self._facts_of = facts_of
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._on_bad_replica = on_bad_replica
        self._budget = BytesBudget(settings.copy_bytes_in_flight_max)
        self._pace = Pace(settings.copy_bytes_per_s_max)

    async def copy(
        self, metadata: LedgerMetadata, span: Span, pieces: Sequence[Piece]
    ) -> CopyResult:
        """Copy entries of one span to bookies. Everything that could be copied is durable on
        return.

        Stops early at entries that cannot be read, or cannot be stored, at present.
        """
        copy = _SpanCopy(self, metadata, span)
        runs = self._runs(metadata, pieces)
        lanes = [asyncio.ensure_future(copy.run(runs))]
        try:
            while len(lanes) < self._settings.reads_per_ledger_max and copy.is_more(runs):
                lanes.append(asyncio.ensure_future(copy.run(runs)))
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
        copy.result.lost.sort()
        return copy.result

    def _runs(self, metadata: LedgerMetadata, pieces: Sequence[Piece]) -> "_Runs":
        if metadata.state is LedgerState.CLOSED and metadata.last_entry_id >= 0:
            entry_bytes = max(1, metadata.length // (metadata.last_entry_id + 1))
        else:
            entry_bytes = _ENTRY_BYTES_GUESSED
        bytes_max = _REQUESTS_IN_ORDER * self._settings.copy_read_bytes
        return _Runs(pieces, max(1, bytes_max // entry_bytes))

    # For `_SpanCopy`

    async def copy_some(self, copy: "_SpanCopy", run: _Run, first: int) -> int:
        """Copy some entries of a run from `first` on; return how many.

        Raises:
            LedgerError: entry `first` cannot be read (one of `READ_ERRORS`: `worst_error` of the
                answers of its replicas), or was not stored (`_NotStoredError`).
        """
        size = self._settings.copy_read_bytes
        await self._budget.take(size)
        try:
            block = await self._read(copy, run, first)
            targets = run.targets
            wait_s = self._pace.take(len(block.data) * len(targets), self._clock.monotonic_s())
            if wait_s:
                await asyncio.sleep(wait_s)
            await self._write(copy, first, block, targets)
        finally:
            self._budget.give_back(size)
        return len(block.lengths)

    async def _read(self, copy: "_SpanCopy", run: _Run, first: int) -> EntryBlock:
        """Return good packets from `first` on, from the first replica that has them."""
        metrics = self._metrics
        started_s = self._clock.monotonic_s()
        body = encode_read_body(
            last_entry_id=run.last,
            bytes_max=self._settings.copy_read_bytes,
            master_key=copy.read_key,
        )
        errors: list[LedgerError] = []
        for bookie_id in copy.sources(run, first, self._facts_of):
            try:
                metrics.read_requests += 1
                frame = await ask(
                    self._channels,
                    bookie_id,
                    Op.READ,
                    body,
                    ledger_id=copy.ledger_id,
                    entry_id=first,
                )
                block = self._good_part(copy, bookie_id, first, run.last, frame)
            except READ_ERRORS as error:
                errors.append(error)
                continue
            metrics.read_s += self._clock.monotonic_s() - started_s
            metrics.entries_read += len(block.lengths)
            metrics.bytes_read += len(block.data)
            return block
        raise _read_error(errors, copy.ledger_id, first)

    def _good_part(
        self, copy: "_SpanCopy", bookie_id: str, first: int, last: int, frame: Frame
    ) -> EntryBlock:
        """Return the packets of a reply up to the first bad one.

        Raises:
            LedgerError: one of `READ_ERRORS`.
        """
        block = read_reply_block(frame, bookie_id)
        payloads, error = copy.codec.open_payloads(block, first, last - first + 1)
        if error is not None:
            self._metrics.bad_copies += 1
            self._on_bad_replica(copy.ledger_id, first + len(payloads), bookie_id, error)
            if not payloads:
                raise DigestMismatchError(f"bookie {bookie_id}: {error}") from error
        if len(payloads) == len(block.lengths):
            return block
        return encode_block(block.packets()[: len(payloads)])

    async def _write(
        self, copy: "_SpanCopy", first: int, block: EntryBlock, targets: Sequence[str]
    ) -> None:
        """Add the packets to all targets.

        Raises:
            _NotStoredError: some target did not confirm the entries.
        """
        metrics = self._metrics
        started_s = self._clock.monotonic_s()
        replies = [self._add(copy, bookie_id, first, block) for bookie_id in targets]
        failures: list[str] = []
        for bookie_id, future in zip(targets, replies, strict=True):
            reply = await future
            metrics.write_requests += 1
            try:
                if isinstance(reply, BookieUnavailableError):
                    raise reply
                check_status(reply, bookie_id)
            except LedgerError as error:
                failures.append(str(error))
            else:
                metrics.entries_copied += len(block.lengths)
                metrics.bytes_copied += len(block.data)
        metrics.write_s += self._clock.monotonic_s() - started_s
        if failures:
            raise _NotStoredError("; ".join(failures))

    def _add(
        self, copy: "_SpanCopy", bookie_id: str, first: int, block: EntryBlock
    ) -> "asyncio.Future[Frame | BookieUnavailableError]":
        future: asyncio.Future[Frame | BookieUnavailableError] = (
            asyncio.get_running_loop().create_future()
        )

        def on_reply(reply: Frame | BookieUnavailableError) -> None:
            if not future.done():
                future.set_result(reply)

        self._channels.get(bookie_id).send(
            Op.ADD,
            (copy.key, block.data),
            on_reply,
            ledger_id=copy.ledger_id,
            entry_id=first,
            flags=Flag.RECOVERY,
        )
        return future

    @property
    def settings(self) -> WorkerSettings:
        return self._settings

    def note_unreadable(self, entries: int) -> None:
        self._metrics.unreadable_entries += entries


class _NotStoredError(LedgerError):
    """A bookie did not store the entries copied to it."""

    retryable = True


class _LostEntryError(LedgerError):
    """Every bookie of the write set is certain that it has no good copy."""


class _Runs(Iterator[_Run]):
    """Iterator over pieces, cut into runs of a few requests each."""

    def __init__(self, pieces: Sequence[Piece], entries_max: int) -> None:
        self._pieces = deque(pieces)
        self._entries_max = entries_max
        self._at = -1
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    def __next__(self) -> _Run:
        if not self._pieces:
            raise StopIteration
        first, last, targets = self._pieces[0]
        first = max(first, self._at)
        end = min(last, first + self._entries_max - 1)
        if end == last:
            self._pieces.popleft()
        self._at = end + 1
        self._count += 1
        return _Run(first, end, targets, self._count - 1)


class _SpanCopy:
    """The copying of one span of one ledger."""

    def __init__(self, copier: Copier, metadata: LedgerMetadata, span: Span) -> None:
        self._copier = copier
        self._metadata = metadata
        self._span = span
        self.ledger_id = metadata.ledger_id
        self.codec: PacketCodec = codec_for(metadata)
        self.key = master_key(metadata.password)
        self.read_key = read_key(metadata.password)
        self.result = CopyResult()

    def sources(
        self, run: _Run, entry_id: int, facts_of: Callable[[str], ReplicaFacts]
    ) -> list[str]:
        """Return the bookies that may have the entry, best first, without those that lack it."""
        ensemble_size = len(self._span.bookies)
        members = write_set(
            entry_id, ensemble_size=ensemble_size, write_quorum=self._metadata.write_quorum
        )
        turned = sticky_first(members, run.number % ensemble_size)
        bookies = [self._span.bookies[index] for index in turned]
        return replica_order([each for each in bookies if each not in run.targets], facts_of)

    def is_more(self, runs: _Runs) -> bool:
        return not runs.is_empty and not self._is_over

    async def run(self, runs: _Runs) -> None:
        """Copy one run after another until none is left, or continuing is futile."""
        while self.is_more(runs):
            await self._copy(next(runs))

    @property
    def _is_over(self) -> bool:
        lost = sum(last - first + 1 for first, last in self.result.lost)
        return bool(self.result.failures) or (lost >= self._copier.settings.lost_entries_listed_max)

    async def _copy(self, run: _Run) -> None:
        settings = self._copier.settings
        at, attempts = run.first, 0
        while at <= run.last and not self._is_over:
            try:
                copied = await self._copier.copy_some(self, run, at)
            except _LostEntryError:
                self._copier.note_unreadable(1)
                self.result.lost.append((at, at))
                at += 1
            except LedgerError as error:
                attempts += 1
                if attempts < settings.copy_attempts_max:
                    await asyncio.sleep(settings.copy_retry_delay_s)
                    continue
                self.result.failures.append(str(error))
                if not isinstance(error, _NotStoredError):
                    self.result.is_unreachable = True
                    self._copier.note_unreadable(run.last - at + 1)
            else:
                attempts = 0
                self.result.entries += copied
                at += copied


def _read_error(errors: Sequence[LedgerError], ledger_id: int, entry_id: int) -> LedgerError:
    """Return the error of a failed read. Absence and a bad copy are certain; any other answer
    leaves the outcome unknown."""
    if all(is_negative(error) or isinstance(error, DigestMismatchError) for error in errors):
        return _LostEntryError(
            f"ledger {ledger_id}, entry {entry_id}: no bookie has a good copy: "
            f"{'; '.join(map(str, errors)) or 'nobody else stores it'}"
        )
    unknown = [error for error in errors if not isinstance(error, DigestMismatchError)]
    return worst_error(unknown, ledger_id, entry_id)
