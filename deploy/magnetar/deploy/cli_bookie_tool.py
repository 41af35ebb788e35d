"""`magnetar bookie-tool`: commands that inspect and repair the files of a bookie."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import ConfigOption, sources_of

if TYPE_CHECKING:
    from magnetar.deploy.bookie_tool import BookieTool

bookie_tool = typer.Typer(
    no_args_is_help=True,
    help="Inspect, verify and repair the files of a bookie. A command that changes files says "
    "so, and needs the bookie stopped.",
)

DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The bookie's data directory."),
]
JournalsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--journal-directory", metavar="DIR", help="As in the bookie's settings; may be repeated."
    ),
]
LedgersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--ledger-directory", metavar="DIR", help="As in the bookie's settings; may be repeated."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@bookie_tool.command()
def cookie(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the cookie in each directory: bookie id, cluster, role of the directory."""
    _tool(data, journal_directory, ledger_directory, as_json).cookies()


@bookie_tool.command()
def marks(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the last marks: the position from which a start replays each journal."""
    _tool(data, journal_directory, ledger_directory, as_json).marks()


@bookie_tool.command()
def journals(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the journal files."""
    _tool(data, journal_directory, ledger_directory, as_json).journals()


@bookie_tool.command()
def journal(
    file: Annotated[Path, typer.Argument(help="A file that `journals` lists.")],
    ledger: Annotated[int | None, typer.Option(help="Only records of this ledger.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the records of a journal file, and bytes that are not records."""
    _tool(file.parent, None, None, as_json).journal(file, ledger_id=ledger)


@bookie_tool.command()
def logs(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the entry logs: size, ledgers, bytes in runs."""
    _tool(data, journal_directory, ledger_directory, as_json).logs()


@bookie_tool.command()
def log(
    file: Annotated[Path, typer.Argument(help="A file that `logs` lists.")],
    ledger: Annotated[int | None, typer.Option(help="Only runs of this ledger.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the runs of an entry log and verify each one."""
    _tool(file.parent, None, None, as_json).log(file, ledger_id=ledger)


@bookie_tool.command()
def ledgers(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the ledgers that the index knows: fenced, in limbo, LAC, highest entry.

    Entries that are only in the journal are not shown; `journal` shows them.
    """
    _tool(data, journal_directory, ledger_directory, as_json).ledgers()


@bookie_tool.command()
def ledger(
    ledger_id: Annotated[int, typer.Argument(help="Id of the ledger.")],
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the locations of the entries of a ledger."""
    _tool(data, journal_directory, ledger_directory, as_json).ledger(ledger_id)


@bookie_tool.command()
def verify(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify cookies, marks, journals, index, and every byte of the entry logs.

    Print each problem with file, offset, ledger and entries, then the counts. End with status 11
    if files are damaged.
    """
    _tool(data, journal_directory, ledger_directory, as_json).verify()


@bookie_tool.command("rebuild-index")
def rebuild_index(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Change the files; without it, only print what would change."),
    ] = False,
) -> None:
    """CHANGES FILES: rebuild a lost or damaged index from the entry logs.

    If the old index has lost the state of a ledger, the ledger is fenced. The bookie then does not
    deny entries of that ledger until it has compared the ledger with the other bookies.
    """
    _tool(data, journal_directory, ledger_directory, as_json).rebuild_index(do=yes)


@bookie_tool.command("rebuild-footer")
def rebuild_footer(
    file: Annotated[Path, typer.Argument(help="An entry log without a footer.")],
    as_json: JsonOption = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Change the files; without it, only print what would change."),
    ] = False,
) -> None:
    """CHANGES FILES: write the missing footer of an entry log, which saves scanning it."""
    _tool(file.parent, None, None, as_json).rebuild_footer(file, do=yes)


@bookie_tool.command()
def convert(
    data: DataOption,
    to: Annotated[
        Literal["db", "interleaved"], typer.Option("--to", help="Storage engine to convert to.")
    ],
    metadata: Annotated[
        str,
        typer.Option(
            "--metadata",
            metavar="URL",
            help="Metadata store of the cluster, to check the bookie's cookie there.",
        ),
    ],
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Change the files; without it, only print what would change."),
    ] = False,
) -> None:
    """CHANGES FILES: convert a bookie to the other storage engine. Entry logs stay unchanged."""
    _tool(data, journal_directory, ledger_directory, as_json).convert(to, metadata, do=yes)


@bookie_tool.command()
def gc(
    context: typer.Context,
    data: DataOption,
    metadata: Annotated[
        str,
        typer.Option("--metadata", metavar="URL", help="Metadata store, which lists the ledgers."),
    ],
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print what garbage collection would free; free nothing.

    Give the bookie's --config and environment: their gc_ settings decide.
    """
    del config
    _tool(data, journal_directory, ledger_directory, as_json).gc(metadata, sources_of(context))


def _tool(
    data: Path, journals: list[Path] | None, ledgers: list[Path] | None, as_json: bool
) -> "BookieTool":
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    from magnetar.deploy.bookie_tool import BookieTool

    return BookieTool(data, journals or [], ledgers or [], as_json=as_json)
