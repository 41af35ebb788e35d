"""Unpacks archives that the project itself made."""

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, directory: Path) -> None:
    """Unpack all of an archive below the directory. Where Python supports it, refuse members
    outside of it."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
    else:  # before Python 3.11.4
        archive.extractall(directory)
