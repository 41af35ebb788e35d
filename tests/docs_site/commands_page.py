"""The command line reference of the docs site, made from the commands themselves."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from magnetar.deploy.cli import app

_INTRODUCTION = """# Commands

All commands with their arguments and options. [The command line](../command-line.md) shows daily
work, [exit statuses](../operations/troubleshooting.md#exit-statuses) what a status means.
`magnetar COMMAND --help` prints the same. Each option can be set by its variable.

This page is made from the commands of the release that it belongs to.
"""


def commands_page() -> str:
    """Return the page: a section for each top-level command, with its subcommands below it."""
    return "\n".join([_INTRODUCTION, *(_section(path, each) for path, each in commands())])


def commands() -> list[tuple[str, Any]]:
    """Return all commands, by path without the program's name. Any: typer exports no classes."""
    return list(_below(get_command(app), ""))


def _below(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(group, "commands", {}).items():
        if not each.hidden:
            full = f"{path} {name}".strip()
            yield full, each
            yield from _below(each, full)


def _section(path: str, command: Any) -> str:
    level = "##" if " " not in path else "###"
    lines = [f"{level} magnetar {path}", "", _plain(command.help or ""), ""]
    is_group = bool(getattr(command, "commands", None))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    options = [each for each in options if not each.hidden and each.name != "help"]
    words = [f"magnetar {path}", *map(_argument, arguments)]
    words += ["COMMAND …"] if is_group else []
    words += ["[OPTIONS]"] if options else []
    lines += ["```text", " ".join(words), "```", ""]
    if options or any(help_text(each) for each in arguments):
        lines += ["| argument or option | default | meaning |", "|---|---|---|"]
        lines += [_argument_row(each) for each in arguments] + [
            _option_row(each) for each in options
        ]
        lines.append("")
    return "\n".join(lines)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name).strip("[]").upper()
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _argument_row(argument: Any) -> str:
    default = "" if argument.required else default_text(argument.default)
    return f"| `{_argument(argument)}` | {default} | {help_text(argument)} |"


def _option_row(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    variables = option.envvar or ()
    variables = [variables] if isinstance(variables, str) else variables
    text = help_text(option)
    if variables:
        text = f"{text} Variable: {', '.join(f'`{each}`' for each in variables)}.".strip()
    default = "required" if option.required else default_text(option.default)
    return f"| {names} | {default} | {text} |"


def help_text(parameter: Any) -> str:
    """Return the help of a parameter as a cell of a table."""
    return _plain(getattr(parameter, "help", None) or "").replace("\n", " ").replace("|", "\\|")


def default_text(default: Any) -> str:
    """Return a default as a cell of a table; empty if there is none."""
    if callable(default) and not isinstance(default, type):
        return "computed"
    if isinstance(default, Enum):
        default = default.value
    if default is None or default == "" or default == () or default == [] or default == {}:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if not isinstance(default, str | int | float | tuple | list):
        return ""
    text = ", ".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
    return f"`{text}`"


def _plain(text: str) -> str:
    """Markdown text of a help: without the marks that click puts in, and with `<` escaped."""
    text = text.replace("\b", "").replace("\f", "")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*")
        for part in parts
    ).strip()
