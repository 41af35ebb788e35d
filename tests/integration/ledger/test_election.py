"""Elections on both metadata stores; see magnetar/ledger/metadata/election.py."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from magnetar.ledger.metadata import MetadataStore
from magnetar.ledger.metadata.election import Election, read_leader
from tests.integration.ledger.candidates import (
    CandidateProcess,
    UnsureStore,
    candidate,
    wait_until,
)
from tests.integration.ledger.metadata_stores import Stores

PATH = "/election"


class Candidates:
    """Makes candidates, each with a session of its own; closes them all at the end."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._made: list[Election] = []

    async def stand(self, name: str, store: MetadataStore | None = None) -> Election:
        election = candidate(store or await self._stores.open(), PATH, name)
        self._made.append(election)
        await election.start()
        return election

    async def close(self) -> None:
        for election in self._made:
            await election.close()


@pytest.fixture
async def candidates(stores: Stores) -> AsyncIterator[Candidates]:
    made = Candidates(stores)
    yield made
    await made.close()


async def votes(store: MetadataStore) -> list[str]:
    await store.catch_up()
    return await store.children(PATH)


async def test_a_single_candidate_leads_as_soon_as_it_has_started(candidates: Candidates) -> None:
    election = await candidates.stand("one")
    assert election.is_leader
    assert election.leader() == "one"


async def test_of_several_the_first_leads_and_all_know_it(
    candidates: Candidates, store: MetadataStore
) -> None:
    elections = [await candidates.stand(name) for name in ("one", "two", "three")]
    assert [each.is_leader for each in elections] == [True, False, False]
    assert [each.leader() for each in elections] == ["one", "one", "one"]
    assert await read_leader(store, PATH) == "one"


async def test_of_candidates_that_start_at_once_exactly_one_leads(candidates: Candidates) -> None:
    elections = await asyncio.gather(*(candidates.stand(str(number)) for number in range(6)))
    for each in elections:
        await wait_until(each, lambda each=each: each.leader() is not None)  # type: ignore[misc]
    assert sum(each.is_leader for each in elections) == 1
    assert len({each.leader() for each in elections}) == 1


async def test_before_the_start_and_after_the_close_nobody_is_known(
    candidates: Candidates, stores: Stores
) -> None:
    election = candidate(await stores.open(), PATH, "one")
    assert not election.is_leader
    assert election.leader() is None
    await election.close()
    await election.start()
    await election.close()
    await election.close()
    assert not election.is_leader
    assert election.leader() is None


async def test_the_next_one_leads_when_the_leader_closes(
    candidates: Candidates, store: MetadataStore
) -> None:
    first, second, third = [await candidates.stand(name) for name in ("one", "two", "three")]
    await first.close()
    await wait_until(second, lambda: second.is_leader)
    await wait_until(third, lambda: third.leader() == "two")
    assert not third.is_leader
    await second.close()
    await wait_until(third, lambda: third.is_leader)
    assert await votes(store) == [(await votes(store))[-1]]


async def test_one_in_the_middle_that_closes_changes_nothing(candidates: Candidates) -> None:
    first, second, third = [await candidates.stand(name) for name in ("one", "two", "three")]
    await second.close()
    fourth = await candidates.stand("four")
    assert first.is_leader
    assert third.leader() == fourth.leader() == "one"
    await first.close()
    await wait_until(third, lambda: third.is_leader)


async def test_a_candidate_that_closed_may_stand_again_at_the_end_of_the_line(
    candidates: Candidates,
) -> None:
    first, second = await candidates.stand("one"), await candidates.stand("two")
    await first.close()
    await wait_until(second, lambda: second.is_leader)
    again = await candidates.stand("one")
    assert again.leader() == "two"
    assert not again.is_leader


async def test_the_end_of_the_leaders_session_makes_the_next_one_lead(
    stores: Stores, candidates: Candidates
) -> None:
    theirs = await stores.open()
    await candidates.stand("one", theirs)
    second = await candidates.stand("two")
    assert not second.is_leader
    await theirs.close()
    await wait_until(second, lambda: second.is_leader)


async def test_a_leader_that_is_killed_is_followed_by_the_next(
    stores: Stores, candidates: Candidates
) -> None:
    with CandidateProcess(stores.url, PATH, "one") as other:
        await asyncio.to_thread(other.read_until, "one leads")
        second = await candidates.stand("two")
        assert second.leader() == "one"
        other.kill()
        await wait_until(second, lambda: second.is_leader)


async def test_a_leader_that_was_paused_past_its_session_finds_itself_last(
    stores: Stores, candidates: Candidates
) -> None:
    with CandidateProcess(stores.url, PATH, "one") as other:
        await asyncio.to_thread(other.read_until, "one leads")
        second = await candidates.stand("two")
        other.pause()
        await wait_until(second, lambda: second.is_leader)
        other.resume()
        await asyncio.to_thread(other.read_until, "one follows two")
        assert second.is_leader
        await second.close()
        await asyncio.to_thread(other.read_until, "one leads")


async def test_a_vote_whose_reply_was_lost_is_found_by_its_token(
    stores: Stores, candidates: Candidates, store: MetadataStore
) -> None:
    unsure = UnsureStore(await stores.open())
    unsure.lost = [True]
    election = await candidates.stand("one", unsure)
    assert election.is_leader
    assert len(await votes(store)) == 1, "the vote was cast twice"


async def test_a_vote_that_never_arrived_is_cast_again(
    stores: Stores, candidates: Candidates, store: MetadataStore
) -> None:
    unsure = UnsureStore(await stores.open())
    unsure.lost = [False, True]
    election = await candidates.stand("one", unsure)
    assert election.is_leader
    assert len(await votes(store)) == 1


async def test_a_vote_of_an_earlier_run_of_the_same_candidate_is_not_taken_for_ones_own(
    stores: Stores, candidates: Candidates
) -> None:
    ghost = await stores.open()
    await candidates.stand("one", ghost)
    again = await candidates.stand("one")
    assert again.leader() == "one"
    assert not again.is_leader
    await ghost.close()
    await wait_until(again, lambda: again.is_leader)


async def test_a_second_vote_of_ones_own_is_taken_back(
    stores: Stores, candidates: Candidates
) -> None:
    """A create that was taken for lost may still arrive."""
    own = await stores.open()
    election = await candidates.stand("one", own)
    (vote,) = await votes(own)
    await own.create(
        f"{PATH}/V_", (await own.get(f"{PATH}/{vote}")).value, ephemeral=True, sequential=True
    )
    second = await candidates.stand("two")
    await own.delete(f"{PATH}/{vote}")
    await wait_until(election, lambda: election.is_leader)
    await election.close()
    await wait_until(second, lambda: second.is_leader)
    assert len(await votes(own)) == 1


async def test_a_vote_that_somebody_deleted_is_cast_anew(
    stores: Stores, candidates: Candidates
) -> None:
    own = await stores.open()
    first = await candidates.stand("one", own)
    second = await candidates.stand("two")
    await own.delete(f"{PATH}/{(await votes(own))[0]}")
    await wait_until(second, lambda: second.is_leader)
    await wait_until(first, lambda: first.leader() == "two")
    assert len(await votes(own)) == 2


NOT_UNDERSTOOD = pytest.mark.parametrize(
    "value",
    [b'{"format":2,"candidate":"one","token":"00"}', b'{"format":1,"candid', b"", b"\xff\x00"],
    ids=["future", "cut", "empty", "binary"],
)


@NOT_UNDERSTOOD
async def test_a_vote_that_is_not_understood_counts_and_its_candidate_is_not_guessed(
    candidates: Candidates, stores: Stores, store: MetadataStore, value: bytes
) -> None:
    """A session stands behind it: a newer release, perhaps, whose leader this is."""
    newer = await stores.open()
    vote = await newer.create(f"{PATH}/V_", value, ephemeral=True, sequential=True)
    with capture_logs() as lines:
        election = await candidates.stand("two")
    assert not election.is_leader
    assert election.leader() is None
    assert await read_leader(store, PATH) is None
    assert (await store.get(vote)).value == value
    [line] = [line for line in lines if line["event"] == "election_vote_not_understood"]
    assert line["vote"] == vote
    assert "\n" not in line["error"]
    await newer.close()
    await wait_until(election, lambda: election.is_leader)


@NOT_UNDERSTOOD
async def test_a_node_without_a_session_is_no_vote_and_holds_nobody_up(
    candidates: Candidates, store: MetadataStore, value: bytes
) -> None:
    await _nobodys_node_is_passed_over(candidates, store, value)


async def test_nor_does_a_well_formed_vote_without_a_session(
    candidates: Candidates, store: MetadataStore
) -> None:
    vote = b'{"format":1,"candidate":"nobody","token":"0123456789abcdef"}'
    await _nobodys_node_is_passed_over(candidates, store, vote)


async def _nobodys_node_is_passed_over(
    candidates: Candidates, store: MetadataStore, value: bytes
) -> None:
    node = await store.create(f"{PATH}/V_", value, sequential=True)
    with capture_logs() as lines:
        election = await candidates.stand("one")
        second = await candidates.stand("two")
    assert election.is_leader
    assert second.leader() == await read_leader(store, PATH) == "one"
    assert (await store.get(node)).value == value, "it is an operator's to delete"
    said = [line for line in lines if line["event"] == "election_node_passed_over"]
    assert [line["node"] for line in said] == [node, node], "once by each of them"


async def test_a_foreign_name_is_passed_over_and_told_of_once(
    candidates: Candidates, store: MetadataStore
) -> None:
    for name in ("notes", "V_1", "V_00000000001", "v_0000000000"):
        await store.create(f"{PATH}/{name}", b"an operator's", ephemeral=True)
    with capture_logs() as lines:
        election = await candidates.stand("one")
        await candidates.stand("two")
    assert election.is_leader
    said = [line["node"] for line in lines if line["event"] == "election_node_passed_over"]
    assert sorted(said) == sorted(
        2 * [f"{PATH}/{name}" for name in ("notes", "V_1", "V_00000000001", "v_0000000000")]
    )
    assert len(await votes(store)) == 6


async def test_nobody_leads_where_nobody_stands(store: MetadataStore) -> None:
    assert await read_leader(store, PATH) is None
