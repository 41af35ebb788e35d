"""Layout of the help pages for narrow terminals.

A flag takes no value, so its page shows no type for it. Names of environment variables are too long
for the column of an option, which would cut them: they stand below the options, in full.
"""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

_VARIABLES = "Options may also be set in the environment: "


def command_of(app: typer.Typer) -> TyperCommand | TyperGroup:
    """Make the command of an application, with all of its pages laid out."""
    command = get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)
    _lay_out(command)
    return command


def _lay_out(command: TyperCommand | TyperGroup) -> None:
    find_help_option = command.get_help_option

    def help_option(*context: Any) -> Any:
        option = find_help_option(*context)  # made for each page, and not among the parameters
        if option is not None:
            option.metavar = ""
        return option

    of_this_command: Any = help_option
    command.get_help_option = of_this_command  # type: ignore[method-assign]
    variables = []
    for parameter in command.params:
        if not isinstance(parameter, TyperOption):
            continue
        if parameter.is_flag and parameter.metavar is None:
            parameter.metavar = ""
        if isinstance(parameter.envvar, str) and parameter.show_envvar:
            parameter.show_envvar = False
            variables.append(f"{parameter.envvar} ({parameter.opts[0]})")
    if variables:
        told = f"{_VARIABLES}{', '.join(variables)}."
        command.epilog = f"{command.epilog}\n\n{told}" if command.epilog else told
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            assert isinstance(each, TyperCommand | TyperGroup)
            _lay_out(each)
