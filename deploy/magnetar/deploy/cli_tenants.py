"""The commands that manage tenants and namespaces: admin tenants, admin namespaces."""

import json
import sys
from typing import Annotated, Any

import typer

from magnetar.deploy.cli_topics import DEFAULT_ADMIN_URL, UrlOption, YesOption, confirm

tenants = typer.Typer(no_args_is_help=True, help="Create, list and delete tenants.")

TenantArgument = Annotated[str, typer.Argument(help="Name of the tenant.")]
NamespaceArgument = Annotated[str, typer.Argument(help="Namespace, as tenant/namespace.")]
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
    _print_lines(_client(url).get("/admin/v2/tenants"))


@tenants.command("get")
def get_tenant(tenant: TenantArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print one tenant as JSON."""
    _print_json(_client(url).get(f"/admin/v2/tenants/{_quoted(tenant)}"))


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
    client = _client(url)
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
    _client(url).change("DELETE", f"/admin/v2/tenants/{_quoted(tenant)}", _force(force))


def list_namespaces(tenant: TenantArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the namespaces of a tenant."""
    _print_lines(_client(url).get(f"/admin/v2/namespaces/{_quoted(tenant)}"))


def show_policies(namespace: NamespaceArgument, url: UrlOption = DEFAULT_ADMIN_URL) -> None:
    """Print the policies of a namespace as JSON."""
    _print_json(_client(url).get(_namespace_path(namespace)))


def create_namespace(
    namespace: NamespaceArgument,
    bundles: Annotated[
        int, typer.Option("--bundles", min=0, help="Number of bundles; 0: the default.")
    ] = 0,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Create a namespace."""
    body = {"bundles": {"numBundles": bundles}} if bundles else None
    _client(url).change("PUT", _namespace_path(namespace), body=body)


def delete_namespace(
    namespace: NamespaceArgument,
    force: ForceOption = False,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a namespace. Without --force it must be empty."""
    confirm(f"Delete namespace {namespace}{' with all its topics' if force else ''}?", yes=yes)
    _client(url).change("DELETE", _namespace_path(namespace), _force(force))


def add_to(namespaces: typer.Typer) -> None:
    """Put the commands for the life of namespaces into their group."""
    namespaces.command("list")(list_namespaces)
    namespaces.command("policies")(show_policies)
    namespaces.command("create")(create_namespace)
    namespaces.command("delete")(delete_namespace)


def _client(url: str) -> Any:
    from magnetar.deploy.admin_client import AdminClient

    return AdminClient(url)


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _namespace_path(namespace: str) -> str:
    from magnetar.deploy.admin_client import namespace_argument

    return f"/admin/v2/namespaces/{namespace_argument(namespace)}"


def _force(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}


def _parts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _print_lines(values: list[str]) -> None:
    sys.stdout.writelines(f"{value}\n" for value in values)


def _print_json(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
