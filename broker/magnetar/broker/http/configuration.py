"""Settings of the broker over HTTP: shown, and changed while it runs. Source: HTTP sheet, 4.

The settings have the names of `BrokerSettings`; those of Pulsar's configuration file that mean the
same are taken and shown beside them.
"""

from fastapi import APIRouter, Response
from pydantic import BaseModel

from magnetar.broker.http.answers import done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.policies.dynamic import ALL_NAMES, under_both_names

_PATH = "/admin/v2/brokers/configuration"
_SECRET_WORDS = ("secret", "password", "private", "credential", "token", "key")
_HIDDEN = "*****"


class InternalConfiguration(BaseModel):
    """Where the cluster keeps what it must not lose."""

    zookeeperServers: str
    configurationStoreServers: str
    metadataStoreUrl: str
    configurationMetadataStoreUrl: str
    ledgersRootPath: str
    bookkeeperMetadataServiceUri: str
    stateStorageServiceUrl: str | None = None


def configuration_router(context: HttpContext, *, metadata_url: str) -> APIRouter:
    """The routes below /admin/v2/brokers about settings. `metadata_url`: of the metadata store."""
    router = APIRouter(tags=["brokers"])
    dynamic = context.policies.dynamic

    @router.get(_PATH, summary="The names of the settings that can be changed while brokers run")
    async def names() -> list[str]:
        return list(ALL_NAMES)

    @router.get(_PATH + "/values", summary="What was set while brokers ran, on all of them")
    async def values() -> dict[str, str]:
        return under_both_names(await dynamic.values())

    @router.get(_PATH + "/runtime", summary="All settings of this broker as they are now")
    async def runtime() -> dict[str, str]:
        """Secrets are not among them."""
        return under_both_names(
            {
                name: _HIDDEN if _is_secret(name) and value else str(value)
                for name, value in context.settings
            }
        )

    @router.post(_PATH + "/{name}/{value:path}", status_code=204, summary="Change a setting")
    async def change(name: str, value: str) -> Response:
        """On all brokers, at once. 412: there is no such setting, or value."""
        await dynamic.set(name, value)
        return done()

    @router.delete(_PATH + "/{name}", status_code=204, summary="Go back to the broker's setting")
    async def remove(name: str) -> Response:
        """412: it cannot be changed while brokers run."""
        await dynamic.remove(name)
        return done()

    @router.get(
        "/admin/v2/brokers/internal-configuration",
        summary="Where the cluster keeps its metadata",
        response_model_exclude_none=True,
    )
    async def internal() -> InternalConfiguration:
        servers = metadata_url.partition("://")[2].partition("/")[0]
        is_zookeeper = metadata_url.startswith(("zk:", "zookeeper:"))
        return InternalConfiguration(
            zookeeperServers=servers if is_zookeeper else "",
            configurationStoreServers=servers if is_zookeeper else "",
            metadataStoreUrl=metadata_url,
            configurationMetadataStoreUrl=metadata_url,
            ledgersRootPath="/ledgers",
            bookkeeperMetadataServiceUri=f"metadata-store:{metadata_url}",
        )

    return router


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)
