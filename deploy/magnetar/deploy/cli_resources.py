"""Table of the `magnetar admin` requests for clusters, brokers, namespaces, topics, subscriptions.

Names are those of Pulsar's tool, except that subscriptions have a group of their own.
"""

from collections.abc import Mapping
from typing import Any

import typer

from magnetar.deploy.cli_requests import Command, Option, add
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.quantities import parse_message_id

_A = "/admin/v2"
_CLUSTER = f"{_A}/clusters/{{cluster}}"
_BROKERS = f"{_A}/brokers"
_NAMESPACE = f"{_A}/namespaces/{{namespace}}"
_TOPIC = f"{_A}/{{topic}}"
_SUBSCRIPTION = f"{_TOPIC}/subscription/{{subscription}}"

_CLUSTER_DATA = (
    Option(
        "service-url",
        "HTTP address of its brokers, as http://host:port.",
        field="serviceUrl",
        also="url",
    ),
    Option(
        "broker-url", "Address of its brokers, as pulsar://host:port.", field="brokerServiceUrl"
    ),
    Option("url-secure", "Its HTTP address over TLS, as https://host:port.", field="serviceUrlTls"),
    Option(
        "broker-url-secure",
        "Address of its brokers over TLS, as pulsar+ssl://host:port.",
        field="brokerServiceUrlTls",
    ),
    Option(
        "tls-enable",
        "Whether brokers copy topics there over TLS.",
        "switch",
        field="brokerClientTlsEnabled",
    ),
    Option(
        "tls-allow-insecure",
        "Whether they do not check the name in the other side's certificate.",
        "switch",
        field="tlsAllowInsecureConnection",
    ),
    Option(
        "tls-trust-certs-filepath",
        "PEM file of the authorities that they trust, on each broker here.",
        field="brokerClientTrustCertsFilePath",
    ),
    Option(
        "tls-certs-filepath",
        "PEM file of their certificate, for mutual TLS.",
        field="brokerClientCertificateFilePath",
    ),
    Option("tls-key-filepath", "PEM file of its private key.", field="brokerClientKeyFilePath"),
    Option(
        "auth-plugin",
        "How they prove who they are: `token`, or Pulsar's name of that class.",
        field="authenticationPlugin",
    ),
    Option(
        "auth-parameters",
        "Their token: file:///PATH or env:NAME, read on each broker; or token:VALUE.",
        field="authenticationParameters",
    ),
    Option("listener-name", "Name of the listener whose addresses they use.", field="listenerName"),
    Option(
        "peers",
        "Names of peer clusters, separated by commas.",
        "names",
        field="peerClusterNames",
        also="peer-clusters",
    ),
)
_ACTIONS = Option(
    "actions",
    "Separated by commas: produce, consume, functions, sources, sinks, packages.",
    "names",
    field=".",
    is_required=True,
)
_PROPERTIES = Option("property", "key=value; may be repeated.", "pairs", field=".")
_FORCE = Option(
    "force", "Delete a subscription in use: disconnect its consumers.", "flag", query="force"
)


def _lines(command: tuple[str, str, str]) -> Command:
    """Make a command that prints the answer to a GET."""
    name, help_text, path = command
    return Command(name, help_text, "GET", path, shows=True)


CLUSTERS = (
    _lines(("list", "Print the names of all clusters.", f"{_A}/clusters")),
    _lines(("get", "Print a cluster.", _CLUSTER)),
    Command("create", "Register a cluster.", "PUT", _CLUSTER, _CLUSTER_DATA),
    Command(
        "update",
        "Update a cluster. Options that are not given keep their values.",
        "POST",
        _CLUSTER,
        _CLUSTER_DATA,
        merges=True,
    ),
    Command(
        "delete",
        "Delete a cluster from the list.",
        "DELETE",
        _CLUSTER,
        asks="Delete cluster {cluster} from the list?",
    ),
    _lines(("get-peer-clusters", "Print the peers of a cluster.", f"{_CLUSTER}/peers")),
    Command(
        "update-peer-clusters",
        "Set the peers of a cluster.",
        "POST",
        f"{_CLUSTER}/peers",
        (Option("peers", "Separated by commas.", "names", field=".", is_required=True),),
    ),
    _lines(("list-failure-domains", "Print the failure domains.", f"{_CLUSTER}/failureDomains")),
    Command(
        "create-failure-domain",
        "Create or replace a failure domain.",
        "POST",
        f"{_CLUSTER}/failureDomains/{{domain}}",
        (Option("brokers", "Separated by commas.", "names", field="brokers", is_required=True),),
    ),
    Command(
        "delete-failure-domain",
        "Remove a failure domain.",
        "DELETE",
        f"{_CLUSTER}/failureDomains/{{domain}}",
        asks="Remove failure domain {domain}?",
    ),
)

BROKERS = (
    _lines(("version", "Print the version of the broker at --admin-url.", f"{_BROKERS}/version")),
    Command(
        "healthcheck",
        "Print `ok` if a broker serves clients.",
        "GET",
        f"{_BROKERS}/health",
        (
            Option(
                "broker", "Id of the broker; default: the broker at --admin-url.", query="brokerId"
            ),
        ),
        shows=True,
    ),
    _lines(
        (
            "namespaces",
            "Print the bundles that a broker owns.",
            f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
        )
    ),
    _lines(
        (
            "list-dynamic-config",
            "Print the names of dynamic settings.",
            f"{_BROKERS}/configuration",
        )
    ),
    _lines(
        (
            "get-all-dynamic-config",
            "Print the dynamic settings that have a value.",
            f"{_BROKERS}/configuration/values",
        )
    ),
    Command(
        "update-dynamic-config",
        "Change a dynamic setting on all brokers.",
        "POST",
        f"{_BROKERS}/configuration/{{setting}}/{{value}}",
    ),
    Command(
        "delete-dynamic-config",
        "Reset a dynamic setting to each broker's configured value.",
        "DELETE",
        f"{_BROKERS}/configuration/{{setting}}",
    ),
    _lines(
        (
            "get-runtime-config",
            "Print all settings of the broker at --admin-url.",
            f"{_BROKERS}/configuration/runtime",
        )
    ),
    _lines(
        (
            "get-internal-config",
            "Print the metadata store of the cluster.",
            f"{_BROKERS}/internal-configuration",
        )
    ),
    Command(
        "backlog-quota-check",
        "Check backlog quotas on the broker at --admin-url now.",
        "GET",
        f"{_BROKERS}/backlog-quota-check",
    ),
    Command(
        "shutdown",
        "Shut down the broker at --admin-url.",
        "POST",
        f"{_BROKERS}/shutdown",
        asks="Shut down the broker at {url}?",
    ),
)

BROKER_STATS = (
    _lines(("metrics", "Print the metrics of the broker.", f"{_A}/broker-stats/metrics")),
    _lines(
        (
            "mbeans",
            "Print statistics of the broker's process and garbage collector.",
            f"{_A}/broker-stats/mbeans",
        )
    ),
    _lines(("topics", "Print the statistics of the broker's topics.", f"{_A}/broker-stats/topics")),
    _lines(
        ("load-report", "Print the load report of the broker.", f"{_A}/broker-stats/load-report")
    ),
)

RESOURCE_GROUPS = (
    _lines(("list", "Print the names of all resource groups.", f"{_A}/resourcegroups")),
    _lines(("get", "Print a resource group.", f"{_A}/resourcegroups/{{group}}")),
    Command(
        "create",
        "Create or replace a resource group.",
        "PUT",
        f"{_A}/resourcegroups/{{group}}",
        (
            Option("publish-messages", "Messages per second.", "number", field="publishRateInMsgs"),
            Option("publish-bytes", "Bytes per second.", "number", field="publishRateInBytes"),
            Option(
                "dispatch-messages", "Messages per second.", "number", field="dispatchRateInMsgs"
            ),
            Option("dispatch-bytes", "Bytes per second.", "number", field="dispatchRateInBytes"),
        ),
        body=lambda values: {
            name: values[option]
            for option, name in (
                ("publish_messages", "publishRateInMsgs"),
                ("publish_bytes", "publishRateInBytes"),
                ("dispatch_messages", "dispatchRateInMsgs"),
                ("dispatch_bytes", "dispatchRateInBytes"),
            )
            if values[option]
        },
    ),
    Command(
        "delete",
        "Remove a resource group.",
        "DELETE",
        f"{_A}/resourcegroups/{{group}}",
        asks="Remove resource group {group}?",
    ),
)

NAMESPACES = (
    _lines(("topics", "Print the topics of a namespace.", f"{_NAMESPACE}/topics")),
    _lines(("permissions", "Print the permissions of each role.", f"{_NAMESPACE}/permissions")),
    Command(
        "grant-permission",
        "Grant a role permissions on a namespace.",
        "POST",
        f"{_NAMESPACE}/permissions/{{role}}",
        (_ACTIONS,),
    ),
    Command(
        "revoke-permission",
        "Revoke all permissions of a role on a namespace.",
        "DELETE",
        f"{_NAMESPACE}/permissions/{{role}}",
        asks="Revoke all permissions of {role} on {namespace}?",
    ),
    Command(
        "grant-subscription-permission",
        "Allow only some roles to use a subscription.",
        "POST",
        f"{_NAMESPACE}/permissions/subscription/{{subscription}}",
        (Option("roles", "Separated by commas.", "names", field=".", is_required=True),),
    ),
    Command(
        "revoke-subscription-permission",
        "Revoke a role's permission to use a subscription.",
        "DELETE",
        f"{_NAMESPACE}/permissions/{{subscription}}/{{role}}",
        asks="Revoke {role}'s permission to use subscription {subscription}?",
    ),
    _lines(("get-properties", "Print the properties of a namespace.", f"{_NAMESPACE}/properties")),
    Command(
        "set-properties",
        "Add or replace properties of a namespace.",
        "PUT",
        f"{_NAMESPACE}/properties",
        (_PROPERTIES,),
    ),
    Command(
        "clear-properties",
        "Remove all properties of a namespace.",
        "DELETE",
        f"{_NAMESPACE}/properties",
        asks="Remove all properties of {namespace}?",
    ),
    Command(
        "clear-backlog",
        "Skip the backlogs of all subscriptions of a namespace.",
        "POST",
        f"{_NAMESPACE}/clearBacklog",
        asks="Skip the backlogs of all subscriptions of {namespace}?",
    ),
    Command(
        "unsubscribe",
        "Delete a subscription on all topics of a namespace.",
        "POST",
        f"{_NAMESPACE}/unsubscribe/{{subscription}}",
        asks="Delete {subscription} on all topics of {namespace}?",
    ),
)

_ADDRESS = Option(
    "address", "Only the one at this HOST:PORT, where several have the name.", field="address"
)

TOPICS = (
    _lines(
        (
            "internal-stats",
            "Print internal statistics of a topic: ledgers and cursors.",
            f"{_TOPIC}/internalStats",
        )
    ),
    _lines(("info", "Print the metadata of a topic.", f"{_TOPIC}/internal-info")),
    _lines(
        (
            "partitioned-stats",
            "Print the statistics of all partitions, summed.",
            f"{_TOPIC}/partitioned-stats",
        )
    ),
    _lines(
        (
            "partitioned-internal-stats",
            "Print internal statistics of all partitions: ledgers and cursors.",
            f"{_TOPIC}/partitioned-internalStats",
        )
    ),
    _lines(("last-message-id", "Print the id of the last message.", f"{_TOPIC}/lastMessageId")),
    _lines(
        (
            "get-message-id",
            "Print the id of the first message published at or after a time, as 1h (ago).",
            f"{_TOPIC}/messageid/{{timestamp}}",
        )
    ),
    Command(
        "get-message",
        "Print the messages of an entry: a batch is one.",
        "GET",
        f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}",
        shows_messages=True,
    ),
    Command(
        "examine",
        "Print the messages of an entry by its number: a batch is one.",
        "GET",
        f"{_TOPIC}/examinemessage",
        (
            Option("initial", "Count from `earliest` or `latest`.", query="initialPosition"),
            Option("number", "Number of the entry, from 1.", "number", query="messagePosition"),
        ),
        shows_messages=True,
    ),
    _lines(("permissions", "Print the permissions of each role.", f"{_TOPIC}/permissions")),
    Command(
        "grant-permission",
        "Grant a role permissions on a topic.",
        "POST",
        f"{_TOPIC}/permissions/{{role}}",
        (_ACTIONS,),
    ),
    Command(
        "revoke-permission",
        "Revoke all permissions of a role on a topic.",
        "DELETE",
        f"{_TOPIC}/permissions/{{role}}",
        asks="Revoke all permissions of {role} on {topic}?",
    ),
    _lines(("get-properties", "Print the properties of a topic.", f"{_TOPIC}/properties")),
    Command(
        "update-properties",
        "Add or replace properties of a topic.",
        "PUT",
        f"{_TOPIC}/properties",
        (_PROPERTIES,),
    ),
    Command(
        "remove-property",
        "Remove a property of a topic.",
        "DELETE",
        f"{_TOPIC}/properties",
        (Option("key", "Name of the property.", query="key", is_required=True),),
    ),
    Command(
        "disconnect-producer",
        "Disconnect a producer; its client reconnects and sends again what is not confirmed.",
        "POST",
        "/magnetar/v1/topics/{topic}/producers/disconnect",
        (_ADDRESS,),
        asks="Disconnect the producer {producer} of {topic}?",
        in_body={"producer": "producer"},
        shows=True,
    ),
    Command(
        "truncate",
        "Skip the backlogs of all subscriptions and delete the messages.",
        "DELETE",
        f"{_TOPIC}/truncate",
        asks="Delete all messages of {topic}?",
    ),
    Command(
        "trim",
        "Trim a topic now: delete acknowledged messages beyond its retention.",
        "POST",
        f"{_TOPIC}/trim",
        asks="Delete the acknowledged messages of {topic} beyond its retention?",
    ),
    Command(
        "create-missed-partitions",
        "Create the missing partitions of a topic.",
        "POST",
        f"{_TOPIC}/createMissedPartitions",
    ),
)


def _place(values: Mapping[str, Any]) -> object:
    """Return the start position as brokers take it: a message id as the tools print it, or earliest
    or latest. None if it is not given.

    Raises:
        SettingsError: the text is none of these.
    """
    text = values.get("at", "")
    if not text:
        return None
    if text == "earliest":
        return {"ledgerId": -1, "entryId": -1}
    if text == "latest":
        return {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}
    found = parse_message_id(text)
    if found is None:
        raise SettingsError(f"bad --at {text!r}: give ledger:entry, earliest or latest")
    ledger, entry, partition, index = found
    place = {"ledgerId": ledger, "entryId": entry}
    if partition >= 0:
        place["partitionIndex"] = partition
    if index >= 0:
        place["batchIndex"] = index
    return place


_AT = Option("at", "Start position: LEDGER:ENTRY, earliest or latest.")

SUBSCRIPTIONS = (
    _lines(("list", "Print the subscriptions of a topic.", f"{_TOPIC}/subscriptions")),
    Command(
        "create",
        "Create a subscription, by default at the end of the topic.",
        "PUT",
        _SUBSCRIPTION,
        (_AT,),
        body=_place,
    ),
    Command(
        "delete",
        "Delete a subscription.",
        "DELETE",
        _SUBSCRIPTION,
        (_FORCE,),
        asks="Delete subscription {subscription} of {topic}?",
    ),
    Command(
        "skip-unreadable",
        "Skip exactly the entries that no bookie can serve.",
        "POST",
        f"{_SUBSCRIPTION}/skipUnreadable",
        asks="Skip the unreadable entries of {topic} for {subscription}? First restart bookies "
        "that are down.",
    ),
    Command(
        "skip",
        "Skip the oldest entries of a backlog.",
        "POST",
        f"{_SUBSCRIPTION}/skip/{{count}}",
        asks="Skip {count} unacknowledged entries of {subscription}?",
    ),
    Command(
        "clear-backlog",
        "Skip the whole backlog.",
        "POST",
        f"{_SUBSCRIPTION}/skip_all",
        asks="Skip the whole backlog of {subscription} on {topic}?",
    ),
    Command(
        "expire",
        "Skip messages older than a duration, as 1h.",
        "POST",
        f"{_SUBSCRIPTION}/expireMessages/{{seconds}}",
        asks="Skip unacknowledged messages older than {seconds} of {subscription}?",
    ),
    Command(
        "expire-all",
        "Skip messages older than a duration, as 1h, on all subscriptions of a topic.",
        "POST",
        f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}",
        asks="Skip messages older than {seconds} of all subscriptions of {topic}?",
    ),
    Command(
        "reset",
        "Reset a subscription to a message; its consumers reconnect.",
        "POST",
        f"{_SUBSCRIPTION}/resetcursor",
        (Option("at", "Start position: LEDGER:ENTRY, earliest or latest.", is_required=True),),
        asks="Reset {subscription} of {topic} to {at}?",
        body=_place,
    ),
    Command(
        "reset-to-time",
        "Reset a subscription to a time, as 1h (ago); its consumers reconnect.",
        "POST",
        f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}",
        asks="Reset {subscription} of {topic} to {timestamp}?",
    ),
    Command(
        "peek",
        "Print the messages of the oldest unacknowledged entry, or the n-th: a batch is one.",
        "GET",
        f"{_SUBSCRIPTION}/position/{{number}}",
        defaults={"number": "1"},
        shows_messages=True,
    ),
    Command(
        "analyze-backlog",
        "Count the messages of a backlog by reading it.",
        "POST",
        f"{_SUBSCRIPTION}/analyzeBacklog",
        (_AT,),
        shows=True,
        body=_place,
    ),
    Command(
        "disconnect",
        "Disconnect a consumer; its client reconnects, and what it held is delivered again.",
        "POST",
        "/magnetar/v1/topics/{topic}/consumers/disconnect",
        (_ADDRESS,),
        asks="Disconnect {consumer} from {subscription} of {topic}?",
        in_body={"subscription": "subscription", "consumer": "consumer"},
        shows=True,
    ),
    _lines(
        ("get-properties", "Print the properties of a subscription.", f"{_SUBSCRIPTION}/properties")
    ),
    Command(
        "set-properties",
        "Replace the properties of a subscription.",
        "PUT",
        f"{_SUBSCRIPTION}/properties",
        (_PROPERTIES,),
    ),
)


def add_resources(
    admin: typer.Typer, *, brokers: typer.Typer, namespaces: typer.Typer, topics: typer.Typer
) -> None:
    """Put all commands into `magnetar admin` and its groups."""
    add(brokers, BROKERS)
    add(namespaces, NAMESPACES)
    add(topics, TOPICS)
    for name, text, commands in (
        ("clusters", "Manage the list of clusters.", CLUSTERS),
        ("broker-stats", "Print statistics of a broker.", BROKER_STATS),
        ("subscriptions", "Create, reset, skip and delete subscriptions.", SUBSCRIPTIONS),
        ("resourcegroups", "Create, list and delete resource groups.", RESOURCE_GROUPS),
    ):
        group = typer.Typer(no_args_is_help=True, help=text)
        add(group, commands)
        admin.add_typer(group, name=name)
