"""The orphan sweep on both stores: what nobody names goes, and every doubt keeps."""

from dataclasses import replace

import pytest

from magnetar.cursors.ack_state import AckSnapshot
from magnetar.cursors.node import CursorNode, cursor_path, cursor_refers, encode_node
from magnetar.ledger.errors import ClocksApartError, NoNodeError, OwnerUnclearError
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.managed_log.log_metadata import CREATED_PROPERTY, LogLedger, LogMetadata
from magnetar.ledger.metadata import MetadataStore, Versioned
from magnetar.ledger.orphans import (
    CLOCKS_APART_MS_MAX,
    GRACE_MS_MIN,
    Finding,
    OrphanSweep,
    Verdict,
    agreed_ms,
    log_refers,
)
from magnetar.ledger.position import Position
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.ledger_managers import ROOT, LosingStore, listed, make, manager_on

LOG = "/managed-ledgers/public/default/persistent/t"
LATER_MS = 100 * GRACE_MS_MIN
NOW_MS = SystemClock().wall_ms() + LATER_MS
"""Long after all that a test does."""
OF_LOG = {"component": "managed-log", "log": LOG}
OF_CURSOR = {"component": "cursor", "log": LOG, "cursor": "s/1"}


@pytest.fixture
def manager(store: MetadataStore) -> LedgerManager:
    return manager_on(store)


async def create(
    manager: LedgerManager,
    custom_metadata: dict[str, str],
    *,
    state: LedgerState = LedgerState.CLOSED,
    age_ms: int = LATER_MS,
) -> VersionedLedger:
    def made(ledger_id: int, creation_token: int) -> LedgerMetadata:
        return replace(
            make(ledger_id, creation_token),
            state=state,
            custom_metadata=custom_metadata,
            created_ms=NOW_MS - age_ms,
        )

    return await manager.create(made)


async def sweep(
    store: MetadataStore, manager: LedgerManager, *, delete: bool = False, grace: int = GRACE_MS_MIN
) -> list[Finding]:
    owners = {"managed-log": log_refers(store), "cursor": cursor_refers(store)}
    made = OrphanSweep(manager, owners, now_ms=NOW_MS, grace_ms=grace)
    return [finding async for finding in made.run(delete=delete)]


def verdicts(findings: list[Finding]) -> list[tuple[int, Verdict]]:
    return [(finding.ledger_id, finding.verdict) for finding in findings]


async def write_log(store: MetadataStore, *ledger_ids: int) -> None:
    ledgers = tuple(LogLedger(ledger_id, 1, 1, 1) for ledger_id in ledger_ids)
    await store.create(LOG, LogMetadata(ledgers).to_json())


async def write_cursor(store: MetadataStore, ledger_id: int) -> None:
    node = CursorNode(epoch=1, mark_delete=(0, 0), cursor_ledger_id=ledger_id)
    node = node.with_snapshot(AckSnapshot(Position(0, 0)))
    await store.create(cursor_path(LOG, "s/1"), encode_node(node))


async def delete_owners(store: MetadataStore) -> None:
    """Leave a log and a cursor that were deleted."""
    await write_log(store)
    await write_cursor(store, -1)
    for path in (cursor_path(LOG, "s/1"), LOG):
        await store.delete(path)


async def test_a_ledger_that_its_log_or_cursor_names_is_in_use(
    store: MetadataStore, manager: LedgerManager
) -> None:
    for custom in (OF_LOG, OF_LOG, OF_CURSOR, OF_CURSOR):
        await create(manager, custom)
    await write_log(store, 0)
    await write_cursor(store, 2)
    findings = await sweep(store, manager)
    assert verdicts(findings) == [
        (0, Verdict.IN_USE),
        (1, Verdict.ORPHAN),
        (2, Verdict.IN_USE),
        (3, Verdict.ORPHAN),
    ]
    assert findings[1].reason == "its managed-log does not refer to it"
    assert findings[3].custom_metadata == OF_CURSOR


async def test_ledgers_of_a_deleted_log_or_cursor_are_orphans(
    store: MetadataStore, manager: LedgerManager
) -> None:
    await create(manager, OF_LOG)
    await create(manager, OF_CURSOR)
    await delete_owners(store)
    assert {finding.verdict for finding in await sweep(store, manager)} == {Verdict.ORPHAN}


@pytest.mark.parametrize("stores", ["embedded"], indirect=True)
async def test_ledgers_of_a_log_or_cursor_whose_node_was_lost_are_kept(
    store: MetadataStore, manager: LedgerManager
) -> None:
    await create(manager, OF_LOG)
    await create(manager, OF_CURSOR)
    findings = await sweep(store, manager, delete=True)
    assert verdicts(findings) == [(0, Verdict.UNDECIDED), (1, Verdict.UNDECIDED)]
    assert all("without a record of its deletion" in each.reason for each in findings)
    assert await listed(manager) == [0, 1]


@pytest.mark.parametrize("stores", ["embedded"], indirect=True)
async def test_a_ledger_older_than_its_log_is_an_orphan_only_if_a_former_log_was_deleted(
    store: MetadataStore, manager: LedgerManager
) -> None:
    """The metadata file lost the log, and a client that used it created it again."""
    old = await create(manager, OF_LOG)
    await create(manager, OF_LOG, age_ms=LATER_MS - 1)
    created = {CREATED_PROPERTY: str(old.metadata.created_ms + 1)}
    anew = LogMetadata(properties=created).to_json()
    await store.create(LOG, anew)
    findings = await sweep(store, manager)
    assert verdicts(findings) == [(0, Verdict.UNDECIDED), (1, Verdict.ORPHAN)]
    assert "older than the log" in findings[0].reason
    assert "to give its entries up, delete the log" in findings[0].reason
    await store.delete(LOG)
    await store.create(LOG, anew)
    assert {finding.verdict for finding in await sweep(store, manager)} == {Verdict.ORPHAN}


async def test_nothing_is_changed_unless_told_to(
    store: MetadataStore, manager: LedgerManager
) -> None:
    created = [await create(manager, OF_LOG, state=state) for state in LedgerState]
    await delete_owners(store)
    assert {finding.verdict for finding in await sweep(store, manager)} == {Verdict.ORPHAN}
    for each in created:
        assert await manager.read(each.metadata.ledger_id) == each


async def test_orphans_are_deleted_and_the_others_stay(
    store: MetadataStore, manager: LedgerManager
) -> None:
    for _ in range(3):
        await create(manager, OF_LOG)
    await write_log(store, 1)
    assert verdicts(await sweep(store, manager, delete=True)) == [
        (0, Verdict.DELETED),
        (1, Verdict.IN_USE),
        (2, Verdict.DELETED),
    ]
    assert await listed(manager) == [1]


async def test_an_open_orphan_is_sealed_first_and_deleted_by_the_next_sweep(
    store: MetadataStore, manager: LedgerManager
) -> None:
    await create(manager, OF_LOG, state=LedgerState.OPEN)
    await delete_owners(store)
    assert verdicts(await sweep(store, manager, delete=True)) == [(0, Verdict.SEALED)]
    assert (await manager.read(0)).metadata.state is LedgerState.IN_RECOVERY
    assert verdicts(await sweep(store, manager, delete=True)) == [(0, Verdict.DELETED)]


async def test_an_owner_that_names_a_sealed_orphan_after_all_keeps_it(
    store: MetadataStore, manager: LedgerManager
) -> None:
    await create(manager, OF_LOG, state=LedgerState.OPEN)
    await delete_owners(store)
    await sweep(store, manager, delete=True)
    await write_log(store, 0)
    assert verdicts(await sweep(store, manager, delete=True)) == [(0, Verdict.IN_USE)]


async def test_a_young_ledger_is_left_alone(store: MetadataStore, manager: LedgerManager) -> None:
    """A young ledger's owner may be about to name it. A clock that runs behind makes a ledger look
    young."""
    for age_ms in (GRACE_MS_MIN, GRACE_MS_MIN - 1, 0, -GRACE_MS_MIN):
        await create(manager, OF_LOG, age_ms=age_ms)
    await write_log(store)
    findings = await sweep(store, manager)
    assert [finding.verdict for finding in findings] == [Verdict.ORPHAN] + [Verdict.TOO_YOUNG] * 3


@pytest.mark.parametrize("stores", ["zookeeper"], indirect=True)
async def test_a_ledger_is_young_whose_creator_had_a_clock_that_was_behind(
    store: MetadataStore, manager: LedgerManager
) -> None:
    await create(manager, OF_LOG, age_ms=2 * LATER_MS)
    owners = {"managed-log": log_refers(store)}
    made = OrphanSweep(manager, owners, now_ms=await agreed_ms(store, SystemClock()))
    assert [finding.verdict async for finding in made.run(delete=True)] == [Verdict.TOO_YOUNG]
    assert await listed(manager) == [0]


class ShiftedClock(SystemClock):
    """Ahead of the real one, or behind."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@pytest.mark.parametrize("ahead_ms", [2 * CLOCKS_APART_MS_MAX, -2 * CLOCKS_APART_MS_MAX])
@pytest.mark.parametrize("stores", ["zookeeper"], indirect=True)
async def test_there_is_no_sweep_while_the_clocks_of_machine_and_store_are_apart(
    store: MetadataStore, ahead_ms: int
) -> None:
    before = await store.children("/")
    with pytest.raises(ClocksApartError, match="Set the clock that is wrong"):
        await agreed_ms(store, ShiftedClock(ahead_ms))
    assert await store.children("/") == before


async def test_the_time_is_the_earlier_of_two_clocks_that_agree(store: MetadataStore) -> None:
    before_ms = SystemClock().wall_ms()
    agreed = await agreed_ms(store, SystemClock())
    assert before_ms <= agreed <= SystemClock().wall_ms()
    behind = await agreed_ms(store, ShiftedClock(-CLOCKS_APART_MS_MAX // 2))
    assert behind < before_ms


def test_a_short_grace_is_refused(manager: LedgerManager) -> None:
    with pytest.raises(ValueError, match=f"the least is {GRACE_MS_MIN}"):
        OrphanSweep(manager, {}, now_ms=NOW_MS, grace_ms=GRACE_MS_MIN - 1)


@pytest.mark.parametrize(
    ("custom_metadata", "reason"),
    [
        ({}, "no known component"),
        ({"component": "spaceship", "log": LOG}, "no known component created it: 'spaceship'"),
        ({"component": "managed-log"}, "does not say which log"),
        ({"component": "managed-log", "log": "nowhere"}, "cannot check its"),
        ({"component": "cursor", "log": LOG}, "does not say which cursor"),
        ({"component": "cursor", "log": LOG, "cursor": ""}, "cannot check its"),
    ],
)
async def test_a_ledger_whose_owner_is_not_known_is_kept(
    store: MetadataStore, manager: LedgerManager, custom_metadata: dict[str, str], reason: str
) -> None:
    await create(manager, custom_metadata)
    (finding,) = await sweep(store, manager, delete=True)
    assert finding.verdict is Verdict.UNDECIDED
    assert reason in finding.reason
    assert await listed(manager) == [0]


@pytest.mark.parametrize("value", [b"", b"garbage", b'{"format":99}', b'{"format":1}'])
async def test_an_owner_that_cannot_be_understood_keeps_its_ledgers(
    store: MetadataStore, manager: LedgerManager, value: bytes
) -> None:
    await create(manager, OF_LOG)
    await create(manager, OF_CURSOR)
    await store.create(LOG, value)
    await store.create(cursor_path(LOG, "s/1"), value)
    findings = await sweep(store, manager, delete=True)
    assert {finding.verdict for finding in findings} == {Verdict.UNDECIDED}
    assert await listed(manager) == [0, 1]


async def test_metadata_that_cannot_be_read_is_kept(
    store: MetadataStore, manager: LedgerManager
) -> None:
    await store.create(f"{ROOT}/00/0000/L0007", b'{"format_version":2}')
    (finding,) = await sweep(store, manager, delete=True)
    assert (finding.ledger_id, finding.verdict) == (7, Verdict.UNDECIDED)
    assert await listed(manager) == [7]


async def test_an_owner_that_does_not_answer_keeps_its_ledgers(
    store: MetadataStore, manager: LedgerManager
) -> None:
    async def away(metadata: LedgerMetadata) -> bool:
        raise OwnerUnclearError("away")

    await create(manager, OF_LOG)
    made = OrphanSweep(manager, {"managed-log": away}, now_ms=NOW_MS)
    assert [finding.verdict async for finding in made.run(delete=True)] == [Verdict.UNDECIDED]


async def test_a_ledger_that_changes_while_it_is_judged_is_kept(
    store: MetadataStore, manager: LedgerManager
) -> None:
    async def recovered_meanwhile(metadata: LedgerMetadata) -> bool:
        closed = metadata.closed(last_entry_id=-1, length=0)
        await manager.write(closed, version=0)
        return False

    await create(manager, OF_LOG, state=LedgerState.IN_RECOVERY)
    made = OrphanSweep(manager, {"managed-log": recovered_meanwhile}, now_ms=NOW_MS)
    (finding,) = [finding async for finding in made.run(delete=True)]
    assert finding.verdict is Verdict.UNDECIDED
    assert await listed(manager) == [0]


async def test_a_ledger_that_goes_while_it_is_judged_is_no_failure(
    store: MetadataStore, manager: LedgerManager
) -> None:
    async def deleted_meanwhile(metadata: LedgerMetadata) -> bool:
        await manager.delete(metadata.ledger_id)
        return False

    await create(manager, OF_LOG)
    made = OrphanSweep(manager, {"managed-log": deleted_meanwhile}, now_ms=NOW_MS)
    assert [finding.verdict async for finding in made.run(delete=True)] == [Verdict.DELETED]


async def test_a_listing_that_breaks_off_is_an_error(
    store: MetadataStore, manager: LedgerManager
) -> None:
    class Breaking(LosingStore):
        async def get(self, path: str) -> Versioned:
            return await super().get(path)

        async def children(self, path: str) -> list[str]:
            if path.endswith("/00"):
                raise OwnerUnclearError("gone")
            return await super().children(path)

    await create(manager, OF_LOG)
    with pytest.raises(OwnerUnclearError):
        await sweep(store, manager_on(Breaking(store)))


async def test_a_root_that_is_not_there_is_an_error(
    store: MetadataStore, manager: LedgerManager
) -> None:
    with pytest.raises(NoNodeError):
        await sweep(store, manager)
