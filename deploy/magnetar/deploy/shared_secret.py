"""The shared secret that servers generate: a file that is written once.

A standalone and a cluster have one in their data directory. Other servers that share a directory
generate one if `shared_secret_create` says so. The first server writes the file, whole or not at
all; all others, and every later start, read it. The secret is never printed.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from magnetar.broker.security.keys import path_for_people
from magnetar.deploy.config import Table
from magnetar.deploy.options import Sources
from magnetar.ledger.errors import SharedSecretConfigError
from magnetar.ledger.metadata.url import SHARED_SECRET_NAME, shared_secret_beside

_FIELD = "shared_secret_file"
_COMPONENTS = ("bookie", "ledger")
"""Components whose settings name the secret: the bookie checks it, the ledger client proves it."""
_SECRET_BYTES = 32
_MODE = 0o600
"""Only the owner may read the file: the secret gives access to every ledger."""


def with_own_secret(sources: Sources, data: Path) -> Sources:
    """Add the secret file of this data directory to settings that name none."""
    if any(_is_named(each, sources.tables, sources.environment) for each in _COMPONENTS):
        return sources
    own = {_FIELD: str(data / SHARED_SECRET_NAME), "shared_secret_create": True}
    return with_defaults(sources, dict.fromkeys(_COMPONENTS, own))


def with_secret_beside(sources: Sources, metadata_url: str) -> Sources:
    """Add the secret file beside an embedded metadata store to ledger client settings that name
    none."""
    beside = shared_secret_beside(metadata_url)
    if not beside or _is_named("ledger", sources.tables, sources.environment):
        return sources
    return with_defaults(sources, {"ledger": {_FIELD: beside}})


def secret_variables(
    environment: Mapping[str, str], tables: Mapping[str, Table], data: Path
) -> dict[str, str]:
    """Return the variables that name this data directory's secret to server processes; none if
    their settings name a secret already."""
    if any(_is_named(each, tables, environment) for each in _COMPONENTS):
        return {}
    path = data / SHARED_SECRET_NAME
    make_shared_secret(path)
    return {_variable(each): str(path) for each in _COMPONENTS}


def _is_named(component: str, tables: Mapping[str, Table], environment: Mapping[str, str]) -> bool:
    """Whether the settings name a secret, or say that there is none."""
    return _FIELD in tables.get(component, {}) or _variable(component) in environment


def _variable(component: str) -> str:
    return f"MAGNETAR_{component}_{_FIELD}".upper()


def with_defaults(sources: Sources, defaults: Mapping[str, Table]) -> Sources:
    """Add default values to settings; values of the file and the environment override them."""
    merged = {name: {**table, **sources.tables.get(name, {})} for name, table in defaults.items()}
    return replace(sources, tables={**sources.tables, **merged})


def make_shared_secret(path: Path) -> None:
    """Generate the file with a random secret, unless it exists.

    Raises:
        SharedSecretConfigError: the file cannot be written.
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        try:
            with os.fdopen(file, "w", encoding="ascii") as text:
                text.write(f"{secrets.token_hex(_SECRET_BYTES)}\n")
                text.flush()
                os.fsync(text.fileno())
            # A link instead of a rename: of two servers that write at once, the second takes the
            # first's.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as error:
        raise SharedSecretConfigError(
            f"cannot create shared_secret_file {path_for_people(str(path))}: {error.strerror}"
        ) from error


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
