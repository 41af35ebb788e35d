"""`magnetar backup` and `magnetar restore`: backups of topics in the object store.

They use the metadata store, the bookies and the object stores, and read the brokers' settings to
find the stores. Only `backup create --copy-open` sends requests to brokers.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from magnetar.deploy.admin_shared import DEFAULT_ADMIN_URL, AdminUrlOption, YesOption
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.options import ConfigOption, sources_of

if TYPE_CHECKING:
    from magnetar.deploy.backup_tools import BackupTools

backup = typer.Typer(
    no_args_is_help=True,
    help="Back up topics that are in an object store: make, list, show and delete backups.",
)

MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="MAGNETAR_BACKUP_METADATA",
        metavar="URL",
        help="Metadata store: zk://host:port[,host:port]/path or embedded:PATH.",
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="NAME",
        help="Object store that backups are in; default: offload_store of the brokers' settings.",
    ),
]
FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="ID",
        help="Instance id of the cluster that made the backup; default: this cluster's.",
    ),
]
TenantOption = Annotated[str, typer.Option("--tenant", help="Only this tenant.")]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", help="Only this namespace, as tenant/namespace.")
]
TopicOption = Annotated[
    str, typer.Option("--topic", help="Only this topic, with all its partitions.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the backup.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@backup.command()
def create(
    context: typer.Context,
    metadata: MetadataOption,
    name: Annotated[
        str, typer.Option("--name", help="Name of the backup; default: the time, in UTC.")
    ] = "",
    tenant: TenantOption = "",
    namespace: NamespaceOption = "",
    topic: TopicOption = "",
    copy_open: Annotated[
        bool,
        typer.Option(
            "--copy-open",
            help="Unload the topics first and copy all their ledgers to the object store, so that "
            "nothing is left out. Clients reconnect.",
        ),
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", min=1, help="With --copy-open: seconds for each topic.")
    ] = 3600,
    admin_url: AdminUrlOption = DEFAULT_ADMIN_URL,
    store: StoreOption = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Make a backup. Print what is not in it: ledgers that are not in the object store yet, and
    scalable topics.

    Topics can be used meanwhile. The objects of the backup are kept until it is deleted.
    """
    _run(
        context,
        metadata,
        store,
        lambda tools: tools.create(
            name,
            tools.scope(tenant=tenant, namespace=namespace, topic=topic),
            admin_url=admin_url if copy_open else "",
            wait_s=wait_s,
            as_json=as_json,
        ),
    )


@backup.command("list")
def list_backups(
    context: typer.Context,
    metadata: MetadataOption,
    instance_id: FromOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print all backups of a cluster. Unfinished ones cannot be restored: delete them."""
    _run(
        context,
        metadata,
        store,
        lambda tools: tools.list_backups(instance_id, as_json=as_json),
    )


@backup.command()
def show(
    context: typer.Context,
    name: NameArgument,
    metadata: MetadataOption,
    instance_id: FromOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print the topics of a backup, and what of each is not in it."""
    _run(context, metadata, store, lambda tools: tools.show(name, instance_id, as_json=as_json))


@backup.command()
def delete(
    context: typer.Context,
    name: NameArgument,
    metadata: MetadataOption,
    yes: YesOption = False,
    store: StoreOption = "",
    config: ConfigOption = None,
) -> None:
    """Delete a backup of this cluster, also an unfinished one.

    Objects that neither a topic nor another backup names are then deleted by the brokers. A cluster
    that was restored from the backup loses its messages with them.
    """
    if not yes:
        typer.confirm(
            f"Delete backup {name}? The messages of clusters that were restored from it go with "
            "it, unless this cluster still has them.",
            abort=True,
            err=True,
        )
    _run(context, metadata, store, lambda tools: tools.delete(name))


def restore(
    context: typer.Context,
    name: NameArgument,
    metadata: MetadataOption,
    instance_id: FromOption = "",
    tenant: TenantOption = "",
    namespace: NamespaceOption = "",
    topic: TopicOption = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything and print what would be restored."),
    ] = False,
    with_gaps: Annotated[
        bool,
        typer.Option(
            "--with-gaps",
            help="Restore messages behind missing ledgers, too. By default, a restored topic ends "
            "before the first missing ledger.",
        ),
    ] = False,
    ledger_ids_max: Annotated[
        int,
        typer.Option(
            min=0, help="Most ledger ids to skip until new ids are above the restored ones."
        ),
    ] = 10_000_000,
    store: StoreOption = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Restore topics from a backup into a cluster that does not have them.

    Message ids, subscriptions, schemas, policies and rights are those of the backup. Everything is
    checked before anything is written; a restore that was broken off can be repeated.
    """
    _run(
        context,
        metadata,
        store,
        lambda tools: tools.restore(
            name,
            instance_id,
            tools.scope(tenant=tenant, namespace=namespace, topic=topic),
            is_dry_run=dry_run,
            keeps_gaps=with_gaps,
            ids_max=ledger_ids_max,
            as_json=as_json,
        ),
    )


def add_backup(app: typer.Typer) -> None:
    """Add both commands."""
    app.add_typer(backup, name="backup", rich_help_panel="Daily tools")
    app.command(rich_help_panel="Daily tools")(restore)


def _run(
    context: typer.Context,
    metadata: str,
    store: str,
    work: "Callable[[BackupTools], Awaitable[None]]",
) -> None:
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    from magnetar.deploy import backup_tools

    backup_tools.run(metadata, sources_of(context), store, work)
