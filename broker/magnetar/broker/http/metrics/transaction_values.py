"""What is shown of transactions: of the coordinators of a broker, and of its topics."""

from collections.abc import Iterable, Iterator, Mapping

from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.topic_transactions import state_of
from magnetar.broker.http.metrics.text import Table, counter, gauge, labels_of
from magnetar.broker.topics.services import Services

COORDINATOR = (
    gauge("pulsar_txn_active_count", "Transactions that have not ended everywhere."),
    counter("pulsar_txn_committed_total", "Transactions committed."),
    counter("pulsar_txn_aborted_total", "Transactions aborted."),
    counter("pulsar_txn_created_total", "Transactions begun."),
    counter("pulsar_txn_timeout_total", "Transactions whose time was over."),
    counter("pulsar_txn_append_log_total", "Records written to the coordinator's log."),
)
"""Of each coordinator that the broker is, by its number."""

BUFFERS = (
    gauge("pulsar_txn_tb_active_total", "Transactions with messages on topics here, not ended."),
    counter("pulsar_txn_tb_committed_total", "Those that were committed, on topics while here."),
    counter("pulsar_txn_tb_aborted_total", "Those that were aborted, on topics while here."),
)
"""Of all topics of the broker together."""


class EndsHere:
    """How many transactions were committed, and aborted, on topics while they were here.

    A topic brings along what it counted at former owners, and takes away what it counted here: a
    sum over topics would leap when one comes and fall when one goes, which Prometheus would take
    for a restart and count again. What ends after the last look at a topic that goes is not seen.
    """

    def __init__(self) -> None:
        self._committed = self._aborted = 0
        self._before: dict[BufferState, tuple[int, int]] = {}

    def look(self, buffers: Iterable[BufferState]) -> tuple[int, int]:
        """The counts by now; `buffers`: of the topics that are here."""
        now: dict[BufferState, tuple[int, int]] = {}
        for each in buffers:
            committed, aborted = self._before.get(each, each.ended_before)
            self._committed += each.committed_count - committed
            self._aborted += each.aborted_count - aborted
            now[each] = (each.committed_count, each.aborted_count)
        self._before = now
        return self._committed, self._aborted


def transaction_tables(
    services: Services, ends: EndsHere, cluster: Mapping[str, str]
) -> Iterator[Table]:
    """Nothing while nobody has used transactions."""
    coordinators = services.coordinators.served
    if coordinators:
        rows = Table(COORDINATOR)
        for each in coordinators:
            counters = each.counters
            values = (
                len(each.state.transactions),
                counters.committed,
                counters.aborted,
                counters.created,
                counters.timed_out,
                counters.appended,
            )
            labels = labels_of({**cluster, "coordinator_id": str(each.number)})
            rows.rows.append((labels, values))
        yield rows
    states = map(state_of, services.topics.loaded)
    buffers = [each for each in states if each is not None]
    counts = ends.look(buffers)
    if buffers:
        sums = (sum(len(each.open) for each in buffers), *counts)
        yield Table(BUFFERS, [(labels_of(cluster), sums)])
