"""Commands that manage a cluster: admin lookup, brokers, namespaces, topics, recovery, bookies.

They use the HTTP interface of any broker; recovery and bookies use the metadata store. Tables are
for people, `--json` is for programs. A command that interrupts clients asks first, unless `--yes`
is given.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    JsonOption,
    NamespaceArgument,
    TopicArgument,
    UrlOption,
    YesOption,
    broker_client,
    confirm,
    path_of_namespace,
    path_of_topic,
)
from magnetar.deploy.cli_policies import PolicyGroup, TopicPolicyGroup
from magnetar.deploy.cli_resources import add_resources
from magnetar.deploy.cli_scalable import scalable_topics
from magnetar.deploy.cli_schemas import schemas
from magnetar.deploy.cli_storage import bookies, recovery
from magnetar.deploy.cli_tenants import add_to, tenants
from magnetar.deploy.cli_tokens import tokens
from magnetar.deploy.cli_topics import add_commands
from magnetar.deploy.cli_transactions import transactions
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.printing import print_json, print_pairs, say

if TYPE_CHECKING:
    from magnetar.deploy.admin_client import AdminClient

admin = typer.Typer(
    no_args_is_help=True, help="Manage brokers, namespaces, topics and re-replication."
)
brokers = typer.Typer(no_args_is_help=True, help="List and manage brokers.")
namespaces = typer.Typer(
    cls=PolicyGroup,
    no_args_is_help=True,
    help="Manage namespaces, their policies and bundles.",
)
add_to(namespaces)
topic_policies = typer.Typer(
    cls=TopicPolicyGroup, no_args_is_help=True, help="Manage the policies of single topics."
)
topics = typer.Typer(no_args_is_help=True, help="Manage topics.")
admin.add_typer(brokers, name="brokers")
admin.add_typer(tenants, name="tenants")
admin.add_typer(namespaces, name="namespaces")
admin.add_typer(topic_policies, name="topicPolicies")
add_commands(topics)
admin.add_typer(topics, name="topics")
add_resources(admin, brokers=brokers, namespaces=namespaces, topics=topics)
admin.add_typer(scalable_topics, name="scalable-topics")
admin.add_typer(schemas, name="schemas")
admin.add_typer(transactions, name="transactions")
admin.add_typer(recovery, name="recovery")
admin.add_typer(bookies, name="bookies")
admin.add_typer(tokens, name="tokens")

BundleOption = Annotated[
    str,
    typer.Option("--bundle", metavar="RANGE", help="Only this bundle, as 0x00000000_0x40000000."),
]


@admin.command()
def lookup(
    topic: TopicArgument,
    listener: Annotated[
        str,
        typer.Option(
            "--listener", help="Name of the advertised listener; default: the broker's own address."
        ),
    ] = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print the broker that serves a topic. If none does, assign one; the topic is not created."""
    from magnetar.deploy import admin_client

    path = f"/lookup/v2/topic/{admin_client.topic_path(admin_client.topic_argument(topic))}"
    query = {"listenerName": listener} if listener else {}
    client = broker_client(url)
    found = client.get(path, query)
    bundle = client.get(f"{path}/bundle")
    if as_json:
        print_json({**found, "bundle": bundle})
    else:
        print_pairs({"broker": found["brokerUrl"], "http": found["httpUrl"], "bundle": bundle})


@brokers.command("list")
def list_brokers(as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the registered brokers with their last reported load."""
    found = broker_client(url).get("/magnetar/v1/brokers")
    if as_json:
        print_json(found)
        return
    _print_table(
        ("broker", "address", "bundles", "topics", "connections", "cpu %", "role"),
        (
            (
                each["name"],
                each["native_url"],
                *_load_columns(each["load"]),
                ", ".join(_roles(each)),
            )
            for each in found
        ),
    )


def _load_columns(load: dict[str, Any] | None) -> tuple[str, str, str, str]:
    if load is None:
        return ("?", "?", "?", "?")
    return (
        str(len(load["bundles"])),
        str(load["topics"]),
        str(load["connections"]),
        f"{load['cpu_percent']:.1f}",
    )


def _roles(broker: dict[str, Any]) -> Iterable[str]:
    if broker["is_leader"]:
        yield "leader"
    if broker["draining"]:
        yield "draining"


@brokers.command()
def leader(as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the leader, which assigns bundles to brokers."""
    found = broker_client(url).get("/admin/v2/brokers/leaderBroker")
    if as_json:
        print_json(found)
    else:
        print_pairs({"leader": found["brokerId"], "http": found["serviceUrl"]})


@namespaces.command()
def bundles(
    namespace: NamespaceArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Print the bundles of a namespace with their owners and load."""
    from magnetar.deploy import admin_client

    path = f"/magnetar/v1/namespaces/{admin_client.namespace_argument(namespace)}/bundles"
    found = broker_client(url).get(path)
    if as_json:
        print_json(found)
        return
    _print_table(
        ("bundle", "broker", "topics", "producers", "consumers", "msg/s in", "msg/s out"),
        ((each["bundle"], each["broker"] or "-", *_bundle_columns(each["load"])) for each in found),
    )


def _bundle_columns(load: dict[str, Any] | None) -> tuple[str, ...]:
    if load is None:
        return ("", "", "", "", "")
    return (
        str(load["topics"]),
        str(load["producers"]),
        str(load["consumers"]),
        f"{load['msg_rate_in']:.0f}",
        f"{load['msg_rate_out']:.0f}",
    )


@namespaces.command("unload")
def unload_namespace(
    namespace: NamespaceArgument,
    bundle: BundleOption = "",
    destination: Annotated[
        str,
        typer.Option("--destination", help="Broker that takes the bundle; default: any."),
    ] = "",
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Unload all bundles of a namespace, or one. Clients reconnect to the new owner."""
    path = path_of_namespace(namespace)
    if destination and not bundle:
        raise SettingsError("--destination needs --bundle: it moves a single bundle")
    what = f"bundle {bundle} of {namespace}" if bundle else f"every bundle of {namespace}"
    confirm(f"Unload {what}? Its clients are interrupted for a moment.", yes=yes)
    query = {"destinationBroker": destination} if destination else {}
    broker_client(url).put(f"{path}/{bundle}/unload" if bundle else f"{path}/unload", query)


@namespaces.command("split-bundle")
def split_bundle(
    namespace: NamespaceArgument,
    bundle: BundleOption,
    algorithm: Annotated[
        str,
        typer.Option(
            "--by",
            help="range: equal hash ranges; topics: equal numbers of topics; load: equal load.",
        ),
    ] = "range",
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="HASH", help="Split at this hash instead; may be repeated."),
    ] = None,
    unload: Annotated[
        bool,
        typer.Option(
            "--unload", help="Unload the parts afterwards, so that other brokers can take them."
        ),
    ] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Split a bundle. Clients are interrupted only with --unload."""
    algorithms = {
        "range": "range_equally_divide",
        "topics": "topic_count_equally_divide",
        "load": "flow_or_qps_equally_divide",
    }
    if algorithm not in algorithms:
        raise SettingsError(f"bad --by {algorithm!r}: give range, topics or load")
    path = f"{path_of_namespace(namespace)}/{bundle}/split"
    question = f"Split bundle {bundle} of {namespace}? Bundles are never merged again."
    if unload:
        question += " Its clients are interrupted for a moment."
    confirm(question, yes=yes)
    query = {
        "splitAlgorithmName": algorithms[algorithm],
        "unload": "true" if unload else "false",
    }
    points = [_hash(each) for each in at or ()]
    broker_client(url).put(path, query, points or None)


def _hash(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError as error:
        raise SettingsError(f"bad --at {text!r}: give a hash, as 0x20000000") from error


@topics.command("list")
def list_topics(
    namespace: NamespaceArgument,
    bundle: BundleOption = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print the topics of a namespace, or of one of its bundles."""
    from magnetar.deploy import admin_client

    path = f"/admin/v2/persistent/{admin_client.namespace_argument(namespace)}"
    found = broker_client(url).get(path, {"bundle": bundle} if bundle else {})
    if as_json:
        print_json(found)
    else:
        for name in found:
            say(name)


@topics.command("stats")
def topic_stats(
    topic: TopicArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Print the statistics of a topic, why a subscription delivers nothing, and why a cluster gets
    no copies."""
    client = broker_client(url)
    found = client.get(f"{path_of_topic(topic)}/stats")
    if as_json:
        print_json(found)
        return
    print_pairs(
        {
            "broker": found["ownerBroker"],
            "messages in": f"{found['msgInCounter']} since it was loaded",
            "messages out": f"{found['msgOutCounter']} since it was loaded",
            "entries stored": _stored_entries(client, topic),
            "storage bytes": str(found["storageSize"]),
            "producers": str(len(found["publishers"])),
        }
    )
    _print_table(
        ("subscription", "type", "consumers", "entries", "messages", "unacked", "delivers"),
        (
            (
                subscription,
                each["type"],
                str(len(each["consumers"])),
                str(each["msgBacklog"]),
                _messages_of(each),
                str(each["unackedMessages"]),
                f"no: {each['whyIdleText']}" if each["whyIdle"] else "yes",
            )
            for subscription, each in found["subscriptions"].items()
        ),
    )
    _print_clients(found)
    if found["replication"]:
        _print_table(
            ("copied to", "connected", "backlog", "delay s", "copies"),
            (
                (
                    cluster,
                    "yes" if each["connected"] else "no",
                    str(each["replicationBacklog"]),
                    str(each["replicationDelayInSeconds"]),
                    f"no: {each['problem']}" if each.get("problem") else "yes",
                )
                for cluster, each in found["replication"].items()
            ),
        )


def _stored_entries(client: "AdminClient", topic: str) -> str:
    """Return the number of entries that the topic keeps, acknowledged ones included. A batch is one
    entry."""
    if topic.startswith("non-persistent:"):
        return "none: the topic keeps nothing"
    return str(client.get(f"{path_of_topic(topic)}/internalStats")["numberOfEntries"])


def _print_clients(stats: Mapping[str, Any]) -> None:
    """Print the consumers and producers of a topic, by the names that disconnecting them takes."""
    consumers = [
        (
            str(each["consumerName"]),
            subscription,
            str(each["unackedMessages"]),
            f"{each['messageAckRate']:.1f}",
            _first_held(each),
            str(each["address"]),
        )
        for subscription, found in stats["subscriptions"].items()
        for each in found["consumers"]
    ]
    if consumers:
        titles = ("consumer", "subscription", "unacked", "acked/s", "first held", "address")
        _print_table(titles, consumers)
    if stats["publishers"]:
        _print_table(
            ("producer", "msg/s in", "address"),
            (
                (each["producerName"], f"{each['msgRateIn']:.1f}", str(each["address"]))
                for each in stats["publishers"]
            ),
        )


def _first_held(consumer: Mapping[str, Any]) -> str:
    """Return the first entry that a consumer has not acknowledged, if the broker reports it."""
    held = consumer.get("firstHeld")
    return f"{held['messageId']} for at least {held['seconds']} s" if held else "-"


def _messages_of(subscription: Mapping[str, Any]) -> str:
    """Return the messages in a backlog: the exact number where entries have an index, else an
    estimate."""
    exact = int(subscription.get("backlogMessages", -1))
    if exact >= 0:
        return str(exact)
    about = int(subscription.get("backlogMessagesEstimate", -1))
    return "?" if about < 0 else f"about {about}"


@topics.command("compact")
def compact_topic(topic: TopicArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Start a compaction: readers of the compacted view get the newest message of each key."""
    broker_client(url).put(f"{path_of_topic(topic)}/compaction")


@topics.command("compaction-status")
def compaction_status(
    topic: TopicArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Print the state of the last compaction."""
    found = broker_client(url).get(f"{path_of_topic(topic)}/compaction")
    if as_json:
        print_json(found)
    else:
        print_pairs({"status": found["status"], "last error": found["lastError"] or "-"})


@topics.command("unload")
def unload_topic(
    topic: TopicArgument, yes: YesOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Unload a topic. It is loaded again when a client looks it up."""
    from magnetar.deploy import admin_client

    name = admin_client.topic_argument(topic)
    confirm(f"Unload {name}? Its clients are interrupted for a moment.", yes=yes)
    broker_client(url).put(f"/admin/v2/{admin_client.topic_path(name)}/unload")


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*row)
    # In a pipe, lines are never wrapped: the reader may cut them by columns.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 1_000).print(table)


@topic_policies.command("remove-all")
def remove_topic_policies(topic: TopicArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Remove all policies that a topic has of its own."""
    broker_client(url).change("DELETE", f"{path_of_topic(topic)}/policies")
