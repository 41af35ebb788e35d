"""The commands of `magnetar admin schemas`: show, register and delete schemas."""

import json
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
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.printing import print_json, say, time_in_words

schemas = typer.Typer(no_args_is_help=True, help="Show, register and delete schemas of topics.")

FileOption = Annotated[
    typer.FileText,
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help='The schema as JSON: {"type": "AVRO", "schema": "...", "properties": {}}; - is stdin.',
    ),
]


@schemas.command("get")
def get_schema(
    topic: TopicArgument,
    version: Annotated[
        int, typer.Option("--version", min=-1, help="Version; -1: the current one.")
    ] = -1,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print the schema of a topic."""
    found = _ask(url, "GET", topic, "schema" if version < 0 else f"schema/{version}")
    if as_json:
        print_json(found, indent=2)
        return
    for name in ("version", "type", "timestamp", "properties"):
        value = time_in_words(found[name]) if name == "timestamp" else found[name]
        say(f"{name:<10}  {json.dumps(value) if isinstance(value, dict) else value}")
    say(f"{'schema':<10}  {found['data']}")


@schemas.command("list")
def list_schemas(
    topic: TopicArgument, as_json: JsonOption = False, url: UrlOption = DEFAULT_ADMIN_URL
) -> None:
    """Print all versions of a topic's schema, oldest first."""
    found = _ask(url, "GET", topic, "schemas")["getSchemaResponses"]
    if as_json:
        print_json(found, indent=2)
        return
    say(f"{'version':>7}  {'type':<15}  {'registered':<25}  bytes")
    for each in found:
        size = len(each["data"].encode())
        time = time_in_words(each["timestamp"])
        say(f"{each['version']:>7}  {each['type']:<15}  {time:<25}  {size}")


@schemas.command("metadata")
def metadata(topic: TopicArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the ledger of each version as JSON."""
    print_json(_ask(url, "GET", topic, "metadata"), indent=2)


@schemas.command("upload")
def upload(topic: TopicArgument, file: FileOption, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Register a schema and print its version. It must be compatible with earlier versions."""
    say(str(_ask(url, "POST", topic, "schema", _read(file))["version"]["version"]))


@schemas.command("version")
def version_of(topic: TopicArgument, file: FileOption, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the version that a schema has on a topic."""
    say(str(_ask(url, "POST", topic, "version", _read(file))["version"]))


@schemas.command("compatibility")
def compatibility(
    topic: TopicArgument,
    file: FileOption,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Print whether a schema is compatible; end with status 1 if not."""
    found = _ask(url, "POST", topic, "compatibility", _read(file))
    if as_json:
        print_json(found, indent=2)
    else:
        fits = "compatible" if found["compatibility"] else "not compatible"
        say(f"{fits} by strategy {found['schemaCompatibilityStrategy']}")
    if not found["compatibility"]:
        raise typer.Exit(1)


@schemas.command("delete")
def delete(
    topic: TopicArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete all versions: their messages become unreadable."),
    ] = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete the schema of a topic. Messages published with it stay readable."""
    what = "with all versions? Messages become unreadable." if force else "?"
    confirm(f"Delete the schema of {topic}{' ' if force else ''}{what}", yes=yes)
    found = _ask(url, "DELETE", topic, "schema?force=true" if force else "schema")
    say(str(found["version"]))


def _ask(url: str, method: str, topic: str, action: str, body: object = None) -> Any:
    from magnetar.deploy import admin_client

    name = admin_client.topic_path(admin_client.topic_argument(topic)).partition("/")[2]
    path = f"/admin/v2/schemas/{name}/{action}"
    return broker_client(url).ask(method, path, body=body)


def _read(file: typer.FileText) -> object:
    """Parse the schema file.

    Raises:
        SettingsError: the file is not a JSON object.
    """
    try:
        found = json.loads(file.read())
    except ValueError as error:
        raise SettingsError(f"{file.name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SettingsError(
            f'{file.name} is not a JSON object: give {{"type": ..., "schema": ...}}'
        )
    return found
