"""What is shown of transactions: of the coordinators of a broker, and of its topics."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from magnetar.broker.metrics.text import Table, counter, gauge, labels_of

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker

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
    counter("pulsar_txn_tb_committed_total", "Those that were committed, on the topics loaded."),
    counter("pulsar_txn_tb_aborted_total", "Those that were aborted, on the topics loaded."),
)
"""Of all topics of the broker together."""


def transaction_tables(broker: "Broker", cluster: Mapping[str, str]) -> Iterator[Table]:
    """Nothing while nobody has used transactions."""
    services = broker.services
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
    buffers = [
        topic.visibility.buffer
        for topic in services.topics.loaded
        if topic.visibility.buffer is not None
    ]
    if buffers:
        sums = (
            sum(len(each.open) for each in buffers),
            sum(each.committed_count for each in buffers),
            sum(each.aborted_count for each in buffers),
        )
        yield Table(BUFFERS, [(labels_of(cluster), sums)])
