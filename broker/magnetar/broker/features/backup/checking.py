"""Checks that the objects of a backup are in the object stores, before anything is restored.

The check reads the end of each object. It has the ledger, the attempt, the number of entries, and
the checksum over the object's runs. They must equal those in the log's node. The runs themselves
are checked when they are read.

A store that cannot be reached raises an error; its objects are not reported as missing.
"""

from collections.abc import Sequence

from magnetar.broker.features.backup.on_each import on_each
from magnetar.broker.features.backup.planning import RestoredLog
from magnetar.ledger.errors import (
    FutureObjectVersionError,
    ObjectDamagedError,
    ObjectMissingError,
)
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.offloading.object_format import ObjectName
from magnetar.ledger.offloading.object_store import ObjectStores
from magnetar.ledger.offloading.offloader import read_footer

_CHECKS_AT_ONCE = 16


class ObjectCheck:
    """Checks the objects of restored logs, and collects the problems."""

    def __init__(self, stores: ObjectStores) -> None:
        self._stores = stores
        self.objects = 0
        """Objects checked so far."""
        self.problems: list[str] = []
        """One sentence for each object that is missing or differs from the log's node."""

    async def check(self, restored: RestoredLog) -> None:
        """Check the end of every object of a log.

        Raises:
            ObjectStoreRefusedError, ObjectStoreConfigError: a store of the log is not among the
                settings, or refuses reads.
            ObjectStoreUnavailableError: try again.
        """

        async def one(ledger: LogLedger) -> None:
            problem = await self._problem_with(restored, ledger)
            self.objects += 1
            if problem:
                self.problems.append(f"{restored.path}, ledger {ledger.ledger_id}: {problem}")

        await on_each(restored.node.ledgers, one, at_once=_CHECKS_AT_ONCE)

    async def _problem_with(self, restored: RestoredLog, ledger: LogLedger) -> str:
        found = ledger.object
        assert found is not None
        base = restored.node.object_bases[found.base]
        key = base.key(ledger.ledger_id, found.attempt)
        name = ObjectName(ledger.ledger_id, bytes.fromhex(found.attempt))
        store = self._stores.store(base.store)
        try:
            footer = await read_footer(store, key, name)
        except ObjectMissingError:
            return f"there is no object {key} in the store {base.store}"
        except (ObjectDamagedError, FutureObjectVersionError) as error:
            return f"{key}: {error}"
        is_as_noted = (footer.entries, footer.size_bytes, footer.check) == (
            ledger.entries,
            found.bytes,
            found.check,
        )
        if is_as_noted:
            return ""
        return (
            f"{key} has {footer.entries} entries in {footer.size_bytes} bytes with the check "
            f"{footer.check}; the backup says {ledger.entries}, {found.bytes} and {found.check}"
        )


def in_words(problems: Sequence[str], *, shown_max: int = 10) -> str:
    """Return the problems as one text, the first `shown_max` in full."""
    shown = "; ".join(problems[:shown_max])
    more = len(problems) - shown_max
    return f"{shown}; and {more} more" if more > 0 else shown
