"""Turns of the event loop."""

import asyncio


async def settle() -> None:
    """Let everything that is ready run: callbacks, and tasks that wait for nothing."""
    for _ in range(10):
        # A turn of the loop, not a wait: nothing here depends on how long it takes.
        await asyncio.sleep(0)
