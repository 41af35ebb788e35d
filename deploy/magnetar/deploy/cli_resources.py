"""What `magnetar admin` asks of clusters, brokers, namespaces, topics and subscriptions: the table.

Names are those of Pulsar's tool, but that subscriptions have a group of their own.
"""

from collections.abc import Mapping
from typing import Any

import typer

from magnetar.deploy.cli_requests import Command, Option, add
from magnetar.deploy.errors import SettingsError

_A = "/admin/v2"
_CLUSTER = f"{_A}/clusters/{{cluster}}"
_BROKERS = f"{_A}/brokers"
_NAMESPACE = f"{_A}/namespaces/{{namespace}}"
_TOPIC = f"{_A}/{{topic}}"
_SUBSCRIPTION = f"{_TOPIC}/subscription/{{subscription}}"

_URLS = (
    Option("service-url", "HTTP address.", field="serviceUrl"),
    Option("broker-url", "Address of the binary protocol.", field="brokerServiceUrl"),
    Option("peers", "Names of peers, with commas between.", "names", field="peerClusterNames"),
)
_ACTIONS = Option(
    "actions",
    "produce, consume and others, with commas between.",
    "names",
    field=".",
    is_required=True,
)
_PROPERTIES = Option("property", "key=value; may be repeated.", "pairs", field=".")
_FORCE = Option("force", "Whoever uses it is sent away.", "flag", query="force")


def _lines(command: tuple[str, str, str]) -> Command:
    """A command that shows what is there."""
    name, help_text, path = command
    return Command(name, help_text, "GET", path, shows=True)


CLUSTERS = (
    _lines(("list", "Print the names of all clusters.", f"{_A}/clusters")),
    _lines(("get", "Print what is known of a cluster.", _CLUSTER)),
    Command("create", "Make a cluster known.", "PUT", _CLUSTER, _URLS),
    Command("update", "Replace what is known of a cluster.", "POST", _CLUSTER, _URLS),
    Command("delete", "Forget a cluster.", "DELETE", _CLUSTER, asks="Forget cluster {cluster}?"),
    _lines(("get-peer-clusters", "Print the peers of a cluster.", f"{_CLUSTER}/peers")),
    Command(
        "update-peer-clusters",
        "Set the peers of a cluster.",
        "POST",
        f"{_CLUSTER}/peers",
        (Option("peers", "With commas between.", "names", field=".", is_required=True),),
    ),
    _lines(("list-failure-domains", "Print the failure domains.", f"{_CLUSTER}/failureDomains")),
    Command(
        "create-failure-domain",
        "Make or replace a failure domain.",
        "POST",
        f"{_CLUSTER}/failureDomains/{{domain}}",
        (Option("brokers", "With commas between.", "names", field="brokers", is_required=True),),
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
    _lines(("version", "Print the version of the broker that is asked.", f"{_BROKERS}/version")),
    Command(
        "healthcheck",
        "Print `ok` if a broker serves clients.",
        "GET",
        f"{_BROKERS}/health",
        (Option("broker", "Id of the broker; default: the one that is asked.", query="brokerId"),),
        shows=True,
    ),
    _lines(
        (
            "namespaces",
            "Print the bundles of a broker.",
            f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces",
        )
    ),
    _lines(
        (
            "list-dynamic-config",
            "Print the settings that can be changed while brokers run.",
            f"{_BROKERS}/configuration",
        )
    ),
    _lines(
        (
            "get-all-dynamic-config",
            "Print what was set while brokers ran.",
            f"{_BROKERS}/configuration/values",
        )
    ),
    Command(
        "update-dynamic-config",
        "Change a setting on all brokers, at once.",
        "POST",
        f"{_BROKERS}/configuration/{{setting}}/{{value}}",
    ),
    Command(
        "delete-dynamic-config",
        "Go back to each broker's own setting.",
        "DELETE",
        f"{_BROKERS}/configuration/{{setting}}",
    ),
    _lines(
        (
            "get-runtime-config",
            "Print all settings of the broker that is asked.",
            f"{_BROKERS}/configuration/runtime",
        )
    ),
    _lines(
        (
            "get-internal-config",
            "Print where the cluster keeps its metadata.",
            f"{_BROKERS}/internal-configuration",
        )
    ),
    Command(
        "backlog-quota-check",
        "Check the quotas of the broker that is asked now.",
        "GET",
        f"{_BROKERS}/backlog-quota-check",
    ),
    Command(
        "shutdown",
        "Have the broker that is asked stop in order.",
        "POST",
        f"{_BROKERS}/shutdown",
        asks="Stop the broker at {url}?",
    ),
)

BROKER_STATS = (
    _lines(("metrics", "Print its metrics.", f"{_A}/broker-stats/metrics")),
    _lines(("mbeans", "Print its process and garbage collector.", f"{_A}/broker-stats/mbeans")),
    _lines(("topics", "Print the statistics of its topics.", f"{_A}/broker-stats/topics")),
    _lines(("load-report", "Print its load.", f"{_A}/broker-stats/load-report")),
)

RESOURCE_GROUPS = (
    _lines(("list", "Print the names of all resource groups.", f"{_A}/resourcegroups")),
    _lines(("get", "Print a resource group.", f"{_A}/resourcegroups/{{group}}")),
    Command(
        "create",
        "Make or replace a resource group.",
        "PUT",
        f"{_A}/resourcegroups/{{group}}",
        (
            Option("publish-messages", "Per second.", "number", field="publishRateInMsgs"),
            Option("publish-bytes", "Per second.", "number", field="publishRateInBytes"),
            Option("dispatch-messages", "Per second.", "number", field="dispatchRateInMsgs"),
            Option("dispatch-bytes", "Per second.", "number", field="dispatchRateInBytes"),
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
    _lines(("permissions", "Print what each role may do.", f"{_NAMESPACE}/permissions")),
    Command(
        "grant-permission",
        "Let a role do something in a namespace.",
        "POST",
        f"{_NAMESPACE}/permissions/{{role}}",
        (_ACTIONS,),
    ),
    Command(
        "revoke-permission",
        "Take all rights in a namespace from a role.",
        "DELETE",
        f"{_NAMESPACE}/permissions/{{role}}",
        asks="Take all rights in {namespace} from {role}?",
    ),
    Command(
        "grant-subscription-permission",
        "Let only some roles use a subscription.",
        "POST",
        f"{_NAMESPACE}/permissions/subscription/{{subscription}}",
        (Option("roles", "With commas between.", "names", field=".", is_required=True),),
    ),
    Command(
        "revoke-subscription-permission",
        "Take that from a role.",
        "DELETE",
        f"{_NAMESPACE}/permissions/{{subscription}}/{{role}}",
        asks="Take subscription {subscription} from {role}?",
    ),
    _lines(("get-properties", "Print what was written down about it.", f"{_NAMESPACE}/properties")),
    Command(
        "set-properties",
        "Write something down about a namespace.",
        "PUT",
        f"{_NAMESPACE}/properties",
        (_PROPERTIES,),
    ),
    Command(
        "clear-properties",
        "Remove all properties.",
        "DELETE",
        f"{_NAMESPACE}/properties",
        asks="Remove all properties of {namespace}?",
    ),
    Command(
        "clear-backlog",
        "Forget the backlogs of all subscriptions of a namespace.",
        "POST",
        f"{_NAMESPACE}/clearBacklog",
        asks="Forget what no subscription of {namespace} has received yet?",
    ),
    Command(
        "unsubscribe",
        "Delete a subscription on all topics of a namespace.",
        "POST",
        f"{_NAMESPACE}/unsubscribe/{{subscription}}",
        asks="Delete {subscription} on all topics of {namespace}?",
    ),
)

TOPICS = (
    _lines(("internal-stats", "Print how a topic is stored.", f"{_TOPIC}/internalStats")),
    _lines(("info", "Print what is stored of it in the metadata.", f"{_TOPIC}/internal-info")),
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
            "Print how all partitions are stored.",
            f"{_TOPIC}/partitioned-internalStats",
        )
    ),
    _lines(("last-message-id", "Print the id of the last message.", f"{_TOPIC}/lastMessageId")),
    _lines(
        (
            "get-message-id",
            "Print the id of the first message since a time, in ms since 1970.",
            f"{_TOPIC}/messageid/{{timestamp}}",
        )
    ),
    _lines(
        (
            "get-message",
            "Print the payload of a message.",
            f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}",
        )
    ),
    Command(
        "examine",
        "Print the payload of a message by its number.",
        "GET",
        f"{_TOPIC}/examinemessage",
        (
            Option("initial", "Count from `earliest` or `latest`.", query="initialPosition"),
            Option("number", "From 1.", "number", query="messagePosition"),
        ),
        shows=True,
    ),
    _lines(("permissions", "Print what each role may do.", f"{_TOPIC}/permissions")),
    Command(
        "grant-permission",
        "Let a role do something with a topic.",
        "POST",
        f"{_TOPIC}/permissions/{{role}}",
        (_ACTIONS,),
    ),
    Command(
        "revoke-permission",
        "Take from a role what it may do with a topic.",
        "DELETE",
        f"{_TOPIC}/permissions/{{role}}",
        asks="Take all rights on {topic} from {role}?",
    ),
    _lines(("get-properties", "Print what was written down about it.", f"{_TOPIC}/properties")),
    Command(
        "update-properties",
        "Write something down about a topic.",
        "PUT",
        f"{_TOPIC}/properties",
        (_PROPERTIES,),
    ),
    Command(
        "remove-property",
        "Remove one property.",
        "DELETE",
        f"{_TOPIC}/properties",
        (Option("key", "Which one.", query="key", is_required=True),),
    ),
    Command(
        "truncate",
        "Forget all backlogs, and delete the data.",
        "DELETE",
        f"{_TOPIC}/truncate",
        asks="Delete all messages of {topic}?",
    ),
    Command(
        "trim",
        "Have what is consumed and not retained go now.",
        "POST",
        f"{_TOPIC}/trim",
        asks="Delete what is consumed of {topic}?",
    ),
    Command(
        "create-missed-partitions",
        "Have all partitions of a topic.",
        "POST",
        f"{_TOPIC}/createMissedPartitions",
    ),
)


def _place(values: Mapping[str, Any]) -> object:
    """A message id, as ledger:entry, earliest or latest."""
    text = values.get("at", "")
    if not text:
        return None
    if text == "earliest":
        return {"ledgerId": -1, "entryId": -1}
    if text == "latest":
        return {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}
    ledger, _, entry = text.partition(":")
    if not ledger.isdecimal() or not entry.isdecimal():
        raise SettingsError(f"bad --at {text!r}: give ledger:entry, earliest or latest")
    return {"ledgerId": int(ledger), "entryId": int(entry)}


_AT = Option("at", "A message, as ledger:entry; earliest; or latest.")

SUBSCRIPTIONS = (
    _lines(("list", "Print the subscriptions of a topic.", f"{_TOPIC}/subscriptions")),
    Command(
        "create",
        "Make a subscription, at the end if nothing else is said.",
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
        "Forget exactly the entries that no bookie can serve.",
        "POST",
        f"{_SUBSCRIPTION}/skipUnreadable",
        asks="Forget what cannot be read now of {topic} for {subscription}? Bookies that are down "
        "come first",
    ),
    Command(
        "skip",
        "Forget the oldest entries of a backlog.",
        "POST",
        f"{_SUBSCRIPTION}/skip/{{count}}",
        asks="Forget {count} entries that {subscription} has not acknowledged?",
    ),
    Command(
        "clear-backlog",
        "Forget the whole backlog.",
        "POST",
        f"{_SUBSCRIPTION}/skip_all",
        asks="Forget all that {subscription} of {topic} has not acknowledged?",
    ),
    Command(
        "expire",
        "Forget what is older than some seconds.",
        "POST",
        f"{_SUBSCRIPTION}/expireMessages/{{seconds}}",
        asks="Forget what is older than {seconds} s and {subscription} has not acknowledged?",
    ),
    Command(
        "expire-all",
        "The same for all subscriptions of a topic.",
        "POST",
        f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}",
        asks="Forget what is older than {seconds} s and not acknowledged on {topic}?",
    ),
    Command(
        "reset",
        "Go on at a message; consumers are interrupted.",
        "POST",
        f"{_SUBSCRIPTION}/resetcursor",
        (Option("at", "A message, as ledger:entry; earliest; or latest.", is_required=True),),
        asks="Have {subscription} of {topic} go on at {at}?",
        body=_place,
    ),
    Command(
        "reset-to-time",
        "Go on at a time, in ms since 1970; consumers are interrupted.",
        "POST",
        f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}",
        asks="Have {subscription} of {topic} go on at {timestamp} ms?",
    ),
    _lines(
        (
            "peek",
            "Print the payload of the n-th message that is not acknowledged.",
            f"{_SUBSCRIPTION}/position/{{number}}",
        )
    ),
    Command(
        "analyze-backlog",
        "Read what is not acknowledged, and count it.",
        "POST",
        f"{_SUBSCRIPTION}/analyzeBacklog",
        (_AT,),
        shows=True,
        body=_place,
    ),
    _lines(("get-properties", "Print its properties.", f"{_SUBSCRIPTION}/properties")),
    Command(
        "set-properties",
        "Replace its properties.",
        "PUT",
        f"{_SUBSCRIPTION}/properties",
        (_PROPERTIES,),
    ),
)


def add_resources(
    admin: typer.Typer, *, brokers: typer.Typer, namespaces: typer.Typer, topics: typer.Typer
) -> None:
    """Put everything into `magnetar admin` and the groups that it has."""
    add(brokers, BROKERS)
    add(namespaces, NAMESPACES)
    add(topics, TOPICS)
    for name, text, commands in (
        ("clusters", "Make clusters known, and see them.", CLUSTERS),
        ("broker-stats", "See what a broker measures.", BROKER_STATS),
        ("subscriptions", "Make subscriptions, move and delete them.", SUBSCRIPTIONS),
        ("resourcegroups", "Make and see resource groups.", RESOURCE_GROUPS),
    ):
        group = typer.Typer(no_args_is_help=True, help=text)
        add(group, commands)
        admin.add_typer(group, name=name)
