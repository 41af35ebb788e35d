"""The commands of `magnetar context`: named addresses and credentials of clusters."""

import json
import os
import sys
from typing import Annotated

import typer

from magnetar.deploy.admin_shared import JsonOption
from magnetar.deploy.errors import SettingsError

context = typer.Typer(
    no_args_is_help=True,
    help="Keep addresses and credentials of clusters under names. Environment variables and "
    "options go before the context; `magnetar --context NAME …` uses one for a single command.",
)

NameArgument = Annotated[str, typer.Argument(help="Name of the context.")]


@context.command("list")
def list_contexts(as_json: JsonOption = False) -> None:
    """Print all contexts; `*` marks the one in use."""
    from magnetar.deploy.contexts import contexts_file, read_contexts

    contexts = read_contexts(contexts_file(os.environ))
    if as_json:
        sys.stdout.write(
            f"{json.dumps({'current': contexts.current, 'contexts': contexts.known})}\n"
        )
        return
    for name, values in sorted(contexts.known.items()):
        mark = "*" if name == contexts.current else " "
        sys.stdout.write(f"{mark} {name:<20} {values.get('url', '')}".rstrip() + "\n")


@context.command("show")
def show_context(
    name: Annotated[str, typer.Argument(help="Name of the context; default: the one in use.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Print a context."""
    from magnetar.deploy.contexts import contexts_file, read_contexts

    contexts = read_contexts(contexts_file(os.environ))
    chosen = name or contexts.current
    if not chosen:
        raise SettingsError("no context is in use: give a NAME, or `magnetar context use NAME`")
    found = contexts.named(chosen)
    if as_json:
        sys.stdout.write(f"{json.dumps({'name': chosen, **found})}\n")
        return
    sys.stdout.write(f"{'name':<16}{chosen}\n")
    for key, value in found.items():
        sys.stdout.write(f"{key.replace('_', '-'):<16}{value}\n")


@context.command("set")
def set_context(
    name: NameArgument,
    url: Annotated[str | None, typer.Option("--url", help="Service URL of a broker.")] = None,
    admin_url: Annotated[
        str | None, typer.Option("--admin-url", help="HTTP address of a broker.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="URL", help="URL of the metadata store.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="PATH", help="File of a token.")
    ] = None,
    basic_file: Annotated[
        str | None, typer.Option("--basic-file", metavar="PATH", help="File of USER:PASSWORD.")
    ] = None,
    tls_trust: Annotated[
        str | None, typer.Option("--tls-trust", metavar="PATH", help="PEM file of authorities.")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="PATH", help="PEM file.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="PATH", help="PEM file of its key.")
    ] = None,
) -> None:
    """Make a context, or change one. Options that are not given keep their values; an empty text
    removes a value.

    The first context is in use at once.
    """
    from magnetar.deploy.contexts import contexts_file, read_contexts, write_contexts

    given = {"url": url, "admin_url": admin_url, "metadata": metadata}
    files = {
        "token_file": token_file,
        "basic_file": basic_file,
        "tls_trust": tls_trust,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
    }
    values = {key: value for key, value in given.items() if value is not None}
    for key, value in files.items():
        if value is not None:
            # Absolute paths: a context works from every directory.
            values[key] = os.path.abspath(os.path.expanduser(value)) if value else ""
    path = contexts_file(os.environ)
    contexts = read_contexts(path)
    contexts.set(name, values)
    write_contexts(path, contexts)


@context.command("use")
def choose_context(name: NameArgument) -> None:
    """Use a context from now on."""
    from magnetar.deploy.contexts import contexts_file, read_contexts, write_contexts

    path = contexts_file(os.environ)
    contexts = read_contexts(path)
    contexts.named(name)
    contexts.current = name
    write_contexts(path, contexts)


@context.command("delete")
def delete_context(name: NameArgument) -> None:
    """Delete a context. Files that it names stay."""
    from magnetar.deploy.contexts import contexts_file, read_contexts, write_contexts

    path = contexts_file(os.environ)
    contexts = read_contexts(path)
    contexts.delete(name)
    write_contexts(path, contexts)
