"""Clients that change one cell at once, on a store that loses requests and replies."""

import asyncio
import random
from collections import Counter

import pytest

from magnetar.ledger.errors import ContendedError, MetadataUnavailableError, UnknownOutcomeError
from magnetar.ledger.metadata.cell import GONE, Cell, Deletion
from tests.simulation.history import History
from tests.simulation.loop import SimLoop, SimProcess
from tests.simulation.store import MetadataServer, SimStore

_PATH = "/cell"
_CLIENTS = 4
_CHANGES = 6
_KINDS = ("create", "set", "delete", "get", "catch_up")

Tokens = tuple[str, ...]


def _cell(store: SimStore) -> Cell[Tokens]:
    return Cell(
        store,
        _PATH,
        decode=lambda data: tuple(data.decode().split()),
        encode=lambda tokens: " ".join(tokens).encode(),
        tries_max=6,
    )


@pytest.mark.parametrize("seed", range(60))
def test_each_change_is_made_once_or_says_that_it_may_not_be(seed: int) -> None:
    rng = random.Random(seed)
    loop = SimLoop()  # type: ignore[abstract]  # no sockets, signals, subprocesses
    taken: list[Tokens] = []
    outcomes: dict[str, str] = {}

    async def work(store: SimStore, name: str) -> None:
        cell = _cell(store)
        for number in range(_CHANGES):
            token = f"{name}{number}"

            def add(tokens: Tokens | None, token: str = token) -> Tokens | None:
                # Re-runnable: a try that another client wrote on is found by its token.
                return None if tokens and token in tokens else (*(tokens or ()), token)

            try:
                await cell.change(add)
                outcomes[token] = "done"
            except UnknownOutcomeError:
                outcomes[token] = "unknown"
            except (ContendedError, MetadataUnavailableError):
                outcomes[token] = "not done"
            await asyncio.sleep(rng.random() * 0.002)

    def faults(server: MetadataServer) -> None:
        for _ in range(12):
            lose = rng.choice((server.lose_reply, server.lose_request, server.refuse))
            client = f"c{rng.randrange(_CLIENTS)}"
            lose(client=client, kind=rng.choice(_KINDS), path=None, skip=rng.randrange(8))

        # One client loses a reply and cannot look then.
        client = f"c{rng.randrange(_CLIENTS)}"
        server.lose_reply(client=client, skip=rng.randrange(3))
        server.refuse(client=client, kind="catch_up", skip=rng.randrange(3))

    async def main() -> None:
        server = MetadataServer(loop, History(), seed=str(seed))
        server.jitter_s = 0.002
        stores = [server.open(SimProcess(loop, f"c{number}")) for number in range(_CLIENTS)]
        faults(server)
        await asyncio.gather(*(work(store, f"c{n}-") for n, store in enumerate(stores)))
        server.accidents.clear()

        def drop(tokens: Tokens | None) -> Deletion | None:
            taken.append(tokens or ())
            return GONE if tokens is not None else None

        server.lose_reply(client="c0", kind="delete")
        changed = await _cell(stores[0]).change(drop)
        assert changed.is_written
        assert changed.before == taken[0]
        assert server.tree.version(_PATH) is None

    loop.run(main())
    loop.close()
    assert len(outcomes) == _CLIENTS * _CHANGES
    found = Counter(taken[0])
    assert max(found.values()) == 1, "a change was made twice"
    for token, outcome in outcomes.items():
        if outcome != "unknown":
            assert found[token] == (outcome == "done"), (token, outcome)
