"""A cell over a store whose writes get lost, land unheard, come late or meet a rival."""

from collections.abc import Callable

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    ContendedError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.cell import GONE, Cell, Changed, Deletion, Stored
from magnetar.ledger.metadata.store import Versioned
from tests.dictionary_store import DictionaryStore

PATH = "/counter"
UNKNOWN = UnknownOutcomeError("the connection broke")
AWAY = MetadataUnavailableError("no answer")

Fault = Callable[[], None]


class FaultyStore(DictionaryStore):
    """One step of `faults` per write; what reads see may be behind until the store catches up."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}
        self.faults: list[str] = []
        """Of the next writes, in order: "" none, "lost" and "landed" unknown outcomes, "late" one
        that lands after the next read, "away" unavailable, "=N" a rival writes N before, "gone" a
        rival deletes before."""
        self.writes = 0
        self.catch_ups = 0
        self.is_behind = False
        self.read_error: MetadataUnavailableError | None = None
        self._late: Callable[[], None] | None = None

    def put(self, value: int) -> None:
        self.versions[PATH] = self.versions[PATH] + 1 if PATH in self.nodes else 0
        self.nodes[PATH] = b"%d" % value

    def drop(self) -> None:
        del self.nodes[PATH], self.versions[PATH]

    async def get(self, path: str) -> Versioned:
        if self.read_error is not None:
            raise self.read_error
        if self.is_behind or path not in self.nodes:
            found = None
        else:
            found = Versioned(self.nodes[path], self.versions[path])
        if self._late is not None:
            late, self._late = self._late, None
            late()
        if found is None:
            raise NoNodeError(path)
        return found

    async def catch_up(self) -> None:
        self.catch_ups += 1
        self.is_behind = False
        if self.read_error is not None:
            raise self.read_error

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        def write() -> None:
            if path in self.nodes:
                raise NodeExistsError(path)
            self.put(int(value))

        self._write(write)
        return path

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        def write() -> None:
            self._check(path, version)
            self.put(int(value))

        self._write(write)
        return self.versions[path]

    async def delete(self, path: str, *, version: int | None = None) -> None:
        def write() -> None:
            self._check(path, version)
            self.drop()

        self._write(write)

    def _check(self, path: str, version: int | None) -> None:
        if path not in self.nodes:
            raise NoNodeError(path)
        if version is not None and version != self.versions[path]:
            raise BadVersionError(path)

    def _write(self, write: Callable[[], None]) -> None:
        self.writes += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise AWAY
        if fault == "lost":
            raise UNKNOWN
        if fault == "late":
            self._late = write
            raise UNKNOWN
        if fault.startswith("="):
            self.put(int(fault[1:]))
        if fault == "gone":
            self.drop()
        write()
        if fault == "landed":
            raise UNKNOWN


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def cell(store: FaultyStore) -> Cell[int]:
    return cell_on(store)


def cell_on(store: FaultyStore, tries_max: int = 4) -> Cell[int]:
    return Cell(
        store,
        PATH,
        decode=lambda data: int(data) if data else None,
        encode=lambda value: b"%d" % value,
        tries_max=tries_max,
    )


def add_one(value: int | None) -> int:
    return 1 if value is None else value + 1


def drop(value: int | None) -> Deletion | None:
    return GONE if value is not None else None


async def test_a_change_creates_replaces_and_deletes(store: FaultyStore, cell: Cell[int]) -> None:
    assert await cell.change(add_one) == Changed(None, 1, 0, is_written=True)
    assert await cell.change(add_one) == Changed(1, 2, 1, is_written=True)
    assert await cell.read() == Stored(2, 1)
    assert await cell.change(drop) == Changed(2, None, None, is_written=True)
    assert await cell.read() is None
    assert await cell.change(drop) == Changed(None, None, None, is_written=False)


async def test_a_change_with_nothing_to_do_writes_nothing(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(7)
    assert await cell.change(lambda value: None) == Changed(7, 7, 0, is_written=False)
    assert store.writes == 0


async def test_a_node_without_a_value_of_its_own_is_replaced_not_created(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(0)
    store.nodes[PATH] = b""
    assert await cell.read() == Stored(None, 0)
    assert await cell.change(add_one) == Changed(None, 1, 1, is_written=True)


@pytest.mark.parametrize("fault", ["lost", "landed", "late"])
@pytest.mark.parametrize("before", [None, 5])
async def test_a_change_of_unknown_outcome_is_made_once(
    store: FaultyStore, cell: Cell[int], fault: str, before: int | None
) -> None:
    if before is not None:
        store.put(before)
    store.faults = [fault]
    changed = await cell.change(add_one)
    after = add_one(before)
    version = 0 if before is None else 1
    assert changed == Changed(before, after, version, is_written=True)
    assert store.nodes[PATH] == b"%d" % after
    assert store.catch_ups >= 1


async def test_a_change_in_doubt_is_judged_by_a_store_that_has_caught_up(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(5)
    store.faults = ["landed"]
    asked: list[int | None] = []

    def add(value: int | None) -> int:
        asked.append(value)
        store.is_behind = True
        return add_one(value)

    assert await cell.change(add) == Changed(5, 6, 1, is_written=True)
    assert asked == [5]


@pytest.mark.parametrize("fault", ["lost", "landed", "late"])
async def test_a_deletion_of_unknown_outcome_says_what_it_deleted(
    store: FaultyStore, cell: Cell[int], fault: str
) -> None:
    store.put(5)
    store.faults = [fault]
    assert await cell.change(drop) == Changed(5, None, None, is_written=True)


async def test_what_a_rival_wrote_first_is_what_the_change_is_made_from(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(5)
    store.faults = ["=20"]
    assert await cell.change(add_one) == Changed(20, 21, 2, is_written=True)


async def test_a_node_that_is_deleted_in_between_is_created_anew(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(5)
    store.faults = ["gone"]
    assert await cell.change(add_one) == Changed(None, 1, 0, is_written=True)


async def test_a_node_that_is_created_in_between_is_replaced(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.faults = ["=8"]
    assert await cell.change(add_one) == Changed(8, 9, 1, is_written=True)


async def test_a_rival_that_overwrites_a_lost_try_is_asked_about_again(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(5)
    store.faults = ["lost", "=20"]
    assert await cell.change(add_one) == Changed(20, 21, 2, is_written=True)


async def test_nothing_is_concluded_from_absence_before_the_store_has_caught_up(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(5)
    store.is_behind = True
    assert await cell.read(is_sure=True) == Stored(5, 0)
    store.is_behind = True
    assert await cell.change(drop) == Changed(5, None, None, is_written=True)


async def test_a_reader_that_need_not_be_sure_reads_once(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(5)
    store.is_behind = True
    assert await cell.read() is None
    assert store.catch_ups == 0


@pytest.mark.parametrize("rivals", [3, 4])
async def test_conflicts_at_every_try_change_nothing_and_say_so(
    store: FaultyStore, cell: Cell[int], rivals: int
) -> None:
    store.put(0)
    store.faults = [f"={number}" for number in range(10, 10 + rivals)]
    if rivals < 4:
        assert (await cell.change(add_one)).after == 13
        return
    with pytest.raises(ContendedError, match="/counter was not changed: others changed it 4 times"):
        await cell.change(add_one)
    assert store.writes == 4
    assert store.nodes[PATH] == b"13"


async def test_doubt_at_every_try_is_told_as_doubt(store: FaultyStore, cell: Cell[int]) -> None:
    store.put(0)
    store.faults = ["lost"] * 4
    with pytest.raises(UnknownOutcomeError, match="does not say whether it was written"):
        await cell.change(add_one)
    assert store.writes == 4


@pytest.mark.parametrize("fault", ["lost", "landed"])
async def test_a_store_that_goes_away_in_doubt_leaves_the_doubt(
    store: FaultyStore, cell: Cell[int], fault: str
) -> None:
    store.put(0)
    store.faults = [fault]

    def add_and_part(value: int | None) -> int:
        store.read_error = AWAY
        return add_one(value)

    with pytest.raises(UnknownOutcomeError):
        await cell.change(add_and_part)


async def test_a_store_that_goes_away_at_the_second_try_leaves_the_doubt(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(0)
    store.faults = ["lost", "away"]
    with pytest.raises(UnknownOutcomeError):
        await cell.change(add_one)


async def test_a_store_that_is_away_at_once_has_changed_nothing(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.put(0)
    store.faults = ["away"]
    with pytest.raises(MetadataUnavailableError):
        await cell.change(add_one)
    store.faults = ["away"]
    store.drop()
    with pytest.raises(MetadataUnavailableError):
        await cell.create(1)


async def test_what_the_change_raises_leaves_the_node_as_it_is(
    store: FaultyStore, cell: Cell[int]
) -> None:
    def refuse(value: int | None) -> int:
        raise ValueError(value)

    store.put(5)
    with pytest.raises(ValueError, match="5"):
        await cell.change(refuse)
    assert store.writes == 0


@pytest.mark.parametrize(("known", "reads"), [(Stored(5, 0), 0), (Stored(4, 3), 1)])
async def test_a_known_value_is_begun_with_and_read_again_when_it_is_old(
    store: FaultyStore, cell: Cell[int], known: Stored[int], reads: int
) -> None:
    store.put(5)
    asked: list[int | None] = []

    def add(value: int | None) -> int:
        asked.append(value)
        return add_one(value)

    assert (await cell.change(add, known=known)).after == 6
    assert asked == ([5] if reads == 0 else [4, 5])


async def test_a_change_may_wait_for_others(store: FaultyStore, cell: Cell[int]) -> None:
    async def add(value: int | None) -> int:
        store.put(30) if value is None else None
        return add_one(value)

    assert await cell.change_async(add) == Changed(30, 31, 1, is_written=True)


async def test_a_doubt_is_told_before_the_change_is_asked_again(
    store: FaultyStore, cell: Cell[int]
) -> None:
    told: list[str] = []

    async def add(value: int | None) -> int:
        told.append("asked")
        return add_one(value)

    store.put(5)
    store.faults = ["=7", "lost", "landed"]
    changed = await cell.change_async(add, on_doubt=lambda: told.append("doubt"))
    assert changed.after == 8
    assert told == ["asked", "asked", "doubt", "asked", "doubt"]


# Creation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["", "lost", "landed"])
async def test_a_creation_is_ours_once_whatever_was_heard_of_it(
    store: FaultyStore, cell: Cell[int], fault: str
) -> None:
    store.faults = [fault]
    assert await cell.create(3)
    assert store.nodes[PATH] == b"3"
    assert not await cell.create(3)


async def test_a_creation_in_doubt_that_a_rival_was_before_is_not_ours(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.faults = ["lost", "=9"]
    assert not await cell.create(3)
    assert store.nodes[PATH] == b"9"


async def test_a_creation_that_stays_in_doubt_says_so(store: FaultyStore, cell: Cell[int]) -> None:
    store.faults = ["lost"] * 4
    with pytest.raises(UnknownOutcomeError):
        await cell.create(3)
    store.faults = ["lost", "away"]
    with pytest.raises(UnknownOutcomeError):
        await cell.create(3)


@pytest.mark.parametrize("fault", ["", "lost", "landed", "late"])
async def test_a_value_that_is_not_there_is_made_once(
    store: FaultyStore, cell: Cell[int], fault: str
) -> None:
    store.faults = [fault]
    assert await cell.have(3) == (Stored(3, 0), True)
    assert await cell.have(4) == (Stored(3, 0), False)


async def test_a_value_that_a_rival_made_first_is_the_one_there_is(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.faults = ["=9"]
    assert await cell.have(3) == (Stored(9, 0), False)


async def test_a_value_that_vanishes_at_each_look_is_not_asked_for_for_ever(
    store: FaultyStore, cell: Cell[int]
) -> None:
    store.faults = ["lost"] * 4
    with pytest.raises(UnknownOutcomeError):
        await cell.have(3)
    store.put(5)

    async def never(path: str) -> Versioned:
        raise NoNodeError(path)

    store.get = never  # type: ignore[method-assign]
    with pytest.raises(ContendedError):
        await cell.have(3)
