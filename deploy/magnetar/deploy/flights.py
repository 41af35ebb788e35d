"""The flight records that the tour publishes: package data, read without unpacking it anywhere."""

import gzip
from dataclasses import dataclass
from importlib.resources import files

_CARRIER_COLUMN = 9


@dataclass(frozen=True, slots=True)
class Flight:
    """One departure: its airline's two-letter code, and the CSV line as it is."""

    carrier: str
    line: bytes


def read_flights() -> list[Flight]:
    """All records of `tour_data/flights.csv.gz`, in file order, without the header line."""
    packed = files("magnetar.deploy").joinpath("tour_data", "flights.csv.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines()
    return [Flight(line.split(b",")[_CARRIER_COLUMN].decode(), line) for line in lines[1:]]
