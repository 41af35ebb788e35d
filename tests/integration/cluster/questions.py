"""What tests ask a cluster over HTTP."""

import zlib

from tests.http_calls import call, follow
from tests.real_cluster import RealCluster


def owner_of(cluster: RealCluster, topic: str, *, asked: str) -> str:
    """The name of the broker that serves a topic, as `asked` says; chosen now if there is none."""
    path = topic.replace("://", "/")
    answer = follow(cluster.http_url(asked), "GET", f"/lookup/v2/topic/{path}").json
    (owner,) = [
        name
        for name in cluster.names
        if name.startswith("broker-") and cluster.url(name) == answer["brokerUrl"]
    ]
    return owner


def health(cluster: RealCluster, broker: str) -> tuple[int, str]:
    """Status code and status word of a broker."""
    answer = call(cluster.http_url(broker), "GET", "/health")
    return answer.status, answer.json["status"]


def unload_bundle_of(cluster: RealCluster, topic: str, owner: str, destination: str) -> None:
    """Move the bundle of a topic; the namespace has the four bundles that it begins with."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    lower = zlib.crc32(topic.encode()) >> 30 << 30
    upper = min(lower + (1 << 30), 0xFFFFFFFF)
    path = f"namespaces/{namespace}/0x{lower:08x}_0x{upper:08x}/unload"
    call(cluster.http_url(owner), "PUT", f"{path}?destinationBroker={destination}", expect=204)
