"""Asks brokers, as a client does, who owns a topic."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.wire_client import WireClient

Address = tuple[str, int]

_ANSWER_TIMEOUT_S = 3.0
_REDIRECTS_MAX = 5


class NoOwnerError(Exception):
    """None of the brokers could say who owns the topic."""


async def owner_of(topic: str, brokers: Mapping[Address, str]) -> Address:
    """Where clients are sent to for the topic; asking makes a broker own it.

    Args:
        brokers: those who may be asked, by address, and their names.

    Raises:
        NoOwnerError
    """
    reasons: list[str] = []
    for address, name in brokers.items():
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await _follow(topic, address)
        except (OSError, TimeoutError, NoOwnerError, AssertionError) as error:
            reasons.append(f"{name}: {type(error).__name__} {error}")
    raise NoOwnerError(f"{topic}: {'; '.join(reasons)}")


async def _follow(topic: str, address: Address) -> Address:
    is_authoritative = False
    for _ in range(_REDIRECTS_MAX):
        client = await WireClient.open(address[1], host=address[0])
        try:
            client.send(
                BaseCommand.LOOKUP,
                lookupTopic=pb.CommandLookupTopic(
                    topic=topic, request_id=client.request_id(), authoritative=is_authoritative
                ),
            )
            answer = (await client.next(BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse
        finally:
            await client.close()
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise NoOwnerError(f"{answer.error} {answer.message}")
        url = urlsplit(answer.brokerServiceUrl)
        address = (url.hostname or "", url.port or 0)
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            return address
        is_authoritative = answer.authoritative
    raise NoOwnerError(f"more than {_REDIRECTS_MAX} redirects")
