"""The entries of a slice from bookies, and through a broker from the first one that none of its
bookies is reached for.

That an executor reaches no bookie says nothing of what they hold: brokers are nearer to them. What
bookies do say, that entries are gone or are not what was written, is not asked a second time.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.spark.broker_reads import BrokerReads
from magnetar.sdk.spark.errors import UnreachableError
from magnetar.sdk.spark.ledger_reads import LedgerReads
from magnetar.sdk.spark.slices import LedgerPart, Slice

_log = logging.getLogger(__name__)


class FallbackReads:
    """Reads of one slice. Once it has gone over to brokers it stays with them, and so do those of
    the slices that follow it in its task."""

    def __init__(self, wanted: Slice, before: "FallbackReads | None" = None) -> None:
        """`before`: of the slice before it in a task; its connections to bookies go on here.

        Raises:
            OptionError: a file of the bookies' security cannot be used.
        """
        self._slice = wanted
        settings = wanted.settings
        self._brokers: BrokerReads | None = None
        self._problem: UnreachableError | None = None
        """Why bookies are not asked any more."""
        self._bookies: LedgerReads
        if before is not None:
            self._bookies, self._problem = before._bookies, before._problem
            self._bookies.know(wanted.addresses)
        else:
            self._bookies = LedgerReads(
                wanted.addresses,
                request_bytes=settings.request_bytes,
                bookie_timeout_ms=settings.bookie_timeout_ms,
                security=settings.bookie_security,
            )

    def close(self) -> None:
        self._bookies.close()
        if self._brokers is not None:
            self._brokers.close()

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        """Runs of payloads in order, each with the id of its first entry.

        Raises:
            DataLossError, CorruptDataError: see `LedgerReads.entries`.
            UnreachableError: neither bookies nor brokers give them; says why of both.
        """
        if self._problem is None:
            try:
                for first, payloads in self._bookies.entries(part):
                    yield first, payloads
                    part = replace(part, first=first + len(payloads))
                return
            except UnreachableError as error:
                if not self._slice.settings.service_url:
                    raise
                self._problem = error
                _log.warning("%s: reading through brokers: %s", self._slice.topic, error)
                self._bookies.close()
        try:
            yield from self._opened().entries(part)
        except UnreachableError as error:
            raise UnreachableError(f"{self._problem}; nor through brokers: {error}") from error

    def first_held(self, part: LedgerPart) -> int:
        """The first of these entries that may be there; behind the last one if none is."""
        return part.first if self._problem is not None else self._bookies.first_held(part)

    def _opened(self) -> BrokerReads:
        if self._brokers is None:
            settings = self._slice.settings
            self._brokers = BrokerReads(
                self._slice.topic, settings.service_url, settings.client or ClientSettings()
            )
        return self._brokers
