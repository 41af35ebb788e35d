"""Reads choose a replica, and cope with replicas that are bad, slow or gone."""

from collections import Counter

import pytest

from magnetar.ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    FutureMetadataVersionError,
    InvalidLedgerMetadataError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from magnetar.ledger.layouts.ledger_layout_hierarchical import ledger_path
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST, SimClient, SimWriter, payload_of
from tests.simulation.heard import heard
from tests.simulation.history import Sent
from tests.simulation.simulation import Simulation, scenario

# Who answers late is waited for: the stories count whom the client asks.
SETTINGS = FAST.model_copy(update={"speculative_read_ms": 0, "request_timeout_s": 30.0})
COUNT = 30
PAYLOADS = [payload_of("w", number) for number in range(COUNT)]
LAST = COUNT - 1
ALL = ("b1", "b2", "b3")


async def written(sim: Simulation, quorum: tuple[int, int, int] = (3, 3, 3)) -> SimWriter:
    """A closed ledger with `PAYLOADS`."""
    client = sim.clients.get("w") or await sim.client("w")
    w = await client.create(*quorum, ensemble=ALL)
    for _ in range(COUNT):
        await w.add()
    await w.close()
    return w


async def client_of(sim: Simulation, **settings: object) -> SimClient:
    return await sim.client("c", SETTINGS.model_copy(update=settings))


def by_bookie(sim: Simulation) -> Counter[str]:
    """How many answers to reads each bookie gave."""
    return Counter(event.source for event in heard(sim, client="c", op=Op.READ))


async def read_each(client: SimClient, ledger_id: int) -> None:
    """With one handle, each entry by itself."""
    reader = await client.open(ledger_id)
    for entry_id, payload in enumerate(PAYLOADS):
        assert await reader.read(entry_id, entry_id) == [payload]


# Order


@scenario(bookies=3)
async def test_a_handle_sticks_to_one_member(sim: Simulation) -> None:
    w = await written(sim)
    await read_each(await client_of(sim), w.ledger_id)
    assert list(by_bookie(sim).values()) == [COUNT]


@scenario(bookies=3)
async def test_handles_stick_to_different_members(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim)
    for _ in range(30):
        await (await client.open(w.ledger_id)).read(0, 0)
    assert set(by_bookie(sim)) == set(ALL)


@scenario(bookies=3)
async def test_a_sticky_handle_moves_on_failure_and_stays_there(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim, reorder_reads=False)
    reader = await client.open(w.ledger_id)
    await reader.read(0, 0)
    (member,) = by_bookie(sim)
    sim.net.refuse(Status.IO_ERROR, client="c", bookie=member, op=Op.READ)
    for entry_id, payload in enumerate(PAYLOADS):
        assert await reader.read(entry_id, entry_id) == [payload]
    assert by_bookie(sim)[member] == 2
    assert len(by_bookie(sim)) == 2


@scenario(bookies=3)
async def test_without_stickiness_reads_begin_with_the_write_set(sim: Simulation) -> None:
    w = await written(sim)
    await read_each(await client_of(sim, sticky_reads=False), w.ledger_id)
    assert list(by_bookie(sim).values()) == [10, 10, 10]


@scenario(bookies=3)
async def test_a_striped_ledger_is_read_from_its_write_sets(sim: Simulation) -> None:
    w = await written(sim, (3, 2, 2))
    await read_each(await client_of(sim), w.ledger_id)
    assert sum(by_bookie(sim).values()) == COUNT


@scenario(bookies=3)
async def test_who_failed_lately_is_asked_last(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim, sticky_reads=False)
    sim.net.refuse(Status.IO_ERROR, client="c", bookie="b1", op=Op.READ)
    await read_each(client, w.ledger_id)
    assert by_bookie(sim)["b1"] == 1


@scenario(bookies=3)
async def test_an_unregistered_bookie_is_asked_last(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim)
    await sim.bookie("b2").stop()
    await sim.until(lambda: client.ledgers.registry.resolve("b2") is None)
    for _ in range(20):
        reader = await client.open(w.ledger_id)
        assert await reader.read(3, 3) == [PAYLOADS[3]]
    assert client.ledgers.fetcher.facts_of("b2").has_failed is False


# Slow replicas


@scenario(bookies=3)
async def test_a_slow_replica_is_raced_by_the_next_one(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(
        sim, speculative_read_ms=1000, bookie_failure_memory_s=0, sticky_reads=False
    )
    slow = sim.net.hold(client="c", bookie="b1", op=Op.READ, reply=True)
    reader = await client.open(w.ledger_id)
    began_s = sim.loop.time()
    assert await reader.read(0, 0) == [PAYLOADS[0]]
    assert 1.0 <= sim.loop.time() - began_s < 1.1
    assert client.ledgers.fetcher.counts.speculative_reads == 1
    assert slow.seen == 1


@scenario(bookies=3)
async def test_without_speculation_a_slow_replica_is_waited_for(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim, request_timeout_s=0.5, sticky_reads=False)
    sim.net.hold(client="c", bookie="b1", op=Op.READ, reply=True)
    reader = await client.open(w.ledger_id)
    began_s = sim.loop.time()
    assert await reader.read(0, 0) == [PAYLOADS[0]]
    assert sim.loop.time() - began_s >= 0.5
    assert client.ledgers.fetcher.counts.speculative_reads == 0


# Errors


@scenario(bookies=3)
async def test_rule_9_1_an_outage_never_looks_like_absence(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim)
    cases: list[tuple[Status, Status, type[LedgerError]]] = [
        (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, NoSuchEntryError),
        (Status.NO_SUCH_ENTRY, Status.IO_ERROR, BookieUnavailableError),
        (Status.UNKNOWN_LEDGER_STATE, Status.NO_SUCH_LEDGER, BookieUnavailableError),
    ]
    for number, (first, second, error) in enumerate(cases):
        for bookie_id, status in zip(ALL, (first, second, Status.NO_SUCH_ENTRY), strict=True):
            sim.net.refuse(status, client="c", bookie=bookie_id, op=Op.READ)
        reader = await client.open(w.ledger_id)
        with pytest.raises(error):
            # Past the history: that there is no such entry is a lie, and would be judged.
            await client.run(reader.reader.read(0, 0))
        assert list(by_bookie(sim).values()) == [number + 1] * 3
        sim.net.heal_all()


@scenario(bookies=3)
async def test_rule_9_2_bad_replicas_are_counted_and_noted_for_repair(sim: Simulation) -> None:
    w = await written(sim)
    client = await client_of(sim)
    noted: list[tuple[int, int, int, str]] = []
    client.ledgers.repairs.on_noted.append(lambda *note: noted.append(note[:4]))
    for bookie_id in ("b1", "b3"):
        sim.bookie(bookie_id).corrupt(w.ledger_id, LAST)
    for _ in range(10):
        reader = await client.open(w.ledger_id)
        assert await reader.read(LAST, LAST) == [PAYLOADS[-1]]
    mismatches = client.ledgers.fetcher.digest_mismatches
    assert {note[3] for note in noted} == set(mismatches)
    assert mismatches
    assert set(mismatches) <= {"b1", "b3"}
    assert all(note[:3] == (w.ledger_id, LAST, LAST) for note in noted)
    sim.bookie("b2").corrupt(w.ledger_id, LAST)
    with pytest.raises(DigestMismatchError):
        await reader.read(LAST, LAST)


@scenario(bookies=3)
async def test_rule_9_2_a_damaged_replica_is_never_returned_another_one_is(
    sim: Simulation,
) -> None:
    w = await written(sim)
    for bookie_id in ("b1", "b2"):
        for entry_id in range(COUNT):
            sim.bookie(bookie_id).corrupt(w.ledger_id, entry_id)
    client = await client_of(sim)
    for _ in range(3):
        await read_each(client, w.ledger_id)
    assert set(client.ledgers.fetcher.digest_mismatches) <= {"b1", "b2"}


@scenario(bookies=3)
async def test_when_all_replicas_are_damaged_the_error_says_so(sim: Simulation) -> None:
    w = await written(sim)
    for bookie_id in ALL:
        sim.bookie(bookie_id).corrupt(w.ledger_id, 0)
    reader = await (await client_of(sim)).open(w.ledger_id)
    with pytest.raises(LedgerError, match="CRC32C"):
        await reader.read(0, 0)


@scenario(bookies=3)
async def test_good_entries_in_front_of_a_bad_one_are_returned(sim: Simulation) -> None:
    w = await written(sim)
    for bookie_id in ("b1", "b2"):
        for entry_id in (7, LAST):
            sim.bookie(bookie_id).corrupt(w.ledger_id, entry_id)
    client = await client_of(sim)
    for _ in range(10):
        reader = await client.open(w.ledger_id)
        seen: list[bytes] = []
        while len(seen) < COUNT:
            seen += await client.run(reader.reader.read(len(seen), LAST))
        assert seen == PAYLOADS
    assert client.ledgers.fetcher.digest_mismatches


@scenario(bookies=3)
async def test_a_read_of_a_deleted_ledger_says_so_when_its_entries_are_gone(
    sim: Simulation,
) -> None:
    w = await written(sim)
    client = await client_of(sim)
    reader = await client.open(w.ledger_id)
    await w.client.run(w.client.ledgers.delete(w.ledger_id))
    assert await reader.read(0, 0) == [PAYLOADS[0]]  # the bookies have it still
    sim.net.refuse(Status.NO_SUCH_LEDGER, client="c", op=Op.READ)
    with pytest.raises(NoSuchLedgerError):
        await reader.read(0, 0)


# Who may read, and what is believed


def sent_by(sim: Simulation, client: str) -> list[Sent]:
    return [event for _, actor, event in sim.history.of(Sent) if actor == client]


@scenario(bookies=3)
async def test_a_wrong_password_is_refused_before_anything_is_sent(sim: Simulation) -> None:
    w = await (await sim.client("w")).create(3, 3, 2, password=b"secret")
    await w.add()
    ledgers = (client := await client_of(sim)).ledgers
    for wrong in (b"", b"guess", b"secret2"):
        with pytest.raises(UnauthorizedError, match="Pass the one that it was created with"):
            await client.run(ledgers.open(w.ledger_id, password=wrong))
        with pytest.raises(UnauthorizedError, match=f"ledger {w.ledger_id}"):
            await client.run(ledgers.open_and_recover(w.ledger_id, password=wrong))
    assert sent_by(sim, "c") == []
    await w.add()
    assert w.acked == [0, 1], "nobody fenced it"


@scenario(bookies=3)
async def test_hmac_catches_what_a_bookie_makes_up(sim: Simulation) -> None:
    """A CRC can be made to fit by whoever changes the bytes; an HMAC needs the password."""
    w = await (await sim.client("w")).create(
        3, 3, 2, digest_type=DigestType.HMAC, password=b"secret"
    )
    await w.add()
    await w.close()
    sim.net.alter(
        lambda body: body.replace(payload_of("w", 0), b"x" * len(payload_of("w", 0))),
        client="c",
        op=Op.READ,
    )
    reader = await (await client_of(sim)).open(w.ledger_id)
    with pytest.raises(DigestMismatchError, match="HMAC"):
        await reader.read(0, 0)


@scenario(bookies=3)
async def test_corrupt_metadata_and_those_of_a_newer_release_are_left_as_they_are(
    sim: Simulation,
) -> None:
    """Neither opened nor recovered nor repaired."""
    w = await (await sim.client("w")).create(3, 3, 2)
    await w.add()
    path = ledger_path("/ledgers", w.ledger_id)
    client, tree = await client_of(sim), sim.store.tree
    sound = tree.get(path)
    newer = sound.value.replace(b'"format_version":1', b'"format_version":2,"new":1')
    cases: list[tuple[bytes, type[LedgerError], str]] = [
        (b'{"ledger_id":0}', InvalidLedgerMetadataError, "from a backup of the metadata store"),
        (newer, FutureMetadataVersionError, "upgrade it before it uses the ledger"),
    ]
    sim.store.stall("w")  # it hears nothing of all this
    for number, (value, error, advice) in enumerate(cases):
        tree.set(path, value, version=sound.version + number)
        ledgers = client.ledgers
        for call in (ledgers.open, ledgers.open_and_recover, ledgers.manager.read):
            with pytest.raises(error, match=rf"/ledgers/00/0000/L0000 .*{advice}"):
                await client.run(call(w.ledger_id))
        assert tree.get(path).value == value
    assert sent_by(sim, "c") == [], "no bookie was asked, or fenced"
    tree.set(path, sound.value, version=sound.version + len(cases))
