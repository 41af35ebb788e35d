"""The thread below the blocking client: who waits when it ends."""

import asyncio
import threading

import pytest

from magnetar.sdk.blocking import Client, _LoopThread
from magnetar.sdk.errors import AlreadyClosedError


def test_a_call_that_waits_ends_with_the_thread() -> None:
    thread = _LoopThread()
    began = threading.Event()
    outcomes: list[BaseException] = []

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            thread.call(wait)
        except BaseException as error:  # noqa: BLE001  # Whatever it is, it is looked at below.
            outcomes.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert began.wait(10)
    thread.stop()
    caller.join(10)
    assert [type(each) for each in outcomes] == [AlreadyClosedError]
    with pytest.raises(AlreadyClosedError):
        thread.call(lambda: None)
    thread.stop()


def test_close_in_a_callback_is_refused_and_the_client_goes_on() -> None:
    client = Client("pulsar://127.0.0.1:1")
    with pytest.raises(AlreadyClosedError, match="from another thread"):
        client._thread.call(client.close)
    assert client._thread.call(lambda: 1) == 1
    client.close()
    client.close()
