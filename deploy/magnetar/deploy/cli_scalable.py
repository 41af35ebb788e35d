"""The commands of `magnetar admin scalable-topics`: make, show, split, merge, scale and delete."""

import json
from typing import Annotated
from urllib.parse import quote

import typer

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    JsonOption,
    NamespaceArgument,
    UrlOption,
    YesOption,
    broker_client,
    confirm,
)
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.options import parse_properties
from magnetar.deploy.printing import print_json, say

scalable_topics = typer.Typer(
    no_args_is_help=True, help="Manage scalable topics (topic://…), their segments and layouts."
)

ScalableArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A short name, or topic://tenant/namespace/name.")
]

_PREFIX = "/admin/v2/scalable"
_SCALABLE = "topic://"


@scalable_topics.command("create")
def create(
    topic: ScalableArgument,
    segments: Annotated[
        int, typer.Option("--segments", "-s", min=1, help="Segments to begin with.")
    ] = 1,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="KEY=VALUE", help="A property; may be repeated."),
    ] = None,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Create a scalable topic."""
    pairs = parse_properties(properties or ())
    broker_client(url).ask(
        "PUT", _path_of(topic), {"numInitialSegments": str(segments)}, pairs or None
    )


@scalable_topics.command("list")
def list_topics(namespace: NamespaceArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the scalable topics of a namespace."""
    from magnetar.deploy import admin_client

    for name in broker_client(url).ask(
        "GET", f"{_PREFIX}/{admin_client.namespace_argument(namespace)}"
    ):
        say(name)


@scalable_topics.command("get-metadata")
def show(
    topic: ScalableArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Print the layout of a topic: its segments, and which were split or merged."""
    found = broker_client(url).ask("GET", _path_of(topic))
    if as_json:
        print_json(found, indent=2)
        return
    say(f"epoch {found['epoch']}")
    say(f"{'id':>6}  {'hashes':<9}  {'state':<6}  {'parents':<12}  children")
    for each in found["segments"].values():
        hashes = each["hashRange"]
        say(
            f"{each['segmentId']:>6}  {hashes['start']:04x}-{hashes['end']:04x}  "
            f"{each['state']:<6}  {_ids(each['parentIds']):<12}  {_ids(each['childIds'])}"
        )


@scalable_topics.command("stats")
def stats(topic: ScalableArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the statistics of a topic and of its segments as JSON."""
    print_json(broker_client(url).ask("GET", f"{_path_of(topic)}/stats"), indent=2)


@scalable_topics.command("split-segment")
def split(
    topic: ScalableArgument,
    segment: Annotated[int, typer.Option("--segment-id", min=0, help="Id of the segment.")],
    at: Annotated[
        int | None,
        typer.Option("--at", min=1, max=65_535, help="First hash of the second half."),
    ] = None,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Split a segment in two: in the middle, or at a hash."""
    query = {} if at is None else {"at": str(at)}
    broker_client(url).ask("POST", f"{_path_of(topic)}/split/{segment}", query)


@scalable_topics.command("merge-segments")
def merge(
    topic: ScalableArgument,
    one: Annotated[int, typer.Option("--segment-id-1", min=0, help="Id of one segment.")],
    other: Annotated[int, typer.Option("--segment-id-2", min=0, help="Id of its neighbour.")],
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Merge two neighbouring segments."""
    broker_client(url).ask("POST", f"{_path_of(topic)}/merge/{one}/{other}")


@scalable_topics.command("migrate")
def migrate(
    topic: ScalableArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Migrate a topic whose clients may not be of Pulsar 5."),
    ] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Make a scalable topic of a plain or partitioned one. There is no way back."""
    confirm(f"Make {topic} scalable? Only clients of Pulsar 5 can publish to it then.", yes=yes)
    broker_client(url).ask("POST", f"{_path_of(topic)}/migrate", {"force": "true"} if force else {})


SubscriptionOption = Annotated[
    str, typer.Option("--subscription", "-s", help="Name of the subscription.")
]


@scalable_topics.command("seek")
def seek(
    topic: ScalableArgument,
    subscription: SubscriptionOption,
    time_ms: Annotated[
        int, typer.Option("--time", min=0, help="Time of publishing, ms since 1970.")
    ],
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Reset a subscription, in all segments, to messages published at or after a time."""
    path = f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}/seek"
    broker_client(url).ask("POST", path, {"timestamp": str(time_ms)})


@scalable_topics.command("clear-backlog")
def clear_backlog(
    topic: ScalableArgument, subscription: SubscriptionOption, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Skip the backlog of a subscription in all segments."""
    path = f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}/skip-all"
    broker_client(url).ask("POST", path)


@scalable_topics.command("create-subscription")
def create_subscription(
    topic: ScalableArgument, subscription: SubscriptionOption, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Make a subscription at the current end of all segments."""
    broker_client(url).ask("PUT", f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}")


@scalable_topics.command("delete-subscription")
def delete_subscription(
    topic: ScalableArgument,
    subscription: SubscriptionOption,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a subscription that has consumers.")
    ] = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a subscription in all segments."""
    path = f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}"
    broker_client(url).ask("DELETE", path, {"force": "true"} if force else {})


@scalable_topics.command("get-auto-scale-policy")
def get_auto_scale(topic: ScalableArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print a topic's own auto-scale policy: the fields that override its namespace."""
    found = broker_client(url).ask("GET", f"{_path_of(topic)}/autoScalePolicy")
    print_json(found or {}, indent=2)


@scalable_topics.command("set-auto-scale-policy")
def set_auto_scale(
    topic: ScalableArgument,
    policy: Annotated[
        str,
        typer.Argument(
            metavar="JSON", help='Pulsar\'s names, as {"enabled": true, "maxSegments": 16}.'
        ),
    ],
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Set a topic's auto-scale policy. Fields that are left out follow its namespace."""
    try:
        body = json.loads(policy)
    except ValueError as error:
        raise SettingsError(f"bad policy {policy!r}: give an object as JSON") from error
    broker_client(url).ask("POST", f"{_path_of(topic)}/autoScalePolicy", body=body)


@scalable_topics.command("remove-auto-scale-policy")
def remove_auto_scale(topic: ScalableArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Remove a topic's auto-scale policy. Its namespace's policy applies again."""
    broker_client(url).ask("DELETE", f"{_path_of(topic)}/autoScalePolicy")


@scalable_topics.command("delete")
def delete(
    topic: ScalableArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a topic that has subscriptions.")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a scalable topic with its messages."""
    confirm(f"Delete {topic} and all its messages?", yes=yes)
    broker_client(url).ask("DELETE", _path_of(topic), {"force": "true"} if force else {})


def _path_of(topic: str) -> str:
    from magnetar.deploy import admin_client

    name = topic
    if topic.startswith(_SCALABLE):
        name = "persistent://" + topic.removeprefix(_SCALABLE)
    path = admin_client.topic_path(admin_client.topic_argument(name))
    domain, _, rest = path.partition("/")
    if domain != "persistent":
        raise SettingsError(f"{topic} is no name of a scalable topic: give {_SCALABLE}…")
    return f"{_PREFIX}/{rest}"


def _ids(ids: list[int]) -> str:
    return ",".join(map(str, ids)) or "-"
