"""Taking a log over: fence whoever writes to it, chain a ledger of our own, own it.

1. Read the list and its version. 2. Recover (fence and close) the last two ledgers, the older one
first, and every other one that is not known to be closed: two, because the previous owner may be
in the middle of a change of ledgers and still writing to the one before the last (defect M3).
3. Create a ledger. 4. Compare-and-set the list, with the ends of the recovered ledgers and our own
behind them. 5. Only then is anything appended. From step 2 on the previous owner can add nothing,
from step 4 on it can chain nothing, whatever it believes.

An owner that may never write does without step 3 (`claim`): it sets the list all the same, with a
token of its own, and creates a ledger when there is something to append. What is promised at the
end of step 4 holds for it, too.

An opener that knows by its own clock how long it may own the log passes `may_own`. It is asked
right before each recovery and each write of the list, with no wait in between. An opener that was
paused behind its look at the lease would otherwise fence whoever owns the log by now, and take the
list away.

Nothing here tries twice: of two that take the log over at once, the slower one fails with
LogFencedError, and whether it still wants the log is its caller's decision (they would duel).

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
"""Whether the opener may own the log at this very moment; once it may not, it never may again."""


def always() -> bool:
    """For an opener that has nobody beside it, or lets the ledgers alone decide."""
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
    """Make a loaded list ours; returns the ledger to write to, None if the log is terminated.

    Raises:
        LogFencedError: another owner opened it at the same time, and was faster; or the opener may
            not own it any more: then the list was not written.
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
        raise  # else the list may name it, or may yet
    # Only after our own list is set: the previous owner must not be able to add to a ledger that
    # bookies have already forgotten (ledger protocol D17, defect M5).
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
    """Make a loaded list ours without a ledger to write to; a terminated one is left as it is.

    Raises:
        As `take_over`.
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
    """The change, for whoever may still own the log when it is about to be written."""

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
    """The ledgers of the list, all of them closed now, with what they really hold."""
    recovered: list[LogLedger] = []
    listed = log_list.ledgers
    for at, ledger in enumerate(listed):
        is_old = ledger.is_closed and at < len(listed) - OPEN_LEDGERS_MAX
        if is_old or ledger.is_in_object_only:  # the bookies may have forgotten that one
            recovered.append(ledger)
            continue
        _check(path, may_own)
        try:
            reader = await client.open_and_recover(ledger.ledger_id, password=password)
        except NoSuchLedgerError as error:
            # Whoever sets the list before us deletes the ledgers that it found empty.
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
