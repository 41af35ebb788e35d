"""The commands of `magnetar admin transactions`: list coordinators, show and abort transactions."""

from typing import Annotated, Any

import typer

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    JsonOption,
    TopicArgument,
    UrlOption,
    YesOption,
    broker_client,
    confirm,
)
from magnetar.deploy.printing import print_json, say, time_in_words

transactions = typer.Typer(
    no_args_is_help=True, help="Show coordinators and transactions; abort a transaction."
)

MostArgument = Annotated[
    int, typer.Argument(min=0, help="Most significant bits of the transaction id: its coordinator.")
]
LeastArgument = Annotated[
    int, typer.Argument(min=0, help="Least significant bits of the transaction id: its number.")
]

_PREFIX = "/admin/v3/transactions"


@transactions.command("coordinators")
def coordinators(as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """List the transaction coordinators with broker and number of transactions."""
    found = _ask(url, "GET", "coordinators")
    if as_json:
        print_json(found, indent=2)
        return
    stats = _ask(url, "GET", "coordinatorStats")
    say(f"{'number':>6}  {'open':>7}  {'last id':>12}  broker")
    for each in found:
        of_it = stats[str(each["id"])]
        say(
            f"{each['id']:>6}  {of_it['ongoingTxnSize']:>7}  {of_it['leastSigBits']:>12}  "
            f"{each['brokerServiceUrl']}"
        )


@transactions.command("slow")
def slow(
    older_than_s: Annotated[
        float,
        typer.Option(
            "--older-than", metavar="S", min=0, help="Open for at least this many seconds."
        ),
    ] = 60.0,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """List transactions that have been open for a long time."""
    found = _ask(url, "GET", f"slowTransactions/{round(older_than_s * 1000)}")
    if as_json:
        print_json(found, indent=2)
        return
    say(f"{'id':<16}  {'status':<10}  {'begun':<25}  topics  subscriptions")
    for name, each in found.items():
        acked = sum(map(len, each["ackedPartitions"].values()))
        say(
            f"{name:<16}  {each['status']:<10}  {time_in_words(each['openTimestamp']):<25}  "
            f"{len(each['producedPartitions']):>6}  {acked:>13}"
        )


@transactions.command("show")
def show(most: MostArgument, least: LeastArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print an open transaction as JSON."""
    print_json(_ask(url, "GET", f"transactionMetadata/{most}/{least}"), indent=2)


@transactions.command("topic")
def of_topic(topic: TopicArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the transactions of a topic as JSON."""
    from magnetar.deploy import admin_client

    name = admin_client.topic_path(admin_client.topic_argument(topic)).partition("/")[2]
    print_json(_ask(url, "GET", f"transactionBufferStats/{name}"), indent=2)


@transactions.command("abort")
def abort(
    most: MostArgument,
    least: LeastArgument,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Abort a transaction: drop its messages, and deliver again what it acknowledged."""
    confirm(f"Abort transaction ({most},{least})?", yes=yes)
    _ask(url, "POST", f"abortTransaction/{most}/{least}")
    say(f"transaction ({most},{least}) is aborted")


def _ask(url: str, method: str, action: str) -> Any:
    return broker_client(url).ask(method, f"{_PREFIX}/{action}")
