"""A transaction, without a broker: what it waits for, and what it cannot be committed with."""

import asyncio

import pytest

from magnetar.sdk.errors import (
    OperationTimeoutError,
    SendTimeoutError,
    TransactionEndedError,
)
from magnetar.sdk.transaction import Transaction, TransactionCoordinators, TransactionState


class Recorder(TransactionCoordinators):
    """A coordinator that notes how transactions end."""

    def __init__(self) -> None:
        self.commits: list[bool] = []

    async def begin(self, timeout_ms: int) -> tuple[int, int]:
        return 0, 7

    async def end(self, most: int, least: int, *, commits: bool) -> None:
        self.commits.append(commits)


async def test_what_was_cancelled_half_way_cannot_be_committed() -> None:
    coordinators = Recorder()
    transaction = await Transaction(coordinators, 1_000).begin()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def acknowledge() -> None:
        await never

    work = transaction.start(acknowledge())
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(TransactionEndedError, match="cancelled"):
        await transaction.commit()
    assert coordinators.commits == [False]
    assert transaction.state is TransactionState.ABORTED


@pytest.mark.parametrize("error", [ValueError("too low"), TypeError("no text")])
async def test_any_error_of_an_operation_blocks_the_commit(error: Exception) -> None:
    coordinators = Recorder()
    transaction = await Transaction(coordinators, 1_000).begin()

    async def send() -> None:
        raise error

    await asyncio.gather(transaction.start(send()), return_exceptions=True)
    with pytest.raises(TransactionEndedError, match=str(error)):
        await transaction.commit()
    assert coordinators.commits == [False]


async def test_a_commit_says_why_it_was_refused_also_if_the_abort_fails() -> None:
    class Silent(Recorder):
        async def end(self, most: int, least: int, *, commits: bool) -> None:
            await super().end(most, least, commits=commits)
            raise OperationTimeoutError("no answer")

    async def send() -> None:
        raise SendTimeoutError("no receipt")

    coordinators = Silent()
    transaction = await Transaction(coordinators, 1_000).begin()
    await asyncio.gather(transaction.start(send()), return_exceptions=True)
    with pytest.raises(TransactionEndedError, match="no receipt"):
        await transaction.commit()
    assert coordinators.commits == [False]
    assert transaction.state is TransactionState.ABORTED


async def test_a_transaction_that_is_aborted_while_its_commit_waits_is_not_committed() -> None:
    coordinators = Recorder()
    transaction = await Transaction(coordinators, 1_000).begin()
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send() -> None:
        await sent

    transaction.start(send())
    ends = [asyncio.create_task(transaction.commit()), asyncio.create_task(transaction.abort())]
    await asyncio.sleep(0)
    sent.set_result(None)
    results = await asyncio.gather(*ends, return_exceptions=True)
    assert [type(each) for each in results] == [TransactionEndedError, type(None)]
    assert coordinators.commits == [False]
    assert transaction.state is TransactionState.ABORTED
