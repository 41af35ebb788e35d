"""Commands that manage tenants and namespaces: admin tenants, admin namespaces."""

from typing import Annotated

import typer

from magnetar.deploy.admin_shared import (
    DEFAULT_ADMIN_URL,
    NamespaceArgument,
    UrlOption,
    YesOption,
    broker_client,
    confirm,
    path_of_namespace,
)
from magnetar.deploy.printing import print_json, say

tenants = typer.Typer(no_args_is_help=True, help="Create, list and delete tenants.")

TenantArgument = Annotated[str, typer.Argument(help="Name of the tenant.")]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Also delete everything in it, if the brokers allow it."),
]
RolesOption = Annotated[
    str, typer.Option("--admin-roles", metavar="ROLES", help="Admin roles, separated by commas.")
]
ClustersOption = Annotated[
    str,
    typer.Option(
        "--allowed-clusters",
        metavar="NAMES",
        help="Allowed clusters, separated by commas; default: all.",
    ),
]


@tenants.command("list")
def list_tenants(url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the names of all tenants."""
    for name in broker_client(url).get("/admin/v2/tenants"):
        say(name)


@tenants.command("get")
def get_tenant(tenant: TenantArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print one tenant as JSON."""
    print_json(broker_client(url).get(f"/admin/v2/tenants/{_quoted(tenant)}"))


@tenants.command("create")
def create_tenant(
    tenant: TenantArgument,
    roles: RolesOption = "",
    clusters: ClustersOption = "",
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Create a tenant."""
    _put_tenant("PUT", tenant, roles, clusters, url)


@tenants.command("update")
def update_tenant(
    tenant: TenantArgument,
    roles: RolesOption = "",
    clusters: ClustersOption = "",
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Replace the admin roles and clusters of a tenant."""
    _put_tenant("POST", tenant, roles, clusters, url)


def _put_tenant(method: str, tenant: str, roles: str, clusters: str, url: str) -> None:
    client = broker_client(url)
    allowed = _parts(clusters) or client.get("/admin/v2/clusters")
    info = {"adminRoles": _parts(roles), "allowedClusters": allowed}
    client.change(method, f"/admin/v2/tenants/{_quoted(tenant)}", body=info)


@tenants.command("delete")
def delete_tenant(
    tenant: TenantArgument,
    force: ForceOption = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a tenant. Without --force it must have no namespaces."""
    confirm(f"Delete tenant {tenant}{' with all its topics' if force else ''}?", yes=yes)
    broker_client(url).change("DELETE", f"/admin/v2/tenants/{_quoted(tenant)}", _force(force))


def list_namespaces(tenant: TenantArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the namespaces of a tenant."""
    for name in broker_client(url).get(f"/admin/v2/namespaces/{_quoted(tenant)}"):
        say(name)


def show_policies(namespace: NamespaceArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the policies of a namespace as JSON."""
    print_json(broker_client(url).get(path_of_namespace(namespace)))


def create_namespace(
    namespace: NamespaceArgument,
    bundles: Annotated[
        int, typer.Option("--bundles", min=0, help="Number of bundles; 0: the default.")
    ] = 0,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Create a namespace."""
    body = {"bundles": {"numBundles": bundles}} if bundles else None
    broker_client(url).change("PUT", path_of_namespace(namespace), body=body)


def delete_namespace(
    namespace: NamespaceArgument,
    force: ForceOption = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a namespace. Without --force it must be empty."""
    confirm(f"Delete namespace {namespace}{' with all its topics' if force else ''}?", yes=yes)
    broker_client(url).change("DELETE", path_of_namespace(namespace), _force(force))


def add_to(namespaces: typer.Typer) -> None:
    """Add the commands that list, create and delete namespaces to their group."""
    namespaces.command("list")(list_namespaces)
    namespaces.command("policies")(show_policies)
    namespaces.command("create")(create_namespace)
    namespaces.command("delete")(delete_namespace)


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _force(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _parts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
