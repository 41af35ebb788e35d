"""A start is tried again when the metadata store goes away meanwhile, and leaves nothing behind."""

from contextlib import AsyncExitStack
from typing import cast

import pytest

from magnetar.deploy.starting import STARTS_MAX, start_on
from magnetar.ledger.errors import (
    LedgerError,
    MetadataAccessError,
    MetadataUnavailableError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore


class Store:
    """A metadata store, as far as a start closes it."""

    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


class Starts:
    """Starts that fail by the errors given, and then succeed."""

    def __init__(self, *errors: LedgerError) -> None:
        self.errors = list(errors)
        self.stores: list[Store] = []
        self.closed = 0
        """What failed starts had opened, and is closed."""

    async def open(self) -> MetadataStore:
        self.stores.append(Store())
        return cast(MetadataStore, self.stores[-1])

    async def start(self, store: MetadataStore, opened: AsyncExitStack) -> None:
        assert cast(Store, store) is self.stores[-1]
        opened.callback(self._close)
        if self.errors:
            raise self.errors.pop(0)

    def _close(self) -> None:
        assert not self.stores[-1].is_closed, "closed before what stands on it"
        self.closed += 1


@pytest.mark.parametrize(
    "error", [MetadataUnavailableError, SessionExpiredError, UnknownOutcomeError]
)
async def test_a_start_that_the_store_leaves_alone_is_tried_again_on_a_new_session(
    error: type[LedgerError],
) -> None:
    starts = Starts(error("gone"), error("gone"))
    async with await start_on(starts.open, starts.start):
        assert [each.is_closed for each in starts.stores] == [True, True, False]
        assert starts.closed == 2
    assert starts.stores[-1].is_closed
    assert starts.closed == 3


async def test_a_store_that_goes_away_in_each_start_ends_them() -> None:
    starts = Starts(*(MetadataUnavailableError(f"start {at}") for at in range(STARTS_MAX)))
    with pytest.raises(MetadataUnavailableError, match=f"start {STARTS_MAX - 1}"):
        await start_on(starts.open, starts.start)
    assert len(starts.stores) == starts.closed == STARTS_MAX
    assert all(each.is_closed for each in starts.stores)


async def test_what_does_not_pass_by_itself_ends_a_start_at_once() -> None:
    starts = Starts(MetadataAccessError("not yours"))
    with pytest.raises(MetadataAccessError):
        await start_on(starts.open, starts.start)
    assert len(starts.stores) == 1
    assert starts.stores[0].is_closed


async def test_a_store_that_cannot_be_opened_is_waited_for_by_whoever_opens_it() -> None:
    opens = 0

    async def open_none() -> MetadataStore:
        nonlocal opens
        opens += 1
        raise MetadataUnavailableError("nobody answers")

    with pytest.raises(MetadataUnavailableError):
        await start_on(open_none, Starts().start)
    assert opens == 1
