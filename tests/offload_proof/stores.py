"""The object stores of the proof: a process that speaks S3, and a directory."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tests.s3_server import S3Server

_BUCKET = "ledgers"


class Store(Protocol):
    """What the proof needs of an object store."""

    @property
    def settings(self) -> dict[str, object]:
        """As an item of `object_stores`."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Credentials, for the brokers and for Spark."""

    def keys(self) -> list[str]:
        """Names of all objects of ledgers."""

    def stop(self) -> None: ...


class S3Store:
    """moto in a process of its own. It keeps objects in memory, so it is not restarted."""

    environment: Mapping[str, str] = {
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
    }

    def __init__(self, directory: Path) -> None:
        self._server = S3Server(directory)
        self._server.create_bucket(_BUCKET)

    @property
    def settings(self) -> dict[str, object]:
        url = f"s3://{_BUCKET}/proof"
        return {"name": "main", "url": url, "endpoint": self._server.endpoint, "allow_http": True}

    def keys(self) -> list[str]:
        return [each for each in self._server.keys(_BUCKET) if each.endswith(".mgo")]

    def stop(self) -> None:
        self._server.stop()


class DirectoryStore:
    """Files below a directory."""

    environment: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "objects"
        self._directory.mkdir()

    @property
    def settings(self) -> dict[str, object]:
        return {"name": "main", "url": self._directory.resolve().as_uri()}

    def keys(self) -> list[str]:
        # Not rglob: a sweep deletes directories meanwhile, which it takes for an error.
        found = (name for _, _, names in os.walk(self._directory) for name in names)
        return [name for name in found if name.endswith(".mgo")]

    def stop(self) -> None: ...


STORES: Mapping[str, Callable[[Path], Store]] = {"s3": S3Store, "directory": DirectoryStore}
"""By the word of the command."""
