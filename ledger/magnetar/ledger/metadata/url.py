"""Open a metadata store by its URL.

- `embedded:PATH`: a SQLite file; created with its folder if missing.
- `zk://host:port[,host:port...][/path]`: a ZooKeeper ensemble; the path is created if missing, and
  everything lies below it. The port is 2181 if left out.
"""

import re
from pathlib import Path

from magnetar.ledger.errors import InvalidPathError
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import MetadataStore, check_path

_SCHEMES = "a metadata URL is embedded:PATH or zk://host:port[,host:port...]/path"
_ZOOKEEPER_PORT = 2181
SHARED_SECRET_NAME = "shared-secret"
"""Name of the file in the data directory that holds the secret of a standalone or cluster."""
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


async def open_store(url: str, *, settings: MetadataSettings | None = None) -> MetadataStore:
    """Open the store that the URL names.

    Raises:
        InvalidPathError: the URL, or the file it names, cannot be used.
        MetadataUnavailableError: the store does not answer within the connect timeout.
    """
    settings = settings or MetadataSettings()
    scheme, _, rest = url.partition(":")
    if scheme == "embedded" and rest:
        # Imported on use, as is the other store: a process needs only one of them.
        from magnetar.ledger.metadata.embedded import EmbeddedStore

        return await EmbeddedStore.open(rest, settings=settings)
    if scheme == "zk" and rest.startswith("//"):
        hosts, chroot = parse_zookeeper_url(url)
        # kazoo takes 0.1 s to import, which standalone can do without.
        from magnetar.ledger.metadata.zookeeper import ZooKeeperStore

        return await ZooKeeperStore.open(hosts, chroot, settings=settings)
    raise InvalidPathError(f"{_SCHEMES}; this is not: {url!r}")


def shared_secret_beside(url: str) -> str:
    """Return the path of the secret that the bookies of an embedded store require; "" if there is
    no such file.

    A standalone keeps both in its data directory, so that a client that has the URL finds the
    secret.
    """
    scheme, _, path = url.partition(":")
    if scheme != "embedded" or not path:
        return ""
    beside = Path(path).absolute().with_name(SHARED_SECRET_NAME)
    return str(beside) if beside.is_file() else ""


def parse_zookeeper_url(url: str) -> tuple[str, str]:
    """Split `zk://a:1,b:2/some/path` into ("a:1,b:2", "/some/path"); the path may be "/".

    Raises:
        InvalidPathError: a host, a port or the path is invalid.
    """
    hosts_text, slash, path = url.removeprefix("zk://").partition("/")
    chroot = "/" + path.strip("/") if slash else "/"
    check_path(chroot)
    hosts = [_check_host(each, url) for each in hosts_text.split(",")]
    return ",".join(hosts), chroot


def _check_host(text: str, url: str) -> str:
    match = _HOST.fullmatch(text)
    if match is None:
        raise InvalidPathError(f"{_SCHEMES}; bad host {text!r} in {url!r}")
    port = int(match["port"] or _ZOOKEEPER_PORT)
    if not 0 < port < 65_536:
        raise InvalidPathError(f"{_SCHEMES}; bad port {port} in {url!r}")
    return f"{match['host']}:{port}"
