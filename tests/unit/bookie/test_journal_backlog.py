"""B23: while the journals have too much to do, nobody is read; then everybody is again."""

from typing import cast

from magnetar.bookie.journaling.journal import JournalSet
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.bookie.server import BookieServer
from magnetar.ledger.system import SystemNetwork

QUEUE_BYTES_MAX = 1000


class Journals:
    """How much they have to do, as a test says."""

    queued_bytes = 0


async def test_b23_nobody_is_read_while_the_journals_have_too_much_to_do() -> None:
    journals = Journals()
    server = BookieServer(
        cast(RequestHandler, None),
        cast(JournalSet[BatchContext], journals),
        network=SystemNetwork(),
        metrics=BookieMetrics(),
        frame_bytes_max=1 << 20,
        connections_max=10,
        connection_buffer_bytes_max=1 << 20,
        connection_read_bytes_max=1 << 20,
        journal_queue_bytes_max=QUEUE_BYTES_MAX,
        reads_bytes_max=1 << 20,
        replies_bytes_max=1 << 20,
        turn_bytes_max=1 << 20,
    )
    for queued, is_reading in (
        (QUEUE_BYTES_MAX, True),
        (QUEUE_BYTES_MAX + 1, False),
        (QUEUE_BYTES_MAX // 2 + 1, False),
        (QUEUE_BYTES_MAX // 2, True),
    ):
        journals.queued_bytes = queued
        server.on_requests()
        server.on_committed()
        assert server.is_reading is is_reading
    journals.queued_bytes = 0
    await server.stop_reading()
    server.on_committed()
    assert not server.is_reading
