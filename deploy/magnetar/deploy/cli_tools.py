"""The commands that talk to a broker: produce, consume, read."""

from typing import Annotated

import typer

from magnetar.deploy.options import DEFAULT_URL, UrlOption


def add_tools(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(rich_help_panel="Daily tools")(produce)
    app.command(rich_help_panel="Daily tools")(consume)
    app.command(rich_help_panel="Daily tools")(read)


TopicArgument = Annotated[
    str, typer.Argument(help="Topic: a short name, or persistent://tenant/namespace/name.")
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object per line: id, key, properties, payload."),
]


def produce(
    topic: TopicArgument,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message", "-m", help="Payload; may be repeated. Default: each line of stdin."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of every message."),
    ] = None,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is", help="Send payloads unchanged, without encoding by the topic's schema."
        ),
    ] = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Publish messages; end when all of them are stored.

    If the topic has a schema, each payload is encoded by it. Give JSON for AVRO, JSON and number
    schemas.
    """
    from magnetar.deploy import tools

    tools.run(
        tools.produce(
            url=url,
            topic=topic,
            payloads=tools.payloads_of(messages),
            key=key,
            properties=tools.parse_properties(properties or []),
            as_is=as_is,
        )
    )


def consume(
    topic: TopicArgument,
    subscription: Annotated[
        str,
        typer.Option("--subscription", "-s", help="Subscription; created if it does not exist."),
    ],
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0: never.")
    ] = 0,
    kind: Annotated[
        str, typer.Option("--type", "-t", help="exclusive, failover, shared or key_shared.")
    ] = "exclusive",
    initial: Annotated[
        str,
        typer.Option("--initial", help="Start position of a new subscription: earliest or latest."),
    ] = "latest",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Print messages of a subscription and acknowledge them."""
    from magnetar.deploy import tools

    tools.run(
        tools.consume(
            url=url,
            topic=topic,
            subscription=subscription,
            count=count,
            kind=kind,
            initial=initial,
            as_json=as_json,
        )
    )


def read(
    topic: TopicArgument,
    start: Annotated[
        str, typer.Option("--start", help="Start position: earliest, latest or LEDGER:ENTRY.")
    ] = "earliest",
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0: never.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages at the end of the topic.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Print messages of a topic without a subscription."""
    from magnetar.deploy import tools

    tools.run(
        tools.read(url=url, topic=topic, start=start, count=count, follow=follow, as_json=as_json)
    )
