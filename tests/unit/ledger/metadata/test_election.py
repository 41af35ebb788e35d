"""A candidate: what must not end its candidacy."""

import random

import pytest

from magnetar.ledger.metadata import election as election_module
from magnetar.ledger.metadata.election import Election
from magnetar.ledger.metadata.store import SessionState, Versioned
from tests.dictionary_store import DictionaryStore
from tests.waiting import until


class BreakingStore(DictionaryStore):
    """A store of ephemeral nodes whose next look fails as no store should."""

    breaks = False

    async def get(self, path: str) -> Versioned:
        return Versioned((await super().get(path)).value, 0, is_ephemeral=True)

    async def catch_up(self) -> None:
        if self.breaks:
            self.breaks = False
            raise KeyError("a defect")


async def test_an_unexpected_error_of_the_store_or_a_callback_does_not_end_the_candidacy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election_module, "_RETRY_DELAY_S", 0.0)
    store = BreakingStore()
    election = Election(store, "/election", "one", random=random.Random(0))
    told: list[bool] = []

    def broken() -> None:
        raise KeyError("a defect")

    election.on_change(broken)
    election.on_change(lambda: told.append(election.is_leader))
    await election.start()
    await until(lambda: told == [True])
    store.breaks = True
    election._on_session_change(SessionState.SUSPENDED)
    election._on_session_change(SessionState.CONNECTED)
    await until(lambda: told == [True, False, True], "it looks again, and leads")
    await election.close()
