"""The command `magnetar doctor`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from magnetar.deploy.admin_shared import DEFAULT_ADMIN_URL, AdminUrlOption
from magnetar.deploy.options import DEFAULT_URL, UrlOption


def doctor(
    url: UrlOption = DEFAULT_URL,
    admin_url: AdminUrlOption = DEFAULT_ADMIN_URL,
    metadata: Annotated[
        str,
        typer.Option(
            "--metadata",
            envvar="MAGNETAR_ADMIN_METADATA",
            metavar="URL",
            help="Metadata store to look at as well: zk://host:port[,host:port]/path.",
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="PATH", help="Data directory of a server here: room on its disk."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per finding.")
    ] = False,
) -> None:
    """Look for problems between here and a cluster, and say what to do.

    Checks the token, the clock, the service URL, the address that each broker advertises, the HTTP
    interface, bookies and, if given, the metadata store and a disk. Changes nothing. Ends with the
    status of the first check that failed.
    """
    import asyncio

    from magnetar.deploy.credentials import ClientCredentials
    from magnetar.deploy.doctor import Doctor, Examined
    from magnetar.deploy.findings import Finding, State
    from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
    from magnetar.deploy.tools import service_url

    configure_logging(LogLevel.ERROR, LogFormat.AUTO, stream=sys.stderr)
    examined = Examined(url=service_url(url), admin_url=admin_url, metadata=metadata, data=data)

    async def look() -> list[Finding]:
        found = []
        async for each in Doctor(examined, ClientCredentials.of_environment()).findings():
            sys.stdout.write(f"{json.dumps(asdict(each)) if as_json else each.line()}\n")
            sys.stdout.flush()
            found.append(each)
        return found

    failed = [each for each in asyncio.run(look()) if each.state is State.FAILED]
    if failed:
        raise typer.Exit(failed[0].status or 1)
