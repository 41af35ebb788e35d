"""The commands that look into the files of a bookie, and mend them: bookie-tool."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging

if TYPE_CHECKING:
    from magnetar.deploy.bookie_tool import BookieTool

bookie_tool = typer.Typer(
    no_args_is_help=True,
    help="Look into the files of a bookie, check them, mend them. Nothing is changed by a command "
    "whose help does not say so; those that change files need the bookie stopped.",
)

DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The bookie's data directory."),
]
JournalsOption = Annotated[
    list[Path] | None,
    typer.Option("--journal-directory", metavar="DIR", help="As the bookie was told; repeatable."),
]
LedgersOption = Annotated[
    list[Path] | None,
    typer.Option("--ledger-directory", metavar="DIR", help="As the bookie was told; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@bookie_tool.command()
def cookie(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the cookie in every directory: whose data it is, and which directory."""
    _tool(data, journal_directory, ledger_directory, as_json).cookies()


@bookie_tool.command()
def marks(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the last marks: from where on each journal is replayed at a start."""
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
    """Print the records of a journal file, and the bytes in it that are none."""
    _tool(file.parent, None, None, as_json).journal(file, ledger_id=ledger)


@bookie_tool.command()
def logs(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the entry logs: size, ledgers, how much of each is still pointed to."""
    _tool(data, journal_directory, ledger_directory, as_json).logs()


@bookie_tool.command()
def log(
    file: Annotated[Path, typer.Argument(help="A file that `logs` lists.")],
    ledger: Annotated[int | None, typer.Option(help="Only runs of this ledger.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the runs of an entry log, each checked to its last byte."""
    _tool(file.parent, None, None, as_json).log(file, ledger_id=ledger)


@bookie_tool.command()
def ledgers(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the ledgers that the index knows: fenced, in limbo, LAC, highest entry.

    What only the journal has yet is not shown; `journal` shows it.
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
    """Print where the entries of a ledger lie."""
    _tool(data, journal_directory, ledger_directory, as_json).ledger(ledger_id)


@bookie_tool.command()
def verify(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything and check it: cookies, marks, journals, index, every byte of the entry logs.

    Prints what is wrong, with file, offset, ledger and entries, then the counts. Ends with 11 if
    something is damaged.
    """
    _tool(data, journal_directory, ledger_directory, as_json).verify()


@bookie_tool.command("rebuild-index")
def rebuild_index(
    data: DataOption,
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without it, say what would be.")
    ] = False,
) -> None:
    """CHANGES FILES: make a new index from the entry logs, when the old one is lost or damaged.

    Ledger states that the old index cannot tell any more are made safe: the ledger is fenced, and
    what is not found of it is not called absent until it was compared with the other bookies.
    """
    _tool(data, journal_directory, ledger_directory, as_json).rebuild_index(do=yes)


@bookie_tool.command("rebuild-footer")
def rebuild_footer(
    file: Annotated[Path, typer.Argument(help="An entry log without a footer.")],
    as_json: JsonOption = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without it, say what would be.")
    ] = False,
) -> None:
    """CHANGES FILES: write the footer of an entry log that has none, so that it is not scanned."""
    _tool(file.parent, None, None, as_json).rebuild_footer(file, do=yes)


@bookie_tool.command()
def convert(
    data: DataOption,
    to: Annotated[Literal["db", "interleaved"], typer.Option("--to", help="The engine wanted.")],
    metadata: Annotated[
        str, typer.Option("--metadata", metavar="URL", help="The cluster: its cookie says it too.")
    ],
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without it, say what would be.")
    ] = False,
) -> None:
    """CHANGES FILES: give a bookie the other storage engine. The entry logs stay as they are."""
    _tool(data, journal_directory, ledger_directory, as_json).convert(to, metadata, do=yes)


@bookie_tool.command()
def gc(
    data: DataOption,
    metadata: Annotated[
        str, typer.Option("--metadata", metavar="URL", help="Which ledgers there are.")
    ],
    journal_directory: JournalsOption = None,
    ledger_directory: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what garbage collection would free. Nothing is freed."""
    _tool(data, journal_directory, ledger_directory, as_json).gc(metadata)


def _tool(
    data: Path, journals: list[Path] | None, ledgers: list[Path] | None, as_json: bool
) -> "BookieTool":
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    from magnetar.deploy.bookie_tool import BookieTool

    return BookieTool(data, journals or [], ledgers or [], as_json=as_json)
