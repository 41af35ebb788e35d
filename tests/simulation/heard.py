"""What was said on the network of a run, for the assertions of scripted tests."""

from magnetar.ledger.wire import Op, Status
from tests.simulation.history import Delivered, Sent
from tests.simulation.simulation import Simulation


def heard(
    sim: Simulation,
    *,
    client: str,
    op: Op,
    bookie: str | None = None,
    status: Status | None = None,
    entry: int | None = None,
    flags: int = 0,
) -> list[Delivered]:
    """The answers that reached the client, in order; `flags` are those of the request."""
    return [
        event
        for _, _, event in sim.history.of(Delivered)
        if event.is_reply
        and event.target == client
        and event.op == op
        and (bookie is None or event.source == bookie)
        and (status is None or event.status == status)
        and (entry is None or event.entry_id == entry or entry in event.entries)
        and event.request_flags & flags == flags
    ]


async def until_heard(
    sim: Simulation,
    *,
    client: str,
    op: Op,
    bookie: str | None = None,
    status: Status | None = None,
    entry: int | None = None,
) -> None:
    """Wait until the client has heard such an answer, and has acted on it."""
    await sim.until(
        lambda: bool(heard(sim, client=client, op=op, bookie=bookie, status=status, entry=entry))
    )
    await sim.sleep(0.01)


def asked(
    sim: Simulation,
    *,
    client: str,
    op: Op,
    bookie: str | None = None,
    entry: int | None = None,
    flags: int = 0,
) -> list[Sent]:
    """The requests that the client sent, in order, whether or not they arrived."""
    return [
        event
        for _, _, event in sim.history.of(Sent)
        if not event.is_reply
        and event.source == client
        and event.op == op
        and (bookie is None or event.target == bookie)
        and (entry is None or event.entry_id == entry or entry in event.entries)
        and event.request_flags & flags == flags
    ]
