"""Commands of `magnetar admin topics` that create, partition, delete and terminate topics."""

from typing import Annotated

import typer

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    TopicArgument,
    UrlOption,
    YesOption,
    broker_client,
    confirm,
    path_of_topic,
)
from magnetar.deploy.printing import say


def add_commands(topics: typer.Typer) -> None:
    """Put the commands into `magnetar admin topics`."""
    topics.command("create")(create)
    topics.command("partitions")(partitions)
    topics.command("delete")(delete)
    topics.command("terminate")(terminate)


def create(
    topic: TopicArgument,
    count: Annotated[
        int, typer.Option("--partitions", min=0, help="Number of partitions; 0: not partitioned.")
    ] = 0,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Create a topic."""
    path = path_of_topic(topic)
    if count:
        broker_client(url).change("PUT", f"{path}/partitions", body=count)
    else:
        broker_client(url).change("PUT", path)


def partitions(
    topic: TopicArgument,
    grow: Annotated[
        int,
        typer.Option(
            "--grow", metavar="COUNT", min=0, help="Raise the number of partitions to this."
        ),
    ] = 0,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print the number of partitions (0: not partitioned), or raise it."""
    path = f"{path_of_topic(topic)}/partitions"
    if grow:
        broker_client(url).change("POST", path, body=grow)
    say(str(broker_client(url).get(path)["partitions"]))


def delete(
    topic: TopicArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete a topic in use: disconnect its clients.")
    ] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a topic with its messages, and all of its partitions."""
    confirm(f"Delete {topic} and all its messages?", yes=yes)
    path = path_of_topic(topic)
    if _partitions_of(url, path):
        path += "/partitions"
    broker_client(url).change("DELETE", path, {"force": "true"} if force else {})


def terminate(
    topic: TopicArgument, yes: YesOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Terminate a topic: publishes are rejected, consumers can read to its end."""
    confirm(f"Terminate {topic}? That cannot be undone.", yes=yes)
    path = path_of_topic(topic)
    end = "terminate/partitions" if _partitions_of(url, path) else "terminate"
    broker_client(url).change("POST", f"{path}/{end}")


def _partitions_of(url: str, path: str) -> int:
    return int(broker_client(url).get(f"{path}/partitions")["partitions"])
