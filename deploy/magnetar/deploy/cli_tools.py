"""Commands for daily use: produce, consume, read, doctor, context."""

from typing import TYPE_CHECKING, Annotated

import typer

from magnetar.deploy.admin_shared import TopicArgument
from magnetar.deploy.cli_context import context
from magnetar.deploy.cli_doctor import doctor
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.options import DEFAULT_URL, UrlOption, parse_properties, text_of
from magnetar.deploy.quantities import duration_ms

if TYPE_CHECKING:
    from magnetar.deploy.tools import Shown

CREDENTIALS_EPILOG = (
    "Credentials: MAGNETAR_TOKEN (a token, or file:///PATH), MAGNETAR_BASIC (USER:PASSWORD), "
    "MAGNETAR_TLS_CERTIFICATE with MAGNETAR_TLS_KEY; MAGNETAR_TLS_TRUST: PEM file of authorities."
)


def add_tools(app: typer.Typer) -> None:
    """Register the commands of this file."""
    for command in (produce, consume, read):
        app.command(rich_help_panel="Daily tools", epilog=CREDENTIALS_EPILOG)(command)
    app.command(rich_help_panel="Daily tools", epilog=CREDENTIALS_EPILOG)(doctor)
    app.add_typer(context, name="context", rich_help_panel="Daily tools")


JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object per line: id, key, properties, payload. `magnetar produce "
        "--json` takes these lines.",
    ),
]
AsIsOption = Annotated[
    bool,
    typer.Option("--as-is", help="Print payloads undecoded, though the topic has a schema."),
]
RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Print the bytes of payloads and nothing else: no ends of lines."),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        "-F",
        metavar="TEXT",
        show_default=False,
        help="Print each message as this text says: %v value, %k key, %p properties, %p{NAME} one "
        "of them, %i id, %t topic, %T publish time in ms, %d as a date, %e event time in ms, %%; "
        r"\n, \t, \0. As '%k %v'.",
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        show_default=False,
        help="Stop when nothing comes for so long, as 10s; default: wait for ever.",
    ),
]
CountOption = Annotated[
    int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0: never.")
]

FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        "-f",
        metavar="PATH",
        help="File that is one message; - is the whole of stdin; may be repeated.",
    ),
]

KeySeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        help="Each line of stdin is a key, this text, and a payload.",
    ),
]

EncodedOption = Annotated[
    bool,
    typer.Option(
        "--as-is", help="Send payloads unchanged, without encoding by the topic's schema."
    ),
]


def produce(
    topic: TopicArgument,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message", "-m", help="Payload; may be repeated. Default: each line of stdin."
        ),
    ] = None,
    files: FilesOption = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Each line of stdin is a JSON object, as `magnetar read --json` prints."
        ),
    ] = False,
    key_separator: KeySeparatorOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Key of every message that has none of its own."),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of every message."),
    ] = None,
    as_is: EncodedOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Publish messages; end when all of them are stored.

    If the topic has a schema, each payload is encoded by it. Give JSON for AVRO, JSON and number
    schemas.
    """
    from magnetar.deploy import message_sources, tools

    source = message_sources.source_of(
        messages or (), files or (), is_json=as_json, key_separator=key_separator
    )
    tools.run(
        tools.produce(
            url=url,
            topic=topic,
            messages=source,
            key=None if key is None else text_of("--key", key),
            properties=parse_properties(properties or []),
            as_is=as_is,
            is_large=bool(files),
        )
    )


def consume(
    topic: TopicArgument,
    subscription: Annotated[
        str,
        typer.Option("--subscription", "-s", help="Subscription; created if it does not exist."),
    ],
    count: CountOption = 0,
    kind: Annotated[
        str, typer.Option("--type", "-t", help="exclusive, failover, shared or key_shared.")
    ] = "exclusive",
    initial: Annotated[
        str,
        typer.Option("--initial", help="Start position of a new subscription: earliest or latest."),
    ] = "latest",
    timeout: TimeoutOption = "0",
    as_json: JsonOption = False,
    as_is: AsIsOption = False,
    raw: RawOption = False,
    text_format: FormatOption = "",
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Print messages of a subscription and acknowledge them."""
    from magnetar.deploy import tools

    tools.run(
        tools.consume(
            url=url,
            topic=topic,
            subscription=subscription,
            kind=kind,
            initial=initial,
            shown=shown_by(
                as_json=as_json,
                raw=raw,
                text_format=text_format,
                as_is=as_is,
                count=count,
                timeout=timeout,
            ),
        )
    )


def read(
    topic: TopicArgument,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="PLACE",
            help="Start position: earliest, latest, an id as --json prints it, or a time: -1h, "
            "2026-11-26T23:00. Default: earliest.",
        ),
    ] = "",
    last: Annotated[
        int,
        typer.Option("--last", metavar="N", min=0, help="Start with the newest N messages."),
    ] = 0,
    count: CountOption = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages at the end of the topic.")
    ] = False,
    timeout: TimeoutOption = "0",
    as_json: JsonOption = False,
    as_is: AsIsOption = False,
    raw: RawOption = False,
    text_format: FormatOption = "",
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Print messages of a topic without a subscription."""
    from magnetar.deploy import tools

    if last and start:
        raise SettingsError("--start and --last exclude each other: give one")
    if last > tools.LAST_MAX:
        raise SettingsError(f"bad --last {last}: at most {tools.LAST_MAX}")
    tools.run(
        tools.read(
            url=url,
            topic=topic,
            start=start or "earliest",
            last=last,
            follow=follow,
            shown=shown_by(
                as_json=as_json,
                raw=raw,
                text_format=text_format,
                as_is=as_is,
                count=count,
                timeout=timeout,
            ),
        )
    )


def shown_by(
    *,
    as_json: bool,
    raw: bool,
    text_format: str,
    as_is: bool = False,
    count: int = 0,
    timeout: str = "0",
) -> "Shown":
    """Return how messages are printed, from the options of a command that prints some.

    Raises:
        SettingsError: a bad option, or options that exclude each other.
    """
    from magnetar.deploy.message_format import parse_format
    from magnetar.deploy.tools import Shown

    return Shown(
        count=count,
        timeout_ms=duration_ms("--timeout", timeout),
        as_json=as_json,
        as_is=as_is,
        raw=raw,
        form=parse_format(text_format) if text_format else None,
    )
