"""Two standalone clusters, east and west, whose topics are copied both ways."""

import pulsar

from tests.http_calls import admin, call, topic_path
from tests.standalone import Standalone
from tests.waiting import wait_until

NAMESPACE = "public/both"


def settings_of(cluster: str) -> dict[str, str]:
    return {
        "CLUSTER_NAME": cluster,
        "REPLICATION_RETRY_S_MAX": "0.5",
        "LEDGER_ENTRIES_MAX": "50",
        "LEDGER_AGE_MIN_S": "0",
    }


def introduce(here: Standalone, other: Standalone, name: str) -> None:
    """Tell a cluster where another one is."""
    data = {"brokerServiceUrl": other.url, "serviceUrl": other.http_url}
    call(here, "PUT", f"/admin/v2/clusters/{name}", data, expect=200)


def connect_both(east: Standalone, west: Standalone) -> None:
    """Have all topics of the namespace copied both ways."""
    introduce(east, west, "west")
    introduce(west, east, "east")
    for each in (east, west):
        call(
            each,
            "POST",
            "/admin/v2/tenants/public",
            {"allowedClusters": ["east", "west"], "adminRoles": []},
            expect=204,
        )
        call(each, "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {}, expect=204)
        clusters = ["east", "west"]
        call(each, "POST", f"/admin/v2/namespaces/{NAMESPACE}/replication", clusters, expect=204)


def replication(server: Standalone, topic: str) -> dict[str, dict[str, object]]:
    found = admin(server, "GET", f"{topic_path(topic)}/stats")["replication"]
    assert isinstance(found, dict)
    return found


def open_topic(
    client: pulsar.Client, server: Standalone, topic: str, *others: str
) -> pulsar.Producer:
    """A producer of a topic whose replicators are at work."""
    producer = client.create_producer(topic)
    wait_until(lambda: all(replication(server, topic).get(each) for each in others))
    return producer
