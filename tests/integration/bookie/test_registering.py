"""A bookie and its registration, as its session comes and goes."""

import asyncio
import errno
import os

import pytest

from magnetar.bookie.errors import (
    CookieError,
)
from magnetar.ledger.metadata.store import SessionCallback, SessionState, Watch
from magnetar.ledger.registration import BookieRegistry
from tests.integration.bookie.bookie_machine import BookieMachine


@pytest.fixture
def session_callbacks(
    machine: BookieMachine, monkeypatch: pytest.MonkeyPatch
) -> list[SessionCallback]:
    """Callbacks that are told how the store's session does."""
    callbacks: list[SessionCallback] = []
    subscribe = machine.store.on_session_change

    def remember(callback: SessionCallback) -> Watch:
        callbacks.append(callback)
        return subscribe(callback)

    monkeypatch.setattr(machine.store, "on_session_change", remember)
    return callbacks


async def test_a_bookie_is_registered_while_it_runs(machine: BookieMachine) -> None:
    registry = BookieRegistry(machine.store)
    async with machine.bookie() as (bookie, _):
        await registry.start()
        info = registry.resolve("b1")
        assert info is not None
        assert (info.host, info.port, info.readonly) == ("127.0.0.1", bookie.port, False)
        await registry.close()
    await registry.start()
    assert registry.resolve("b1") is None
    await registry.close()


async def test_a_bookie_registers_again_when_its_session_was_lost(
    machine: BookieMachine, session_callbacks: list[SessionCallback]
) -> None:
    registry = BookieRegistry(machine.store)
    changed = asyncio.Event()
    registry.on_change(changed.set)
    async with machine.bookie():
        (tell,) = session_callbacks
        await registry.start()
        tell(SessionState.EXPIRED)
        await registry.unregister("b1")
        tell(SessionState.SUSPENDED)
        tell(SessionState.CONNECTED)
        while registry.resolve("b1") is None:
            changed.clear()
            await changed.wait()
        await registry.close()


async def test_a_bookie_that_lost_its_identity_with_its_session_gives_up(
    machine: BookieMachine, session_callbacks: list[SessionCallback]
) -> None:
    async with machine.bookie() as (_, client):
        (tell,) = session_callbacks
        await machine.store.delete("/ledgers/cookies/b1")
        tell(SessionState.EXPIRED)
        tell(SessionState.CONNECTED)
        await client.wait_closed()
        assert [type(error) for error in machine.fatal] == [CookieError]


async def test_a_bookie_whose_disk_is_out_of_order_for_a_moment_registers_later(
    machine: BookieMachine,
    session_callbacks: list[SessionCallback],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_file = machine.disk.read_file
    failures: list[str] = []

    def fail_once(path: str) -> bytes:
        if failures:
            return read_file(path)
        failures.append(path)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    registry = BookieRegistry(machine.store)
    changed = asyncio.Event()
    registry.on_change(changed.set)
    async with machine.bookie():
        (tell,) = session_callbacks
        await registry.start()
        await registry.unregister("b1")
        monkeypatch.setattr(machine.disk, "read_file", fail_once)
        tell(SessionState.EXPIRED)
        tell(SessionState.CONNECTED)
        async with asyncio.timeout(30):
            while registry.resolve("b1") is None or not failures:
                changed.clear()
                await changed.wait()
        await registry.close()
