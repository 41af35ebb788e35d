"""Names of topics over HTTP: which there are, wherever they are served."""

import json
from collections.abc import Mapping, Sequence

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.http.context import HttpContext
from magnetar.broker.policies.records import asked
from magnetar.broker.topic.topic_properties import as_told
from magnetar.ledger.errors import LedgerError, NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.sdk.wire import parse_topic_name


def without_system(names: Sequence[str], *, keeps: bool) -> list[str]:
    """The names, without those of the cluster's own topics unless they are kept."""
    return [name for name in names if keeps or not naming.is_system_topic(name)]


def has_properties(properties: Mapping[str, str], wanted: str) -> bool:
    """Whether all of `wanted` are there, given as key=value with commas between."""
    pairs = (each.partition("=") for each in wanted.split(",") if each)
    return all(properties.get(key) == value for key, _, value in pairs)


async def non_persistent_here(context: HttpContext, bundle: BundleId) -> list[str]:
    """Names of the non-persistent topics of a bundle that this broker has.

    Raises:
        RequestError
    """
    names = await context.topics.non_persistent_names(bundle.namespace)
    return [name for name in names if bundle.holds(parse_topic_name(name))]


async def non_persistent_names(context: HttpContext, namespace: str) -> list[str]:
    """Names of the non-persistent topics of a namespace, at whichever brokers they are, sorted.

    They are known to their owners alone: each is asked for its bundles. What a broker has that does
    not answer is left out: its topics are about to be gone.

    Raises:
        RequestError
    """
    brokers = {each.record.name: each for each in context.admin.brokers()}
    found = set(await context.topics.non_persistent_names(namespace))
    if len(brokers) > 1:
        for bundle in (await context.admin.layouts.layout_of(namespace)).bundles:
            owner = brokers.get(await context.admin.find_owner(BundleId(namespace, bundle)) or "")
            if owner is not None and not owner.is_self:
                path = f"/admin/v2/non-persistent/{namespace}/{bundle.name}"
                found.update(await _asked(context, owner.record.http_url, path))
    return sorted(found)


async def _asked(context: HttpContext, http_url: str, path: str) -> list[str]:
    try:
        answer = await context.admin.ask(http_url, "GET", path)
    except BrokerMetadataError:
        return []
    return [str(name) for name in json.loads(answer.body)] if answer.is_success else []


async def properties_of(context: HttpContext, full_name: str) -> Mapping[str, str]:
    """What was written down about a topic; of a partition, about its topic.

    Raises:
        RequestError
    """
    name = parse_topic_name(full_name)
    record = await context.topics.partitioned.find(name.partitioned)
    if record is not None:
        return record.properties
    path = naming.log_path(name)
    try:
        node = await asked(context.store.get(path), f"read {path}")
    except NoNodeError:
        return {}
    try:
        return as_told(LogMetadata.from_json(node.value, path=path).properties)
    except LedgerError as error:
        raise BrokerMetadataError(f"{full_name}: its record cannot be read: {error}") from error
