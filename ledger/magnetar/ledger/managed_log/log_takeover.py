"""Takeover of a log: fence its writer, chain a new ledger, and own the log.

1. Read the list and its version.
2. Recover (fence and close) the last two ledgers, the older one first, and every other one that is
   not known to be closed. It must be two: the previous owner may be in the middle of a change of
   ledgers, and still write to the last but one (defect M3).
3. Create a ledger.
4. Compare-and-set the list, with the ends of the recovered ledgers and the new ledger behind them.
5. Only then append.

From step 2 on the previous owner can add nothing, from step 4 on it can chain nothing, whatever it
believes.

An owner that may never write skips step 3 (`claim`). It sets the list all the same, with a token of
its own, and creates a ledger when there is something to append. The guarantees after step 4 hold
for it, too.

An opener that knows by its own clock how long it may own the log passes `may_own`. It is called
right before each recovery begins and right before each write of the list. Otherwise an opener that
was paused after it checked its lease would fence the present owner, and take the list away.

Nothing here is retried. Of two owners that take the log over at once, the slower one fails with
LogFencedError. Its caller decides whether it still wants the log; automatic retries would make the
two fence each other for ever.

Source: managed ledger, sections 2 and 9.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LogDataLossError, LogFencedError, NoSuchLedgerError
from magnetar.ledger.managed_log.log_ledgers import LogLedgers
from magnetar.ledger.managed_log.log_list import Change, LogList
from magnetar.ledger.managed_log.log_metadata import OPEN_LEDGERS_MAX, LogLedger, LogMetadata
from magnetar.ledger.ports import Clock
from magnetar.ledger.writer import LedgerWriter

log = structlog.get_logger()

_TOKEN_BITS = 62

MayOwn = Callable[[], bool]
"""Whether the opener may own the log at this moment; once it returns False, it always does."""


def always() -> bool:
    """Return True: for an opener that has no competitor, or lets the ledgers alone decide."""
    return True


async def take_over(
    path: str,
    log_list: LogList,
    ledgers: LogLedgers,
    client: LedgerClient,
    *,
    clock: Clock,
    password: bytes | None,
    may_own: MayOwn = always,
) -> LedgerWriter | None:
    """Take over a loaded list; return the ledger to write to, None if the log is terminated.

    Raises:
        LogFencedError: another owner opened the log at the same time and was faster, or the opener
            may not own it any more; then the list was not written.
        LogDataLossError: a ledger of the list has no metadata any more.
        UnauthorizedError: the password is not that of the log's ledgers; nothing was fenced.
        RecoveryUndecidedError, NotEnoughBookiesError, MetadataError: try again later.
    """
    if log_list.terminated is not None:
        return None
    recovered = await _recover(path, log_list, client, clock, password, may_own)
    writer = await ledgers.create()
    kept = [ledger for ledger in recovered if ledger.entries > 0]
    try:
        await log_list.update(
            _checked(
                path,
                may_own,
                lambda metadata: metadata.with_ledgers([*kept, LogLedger(writer.ledger_id)]),
            )
        )
    except BaseException as error:
        writer.abandon()
        if isinstance(error, LogFencedError) and log_list.is_resolved:
            await ledgers.delete(writer.ledger_id)
        raise  # otherwise the list may name it, now or later
    # Only after the list is set: the previous owner must not be able to add to a ledger that the
    # bookies have already deleted (ledger protocol D17, defect M5).
    for ledger in recovered:
        if ledger.entries == 0:
            await ledgers.delete(ledger.ledger_id)
    log.info("log_opened", path=path, ledger_id=writer.ledger_id, ledgers=len(log_list.ledgers))
    return writer


async def claim(
    path: str,
    log_list: LogList,
    ledgers: LogLedgers,
    client: LedgerClient,
    *,
    clock: Clock,
    random: random.Random,
    password: bytes | None,
    may_own: MayOwn = always,
) -> None:
    """Take over a loaded list without a ledger to write to; a terminated one is left unchanged.

    Raises:
        LedgerError: see `take_over`.
    """
    if log_list.terminated is not None:
        return
    recovered = await _recover(path, log_list, client, clock, password, may_own)
    kept = [ledger for ledger in recovered if ledger.entries > 0]
    token = 1 + random.getrandbits(_TOKEN_BITS)
    await log_list.update(_checked(path, may_own, lambda metadata: metadata.claimed(kept, token)))
    for ledger in recovered:
        if ledger.entries == 0:
            await ledgers.delete(ledger.ledger_id)
    log.debug("log_claimed", path=path, ledgers=len(log_list.ledgers))


def _check(path: str, may_own: MayOwn) -> None:
    if not may_own():
        raise LogFencedError(
            f"{path}: this process may no longer own the log, and left it unchanged; open it again "
            "only if it should own it"
        )


def _checked(path: str, may_own: MayOwn, change: Change) -> Change:
    """Wrap a change so that it raises if the opener may not own the log when writing the list."""

    def checked(metadata: LogMetadata) -> LogMetadata:
        _check(path, may_own)
        return change(metadata)

    return checked


async def _recover(
    path: str,
    log_list: LogList,
    client: LedgerClient,
    clock: Clock,
    password: bytes | None,
    may_own: MayOwn,
) -> Sequence[LogLedger]:
    """Close all ledgers of the list, and return them with their true counters."""
    recovered: list[LogLedger] = []
    listed = log_list.ledgers
    for at, ledger in enumerate(listed):
        is_old = ledger.is_closed and at < len(listed) - OPEN_LEDGERS_MAX
        if is_old or ledger.is_in_object_only:  # the bookies may have deleted it
            recovered.append(ledger)
            continue
        _check(path, may_own)
        try:
            reader = await client.open_and_recover(ledger.ledger_id, password=password)
        except NoSuchLedgerError as error:
            # Another opener that set the list first has deleted the ledgers that it found empty.
            await log_list.check_unchanged()
            raise LogDataLossError(
                f"{path}: ledger {ledger.ledger_id} is listed, with {ledger.entries} entries, but "
                "its metadata is gone; the log is not opened, so that the loss is not hidden: "
                "bring the metadata back from a backup of the metadata store"
            ) from error
        recovered.append(
            replace(
                ledger,
                entries=reader.metadata.last_entry_id + 1,
                bytes=reader.metadata.length,
                closed_ms=ledger.closed_ms or clock.wall_ms(),
            )
        )
    return recovered
