"""`magnetar migrate` as a process: state directory, the two sides, and the printed lines."""

import asyncio
import sys
from pathlib import Path

import uvloop

from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import BrokerUnreachableError, DeployError, MigrationDiffersError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.migration.migration import Migration
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.selection import namespaces_wanted
from magnetar.deploy.migration.sides import Side
from magnetar.deploy.migration.state_directory import Asked, StateDirectory, wanted
from magnetar.sdk.errors import SdkError


def run(
    *,
    source: str,
    source_admin: str,
    target: str,
    target_admin: str,
    namespaces: str,
    state: Path,
    is_cut_over: bool,
) -> int:
    """Run one process of a migration; return the exit status. See `cli_migrate.py`.

    Raises:
        DeployError: an operator must do something, or source and target differ.
    """
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    names = namespaces_wanted(namespaces)
    directory = StateDirectory(state)
    if not directory.lock():
        if not is_cut_over:
            raise directory.locked_error()
        directory.ask_to_cut_over()
        say(
            f"the migration that runs in {state} cuts over now; its report will be "
            f"{state / 'report.txt'}"
        )
        return 0
    try:
        asked = wanted(
            directory.asked(),
            source=source,
            source_admin=source_admin,
            target=target,
            target_admin=target_admin,
            namespaces=names,
        )
        return _run(asked, directory, is_cut_over=is_cut_over)
    finally:
        directory.unlock()


def _run(asked: Asked, directory: StateDirectory, *, is_cut_over: bool) -> int:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(_migrate(asked, directory, is_cut_over=is_cut_over))
    except KeyboardInterrupt:
        say(f"stopped; it goes on with: magnetar migrate --state {directory.path}")
        return 130
    except SdkError as error:
        raise BrokerUnreachableError(" ".join(str(error).split())) from error
    if report is None:
        return 0
    for line in report.lines():
        say(line)
    _check_same(sum(report.differing.values()), directory)
    return 0


def _check_same(differences: int, directory: StateDirectory) -> None:
    if differences:
        raise MigrationDiffersError(
            f"{differences} differences between source and target: see "
            f"{directory.path / 'report.txt'}"
        )


async def _migrate(asked: Asked, directory: StateDirectory, *, is_cut_over: bool) -> Report | None:
    """Run the migration, or finish one whose cut-over is done; return the report, None in the
    latter case.

    Raises:
        MigrationDiffersError: the cut-over was done before, and its report has differences.
        SdkError, DeployError
    """
    source = Side(
        "source", asked.source, asked.source_admin, ClientCredentials.of_environment(side="FROM")
    )
    try:
        target = Side(
            "target", asked.target, asked.target_admin, ClientCredentials.of_environment(side="TO")
        )
    except DeployError:
        await source.close()
        raise
    try:
        migration = Migration(asked, directory, source, target, say)
        if asked.is_done:
            directory.show_report()
            directory.cut_over_ended()
            await migration.let_go()
            if directory.has_report:
                say(f"the cut-over is done; its report is {directory.path / 'report.txt'}")
            else:
                say(
                    "the cut-over is done, and messages and subscriptions are the same; its report "
                    f"is no longer in {directory.path}"
                )
            _check_same(directory.differences(), directory)
            return None
        directory.remember(asked)
        return await migration.run(is_cut_over=is_cut_over)
    finally:
        await source.close()
        await target.close()


def say(line: str) -> None:
    """Print a line, and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
