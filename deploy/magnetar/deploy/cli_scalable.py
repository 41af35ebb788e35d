"""The commands of `magnetar admin scalable-topics`: make, show, split, merge, scale and delete."""

import json
import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from magnetar.deploy.cli_topics import DEFAULT_ADMIN_URL, UrlOption, YesOption, confirm
from magnetar.deploy.errors import SettingsError

scalable_topics = typer.Typer(
    no_args_is_help=True, help="Manage scalable topics (topic://…), their segments and layouts."
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the JSON of the response.")]
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
    pairs = dict(_pair(each) for each in properties or ())
    _ask(url, "PUT", _path_of(topic), {"numInitialSegments": str(segments)}, pairs or None)


@scalable_topics.command("list")
def list_topics(
    namespace: Annotated[str, typer.Argument(help="Namespace, as tenant/namespace.")],
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print the scalable topics of a namespace."""
    from magnetar.deploy import admin_client

    for name in _ask(url, "GET", f"{_PREFIX}/{admin_client.namespace_argument(namespace)}"):
        _say(name)


@scalable_topics.command("get-metadata")
def show(
    topic: ScalableArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Print the layout of a topic: its segments, and which were split or merged."""
    found = _ask(url, "GET", _path_of(topic))
    if as_json:
        _say(json.dumps(found, indent=2))
        return
    _say(f"epoch {found['epoch']}")
    _say(f"{'id':>6}  {'hashes':<9}  {'state':<6}  {'parents':<12}  children")
    for each in found["segments"].values():
        hashes = each["hashRange"]
        _say(
            f"{each['segmentId']:>6}  {hashes['start']:04x}-{hashes['end']:04x}  "
            f"{each['state']:<6}  {_ids(each['parentIds']):<12}  {_ids(each['childIds'])}"
        )


@scalable_topics.command("stats")
def stats(topic: ScalableArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the statistics of a topic and of its segments as JSON."""
    _say(json.dumps(_ask(url, "GET", f"{_path_of(topic)}/stats"), indent=2))


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
    _ask(url, "POST", f"{_path_of(topic)}/split/{segment}", query)


@scalable_topics.command("merge-segments")
def merge(
    topic: ScalableArgument,
    one: Annotated[int, typer.Option("--segment-id-1", min=0, help="Id of one segment.")],
    other: Annotated[int, typer.Option("--segment-id-2", min=0, help="Id of its neighbour.")],
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Merge two neighbouring segments."""
    _ask(url, "POST", f"{_path_of(topic)}/merge/{one}/{other}")


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
    _ask(url, "POST", f"{_path_of(topic)}/migrate", {"force": "true"} if force else {})


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
    """Have a subscription go on, in all segments, at what was published from a time on."""
    path = f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}/seek"
    _ask(url, "POST", path, {"timestamp": str(time_ms)})


@scalable_topics.command("clear-backlog")
def clear_backlog(
    topic: ScalableArgument, subscription: SubscriptionOption, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Forget the backlog of a subscription in all segments."""
    path = f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}/skip-all"
    _ask(url, "POST", path)


@scalable_topics.command("create-subscription")
def create_subscription(
    topic: ScalableArgument, subscription: SubscriptionOption, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Make a subscription at the present end of all segments."""
    _ask(url, "PUT", f"{_path_of(topic)}/subscriptions/{quote(subscription, safe='')}")


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
    _ask(url, "DELETE", path, {"force": "true"} if force else {})


@scalable_topics.command("get-auto-scale-policy")
def get_auto_scale(topic: ScalableArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print how load splits and merges a topic, where it overrides its namespace."""
    found = _ask(url, "GET", f"{_path_of(topic)}/autoScalePolicy")
    _say(json.dumps(found or {}, indent=2))


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
    """Set how load splits and merges a topic; what is left out is as in its namespace."""
    try:
        body = json.loads(policy)
    except ValueError as error:
        raise SettingsError(f"bad policy {policy!r}: give an object as JSON") from error
    _ask(url, "POST", f"{_path_of(topic)}/autoScalePolicy", body=body)


@scalable_topics.command("remove-auto-scale-policy")
def remove_auto_scale(topic: ScalableArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Have load split and merge a topic as its namespace says."""
    _ask(url, "DELETE", f"{_path_of(topic)}/autoScalePolicy")


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
    _ask(url, "DELETE", _path_of(topic), {"force": "true"} if force else {})


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


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise SettingsError(f"bad property {text!r}: give KEY=VALUE")
    return key, value


def _ids(ids: list[int]) -> str:
    return ",".join(map(str, ids)) or "-"


def _ask(
    url: str, method: str, path: str, query: dict[str, str] | None = None, body: object = None
) -> Any:
    from magnetar.deploy.admin_client import AdminClient

    return AdminClient(url).ask(method, path, query, body)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
