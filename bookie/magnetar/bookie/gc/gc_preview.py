"""A dry run of a garbage collection round, for tools; the bookie may be stopped or running.

    local = BitMap64(index.states())
    dead = await preview_ledgers(index.states(), manager, calls, brake)
    usages = survey_all(logs_directory, disk)
    local.remove(dead.ledger_ids)
    preview = preview_logs(usages, local, options)

Nothing is written, no lock is taken. Next to a running bookie, the newest log may still grow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pyroaring import BitMap64

from magnetar.bookie.entry_logs.log_names import log_ids
from magnetar.bookie.errors import ImplausibleListingError, StorageLogMissingError
from magnetar.bookie.gc.compaction_plan import LogUse, choose_logs
from magnetar.bookie.gc.dead_ledgers import Brake
from magnetar.bookie.gc.ledger_collector import (
    UNRECORDED_MAX,
    LedgerSource,
    missing_ledgers,
    too_many_unrecorded,
)
from magnetar.bookie.gc.log_collector import compaction_rules
from magnetar.bookie.gc.log_survey import LogSurvey
from magnetar.bookie.gc.log_usage import LogUsage
from magnetar.bookie.gc.metadata_calls import MetadataCalls
from magnetar.bookie.gc.schedule import CompactionKind
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.ports import Disk

Action = Literal["remove", "compact in a minor run", "compact in a major run", "keep"]


@dataclass(frozen=True, slots=True)
class LedgersPreview:
    """Outcome of a round of garbage collection for the ledgers of a bookie, if it ran now."""

    ledger_ids: tuple[int, ...]
    """Ledgers to delete: their metadata is certainly gone."""
    unconfirmed: tuple[int, ...]
    """Ledgers not listed, for which the metadata store did not answer: kept for now."""
    listed_in_error: tuple[int, ...]
    """Ledgers not listed, but with metadata: kept; check the metadata store."""
    unrecorded: tuple[int, ...]
    """Ledgers without metadata and without a record of their deletion: kept; the metadata lost
    them."""
    waiting: tuple[int, ...]
    """Most of a few ledgers vanished: kept until they have been missing for
    `gc_vanish_patience_s`."""
    refused: str
    """Why nothing more would be deleted; empty if the metadata is believed."""


@dataclass(frozen=True, slots=True)
class LogPreview:
    """Outcome of a round of garbage collection for one entry log, if it ran now."""

    log_id: int
    file_bytes: int
    live_bytes: int
    live_ledgers: int
    ledgers: int
    is_certain: bool
    """False if only the index can tell its ledgers: the footer is missing or damaged, and the end
    torn."""
    action: Action
    freed_bytes: int
    """Bytes that the action frees, about."""


async def preview_ledgers(
    local_ids: Iterable[int], source: LedgerSource, calls: MetadataCalls, brake: Brake
) -> LedgersPreview:
    """Return the local ledgers that a round would delete now, and those it would keep.

    Like a first round: it does not know how long a ledger has been missing.

    Raises:
        ForeignMetadataError, LedgerError: a round would fail in the same way.
    """
    local = BitMap64(local_ids)
    count = len(local)
    # A share of 1 is how an operator accepts vanished ledgers permanently.
    accept_vanished = brake.vanish_share_max >= 1
    try:
        missing = await missing_ledgers(local, source, calls, None if accept_vanished else brake)
    except ImplausibleListingError as error:
        return LedgersPreview((), (), (), (), (), str(error))
    has_brake = not accept_vanished and not source.records_deletions
    if has_brake and brake.asks_for_patience(missing=len(missing), local=count):
        return LedgersPreview((), (), (), (), tuple(missing), "")
    dead: list[int] = []
    unconfirmed: list[int] = []
    listed_in_error: list[int] = []
    unrecorded: list[int] = []
    refused = ""
    for ledger_id in missing:
        if len(unrecorded) >= UNRECORDED_MAX:
            refused = too_many_unrecorded(len(unrecorded))
            break
        await calls.wait_turn()
        try:
            try:
                await source.read(ledger_id)
            except NoSuchLedgerError:
                is_deleted = accept_vanished or await source.is_deleted(ledger_id)
                (dead if is_deleted else unrecorded).append(ledger_id)
            else:
                listed_in_error.append(ledger_id)
        except LedgerError:
            unconfirmed.append(ledger_id)
    return LedgersPreview(
        tuple(dead), tuple(unconfirmed), tuple(listed_in_error), tuple(unrecorded), (), refused
    )


def survey_all(logs_directory: str, disk: Disk) -> list[LogUsage]:
    """Return the ledgers of all entry logs of a directory. Reads their footers, or all run heads.

    Raises:
        StorageIOError, OSError
    """
    survey = LogSurvey(logs_directory, disk)
    usages: list[LogUsage] = []
    for log_id in log_ids(disk.list(logs_directory)):
        try:
            usages.append(survey.usage(log_id))
        except StorageLogMissingError:
            continue  # the bookie has just removed it
    return usages


def preview_logs(
    usages: Iterable[LogUsage], alive: BitMap64, settings: BookieSettings
) -> list[LogPreview]:
    """Return what a round with these live ledgers would do to each log, by ascending id."""
    found = [(usage, usage.live(alive)) for usage in usages]
    uses = [
        LogUse(usage.log_id, usage.file_bytes, live.bytes)
        for usage, live in found
        if not (usage.is_certain and live.ledgers == 0)
    ]
    log_bytes_max = settings.entry_log_bytes_max
    chosen = {
        kind: {log.log_id for log in choose_logs(uses, rule, log_bytes_max=log_bytes_max)}
        for kind, rule in compaction_rules(settings).items()
    }
    previews: list[LogPreview] = []
    for usage, live in found:
        action: Action = "keep"
        if usage.is_certain and live.ledgers == 0:
            action = "remove"
        elif usage.log_id in chosen[CompactionKind.MINOR]:
            action = "compact in a minor run"
        elif usage.log_id in chosen[CompactionKind.MAJOR]:
            action = "compact in a major run"
        previews.append(
            LogPreview(
                log_id=usage.log_id,
                file_bytes=usage.file_bytes,
                live_bytes=live.bytes,
                live_ledgers=live.ledgers,
                ledgers=len(usage.ledger_ids),
                is_certain=usage.is_certain,
                action=action,
                freed_bytes=0 if action == "keep" else usage.file_bytes - live.bytes,
            )
        )
    return previews
