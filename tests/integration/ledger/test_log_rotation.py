"""Changing ledgers while appends go on: order, exactly once, and two owners at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.ledger.errors import (
    LedgerWriteError,
    LogClosedError,
    LogError,
    LogFencedError,
    LogUnavailableError,
    MetadataUnavailableError,
)
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log import log_changes
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import Position
from magnetar.ledger.wire import Frame, Op
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.integration.ledger.log_parts import (
    CONFIG,
    PATH,
    ROLLING,
    Batch,
    append,
    open_log,
    open_reader,
    read_all,
    read_on,
)
from tests.waiting import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(3, tmp_path) as cluster:
        yield cluster


class Rotating:
    """A log whose first ledger's answers are held back, and whose appends go to the second."""

    def __init__(self, log: ManagedLog, network: FilteredNetwork) -> None:
        self.log = log
        self.network = network
        assert log._appender.draining is not None
        assert log._appender.writer is not None
        self.first: LedgerWriter = log._appender.draining
        self.second: LedgerWriter = log._appender.writer

    async def wait_second_stored(self) -> None:
        """Until the second ledger has confirmed everything it was given."""
        second = self.second
        await until(lambda: second.last_add_confirmed + 1 >= second.entries_added)


async def rotating(cluster: Cluster, opened: AsyncExitStack) -> tuple[Rotating, list[Batch]]:
    """One entry confirmed, `a0 a1` held on the first ledger, `b0 b1` confirmed on the second."""
    network = FilteredNetwork()
    client = await opened.enter_async_context(cluster.client(network))
    log = await open_log(cluster, client)
    await append(log, [b"before"]).outcome
    first = log.last_confirmed.ledger_id
    network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == first
    batches = [append(log, [b"a%d" % number]) for number in range(2)]
    await log.rotate()
    batches += [append(log, [b"b%d" % number]) for number in range(2)]
    state = Rotating(log, network)
    await state.wait_second_stored()
    return state, batches


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def outcomes(batches: list[Batch]) -> list[bytes]:
    """The payloads of the batches once all are appended, in the order of their positions."""
    async with asyncio.timeout(30):
        await asyncio.gather(*(batch.outcome for batch in batches))
    return [batch.payloads[0] for batch in sorted(batches, key=lambda each: each.outcome.result())]


ALL = [b"before", b"a0", b"a1", b"b0", b"b1"]


async def test_rule_9_2_nothing_is_reported_before_what_was_appended_earlier(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    order: list[bytes] = []
    names = {id(batch.outcome): batch.payloads[0] for batch in batches}
    for batch in batches:
        batch.outcome.add_done_callback(lambda outcome: order.append(names[id(outcome)]))
    assert not any(batch.outcome.done() for batch in batches)
    assert state.log.last_confirmed.entry_id == 0
    assert await read_all(state.log) == [b"before"]
    state.network.release()
    assert await outcomes(batches) == ALL[1:]
    assert order == ALL[1:]
    assert await read_all(state.log) == ALL
    await state.log.close()


async def test_rule_9_1_a_further_rotation_waits_until_the_ledger_before_is_closed(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    again = asyncio.ensure_future(state.log.rotate())
    late = append(state.log, [b"late"])
    await state.wait_second_stored()
    assert not again.done()
    assert [ledger.is_closed for ledger in state.log.ledgers] == [False, False]
    state.network.release()
    await again
    assert await outcomes([*batches, late]) == [*ALL[1:], b"late"]
    assert state.log.ledgers[0].entries == 3
    assert state.log.ledgers[0].is_closed
    await state.log.close()


async def test_rule_9_3_after_a_failure_of_the_draining_ledger_all_is_written_again_in_order(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    state.first._fail(LedgerWriteError("two bookies are gone"))
    waiting = append(state.log, [b"c0"])
    assert await outcomes([*batches, waiting]) == [*ALL[1:], b"c0"]
    state.network.release()  # late answers change nothing
    assert await read_all(state.log) == [*ALL, b"c0"]
    listed = [ledger.ledger_id for ledger in state.log.ledgers]
    assert state.first.ledger_id in listed
    assert state.second.ledger_id not in listed, "it held what is written again behind"
    await state.log.close()
    async with cluster.client() as other:
        again = await open_log(cluster, other)
        assert await read_all(again) == [*ALL, b"c0"]
        await again.close()


async def test_a_ledger_that_is_dropped_leaves_the_list_before_readers_may_go_on_to_it(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    client = await opened.enter_async_context(cluster.client())
    reader = await open_reader(cluster, client)
    reading = asyncio.ensure_future(read_on(reader, 5))
    close = state.first.close
    listed_at_close: list[list[int]] = []

    async def close_noting(*, force: bool = False) -> object:
        node = await cluster.store.get(PATH)
        metadata = LogMetadata.from_json(node.value, path=PATH)
        listed_at_close.append([ledger.ledger_id for ledger in metadata.ledgers])
        return await close(force=force)

    state.first.close = close_noting  # type: ignore[method-assign, assignment]
    state.first._fail(LedgerWriteError("two bookies are gone"))
    assert await outcomes(batches) == ALL[1:]
    [listed] = listed_at_close
    assert state.first.ledger_id in listed
    assert state.second.ledger_id not in listed
    await state.log.close()  # its last entry is readable then
    assert await reading == ALL
    await reader.close()


async def test_rule_9_3_after_a_failure_of_the_later_ledger_the_earlier_one_ends_first(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    state.second._fail(LedgerWriteError("two bookies are gone"))
    waiting = append(state.log, [b"c0"])
    await asyncio.sleep(0.05)
    assert not any(batch.outcome.done() for batch in batches)
    state.network.release()
    assert await outcomes([*batches, waiting]) == [*ALL[1:], b"c0"]
    assert await read_all(state.log) == [*ALL, b"c0"]
    await state.log.close()


async def test_rule_9_3_when_both_ledgers_fail_all_is_written_again_in_order(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    state.second._fail(LedgerWriteError("two bookies are gone"))
    state.first._fail(LedgerWriteError("two bookies are gone"))
    assert await outcomes(batches) == ALL[1:]
    assert await read_all(state.log) == ALL
    await state.log.close()


async def test_m3_a_takeover_fences_the_draining_ledger_as_well(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    async with cluster.client() as other:
        later = await open_log(cluster, other)
        found = await read_all(later)
        # Stored on all bookies, though the old owner never heard of it.
        assert found == ALL
        await append(later, [b"later"]).outcome
        late = append(state.log, [b"too late"])
        state.network.release()
        with pytest.raises(LogFencedError):
            await late.outcome
        for outcome in await asyncio.gather(
            *(batch.outcome for batch in batches), return_exceptions=True
        ):
            assert isinstance(outcome, Position | LogFencedError)  # in the log either way
        assert await read_all(later) == [*ALL, b"later"]
        listed = [ledger.ledger_id for ledger in later.ledgers]
        assert listed[:2] == [state.first.ledger_id, state.second.ledger_id]
        await later.close()
    with pytest.raises(LogFencedError):
        await append(state.log, [b"dead"]).outcome
    await state.log.close()


async def test_m4_nothing_is_written_again_before_the_failed_ledger_is_closed(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    network = FilteredNetwork()
    client = await opened.enter_async_context(cluster.client(network))
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    failed = log._appender.writer
    assert failed is not None
    answers: list[Frame] = []
    go_on = asyncio.Event()
    close = failed.close

    async def close_later(*, force: bool = False) -> object:
        await go_on.wait()
        return await close(force=force)

    failed.close = close_later  # type: ignore[method-assign, assignment]
    network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == failed.ledger_id
    batch = append(log, [b"two"])
    await asyncio.sleep(0)
    failed._fail(LedgerWriteError("two bookies are gone"))

    def note(port: int, frame: Frame) -> Frame:
        answers.append(frame)
        return frame

    network.filter = note
    await asyncio.sleep(0.1)  # for what should not happen
    assert [each for each in answers if each.ledger_id != failed.ledger_id] == []
    go_on.set()
    assert await outcomes([batch]) == [b"two"]
    assert await read_all(log) == [b"one", b"two"]
    await log.close()


async def test_m5_an_owner_whose_empty_ledger_was_deleted_is_never_told_that_it_appended(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    other = await opened.enter_async_context(cluster.client())
    first = await open_log(cluster, client)
    empty = first.ledgers[-1].ledger_id
    second = await open_log(cluster, other)
    assert [ledger_id async for ledger_id in other.manager.ledger_ids()] == [
        second.ledgers[-1].ledger_id
    ]
    assert empty not in [ledger.ledger_id for ledger in second.ledgers]
    with pytest.raises(LogFencedError):
        await append(first, [b"into nowhere"]).outcome
    assert await read_all(second) == []
    await first.close()
    await second.close()


async def test_m18_appends_that_race_with_changes_of_ledgers_and_close_have_one_outcome(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    log = await open_log(cluster, client, ROLLING)
    batches: list[Batch] = []

    async def appending() -> None:
        while True:
            batches.append(append(log, [b"%06d" % len(batches)]))
            await asyncio.sleep(0)

    task = asyncio.ensure_future(appending())
    for _ in range(5):
        await log.rotate()
    await log.close()
    task.cancel()
    appended: list[bytes] = []
    async with asyncio.timeout(30):
        for batch in batches:
            try:
                await batch.outcome
            except LogClosedError:
                continue
            appended.append(batch.payloads[0])
    assert appended == [b"%06d" % number for number in range(len(appended))], (
        "no gap before the end"
    )
    again = await open_log(cluster, client)
    assert await read_all(again) == appended
    await again.close()


class AwayStore:
    """A store that a test can make unavailable."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.is_away = False

    def __getattr__(self, name: str) -> object:
        if self.is_away:
            raise MetadataUnavailableError("the store is away")
        return getattr(self._inner, name)


async def test_appends_go_on_where_they_are_while_the_metadata_store_is_away(
    tmp_path: Path, opened: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation that is asked for when it is back does not wait for the next attempt."""
    monkeypatch.setattr(log_changes, "_RETRY_DELAY_S", 3600)
    stores: list[AwayStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(AwayStore(store))
        return stores[0]  # type: ignore[return-value]

    cluster = await opened.enter_async_context(cluster_of(3, tmp_path, wrap))
    client = await opened.enter_async_context(cluster.client())
    config = ROLLING.model_copy(update={"repair_timeout_s": 0.2, "unavailable_retry_s": 3600})
    log = await open_log(cluster, client, config)
    stores[0].is_away = True
    payloads = [b"%d" % number for number in range(20)]
    for payload in payloads:
        await append(log, [payload]).outcome
    with pytest.raises(LogUnavailableError, match="no new ledger"):
        await log.rotate()
    stores[0].is_away = False
    log._config = ROLLING  # what can be done has the usual time
    await log.rotate()
    assert len(log.ledgers) == 2
    assert await read_all(log) == payloads
    await log.close()


async def test_a_ledger_that_is_empty_is_not_followed_by_another(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    log = await open_log(cluster, client)
    before = log.ledgers
    await log.rotate()
    assert log.ledgers == before
    await log.close()
    with pytest.raises(LogClosedError, match="open it again"):
        await log.rotate()


async def test_a_rotation_that_the_close_cuts_short_says_so(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    state, batches = await rotating(cluster, opened)
    again = asyncio.ensure_future(state.log.rotate())  # waits for the one that is under way
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(state.log.close())
    with pytest.raises(LogClosedError):
        await again
    state.network.release()
    await closing
    assert await outcomes(batches) == ALL[1:]


async def test_a_next_ledger_that_was_sealed_before_it_was_listed_is_not_used(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    client = await opened.enter_async_context(cluster.client())
    other = await opened.enter_async_context(cluster.client())
    log = await open_log(cluster, client)
    await append(log, [b"one"]).outcome
    spare = await log._ledgers.take_spare()  # as by a rotation that could not list it
    await other.open_and_recover(spare.ledger_id)  # as by an orphan sweep
    await until(lambda: spare.has_failed, "it hears of it by its watch")
    await log.rotate()
    await append(log, [b"two"]).outcome
    assert spare.ledger_id not in [ledger.ledger_id for ledger in log.ledgers]
    assert await read_all(log) == [b"one", b"two"]
    await log.close()


async def test_bytes_that_wait_behind_the_draining_ledger_are_bounded(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    network = FilteredNetwork()
    client = await opened.enter_async_context(cluster.client(network))
    config = CONFIG.model_copy(update={"pending_bytes_max": 1 << 20})
    log = await open_log(cluster, client, config)
    await append(log, [b"before"]).outcome
    first = log.last_confirmed.ledger_id
    network.holds = lambda frame: frame.op == Op.ADD and frame.ledger_id == first
    batches = [append(log, [b"held"])]
    await log.rotate()
    size = 1 << 19
    state = Rotating(log, network)
    for _ in range(3):
        batches.append(append(log, [b"x" * size]))
        await state.wait_second_stored()
    with pytest.raises(LogUnavailableError, match="wait for the ledger before"):
        await append(log, [b"one too many"]).outcome
    assert log.pending_bytes >= 3 * size
    network.release()
    async with asyncio.timeout(30):
        await asyncio.gather(*(batch.outcome for batch in batches))
    assert log.pending_bytes == 0
    await log.close()


async def test_a_failing_caller_does_not_hold_up_those_behind_it_when_a_ledger_drains(
    cluster: Cluster, opened: AsyncExitStack
) -> None:
    class Broken(Batch):
        def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
            raise KeyError("a bug")

        def on_failed(self, error: LogError) -> None:
            raise KeyError("a bug")

    state, batches = await rotating(cluster, opened)
    bugs: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: bugs.append(context["exception"]))
    state.log.append(Broken([b"broken"]))
    behind = append(state.log, [b"behind"])
    await state.wait_second_stored()
    state.network.release()
    assert await outcomes([*batches, behind]) == [*ALL[1:], b"behind"]
    assert [type(bug) for bug in bugs] == [KeyError]
    await state.log.close()
