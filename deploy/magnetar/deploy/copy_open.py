"""Copies all ledgers of topics, open ones included, to the object store, by requests to brokers.

A topic is unloaded, which closes its open ledgers, and is then offloaded up to its end. Messages
published meanwhile go into a new ledger, which the copy does not wait for.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from magnetar.broker.features.backup.on_each import on_each
from magnetar.deploy.admin_client import AdminClient, topic_path
from magnetar.deploy.errors import BrokerUnreachableError, DeployError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_TOPICS_AT_ONCE = 4
_LOOK_S = 0.2
_END = {"ledgerId": (1 << 62), "entryId": 0, "partitionIndex": -1}
"""Position after every message that a topic can have."""


class OpenLedgers:
    """Copies the ledgers of topics by requests to brokers."""

    def __init__(self, admin_url: str, *, wait_s: float, clock: Clock) -> None:
        """Make a copier; `wait_s` is the time limit for each topic."""
        self._admin_url = admin_url
        self._wait_s = wait_s
        self._clock = clock

    async def copy(self, topics: Sequence[TopicName]) -> None:
        """Copy the topics; return when all ledgers that they had are in the object store.

        Raises:
            DeployError: a ledger was not copied, or not in time.
            BrokerUnreachableError: no broker answered, or it refused.
        """
        await on_each(topics, self._copy, at_once=_TOPICS_AT_ONCE)

    async def _copy(self, topic: TopicName) -> None:
        until_s = self._clock.monotonic_s() + self._wait_s
        path = f"/admin/v2/{topic_path(topic)}"
        await self._ask("PUT", f"{path}/unload", None)
        await self._ended(topic, path, until_s)  # another offload may be under way
        await self._ask("PUT", f"{path}/offload", _END)
        status = await self._ended(topic, path, until_s)
        if status["status"] != "SUCCESS":
            raise DeployError(
                f"{topic} was not copied to the object store: {status['lastError']}; no backup was "
                "begun"
            )

    async def _ended(self, topic: TopicName, path: str, until_s: float) -> dict[str, Any]:
        while True:
            status: dict[str, Any] = await self._ask("GET", f"{path}/offload", None)
            if status["status"] != "RUNNING":
                return status
            if self._clock.monotonic_s() > until_s:
                raise DeployError(
                    f"{topic} is not in the object store after {self._wait_s:g} s, and is still "
                    "being copied; no backup was begun: raise --wait-s"
                )
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, method: str, path: str, body: object | None) -> Any:
        client = AdminClient(self._admin_url)  # one for each request: they run in threads
        try:
            return await asyncio.to_thread(client.ask, method, path, None, body)
        except BrokerUnreachableError as error:
            error.args = (f"{error}; no backup was begun",)
            raise
