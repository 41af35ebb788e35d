"""What tests ask a cluster over HTTP."""

import json
import urllib.error
import urllib.request
import zlib
from typing import Any

from tests.real_cluster import RealCluster

_TIMEOUT_S = 30.0


def get(url: str) -> tuple[int, Any]:
    """Status and JSON body; an answer of 4xx or 5xx is one, too."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def owner_of(cluster: RealCluster, topic: str, *, asked: str) -> str:
    """The name of the broker that serves a topic, as `asked` says; chosen now if there is none."""
    path = topic.replace("://", "/")
    _, answer = get(f"{cluster.http_url(asked)}/lookup/v2/topic/{path}")
    (owner,) = [
        name
        for name in cluster.names
        if name.startswith("broker-") and cluster.url(name) == answer["brokerUrl"]
    ]
    return owner


def health(cluster: RealCluster, broker: str) -> tuple[int, str]:
    """Status code and status word of a broker."""
    code, answer = get(f"{cluster.http_url(broker)}/health")
    return code, answer["status"]


def unload_bundle_of(cluster: RealCluster, topic: str, owner: str, destination: str) -> None:
    """Move the bundle of a topic; the namespace has the four bundles that it begins with."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    lower = zlib.crc32(topic.encode()) >> 30 << 30
    upper = min(lower + (1 << 30), 0xFFFFFFFF)
    request = urllib.request.Request(
        f"{cluster.http_url(owner)}/admin/v2/namespaces/{namespace}/0x{lower:08x}_0x{upper:08x}"
        f"/unload?destinationBroker={destination}",
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        assert answer.status == 204, answer.status
