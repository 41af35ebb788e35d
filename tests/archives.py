"""Unpacking archives that are our own."""

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, directory: Path) -> None:
    """All of it, below the directory; nothing outside of it where Python can see to that."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
    else:  # before Python 3.11.4
        archive.extractall(directory)
