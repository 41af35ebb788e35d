"""The cookie: proof that these directories, this bookie id and this cluster belong together.

The metadata store and every directory of the bookie hold the same record; in a directory it also
names the directory's role. A bookie whose copies do not agree must not start: with an emptied,
exchanged or unmounted disk it would deny entries that it acknowledged, and accept adds to ledgers
that it had fenced (defects D14, D16, B24).

This file has the record and its files. `cookie_rules.py` decides what a start does with the copies;
`cookie_stamping.py` writes them.

Layout: docs/formats/cookie.md. Source: ledger protocol section 11, storage sheet section 12.
"""

import posixpath
from itertools import pairwise
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from magnetar.bookie.disks.directories import COOKIE_NAME, STAMPING_NAME
from magnetar.bookie.errors import CookieError
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.integrity.sealed import open_sealed, seal
from magnetar.ledger.ports import Disk
from magnetar.ledger.validation import first_problem

_Count = Annotated[int, Field(ge=1, strict=True)]
_Record = TypeVar("_Record", bound=BaseModel)


class Cookie(BaseModel):
    """Identity of one bookie's data. Stored as JSON, so that tools and people can read it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2] = 2
    bookie_id: str
    instance_id: str
    """Id of the cluster in the metadata store."""
    incarnation: str
    """Random id of this stamping; directories that were stamped again count as another bookie."""
    storage_engine: EngineKind = "db"
    journals: _Count = 1
    """Number of journal directories."""
    storage_shards: tuple[_Count, ...] = Field(default=(1,), min_length=1)
    """Numbers of ledger directories over time, oldest first; the last one is the present number.

    New ledgers are spread over them by id; a ledger stays where an earlier number put it.
    """

    @model_validator(mode="after")
    def _check_growth(self) -> Self:
        counts = self.storage_shards
        if any(before >= after for before, after in pairwise(counts)):
            raise ValueError("storage_shards does not grow")
        return self

    def to_json(self) -> bytes:
        return self.model_dump_json(indent=1).encode()


class DirectoryCookie(BaseModel):
    """Content of the cookie file in a directory: the cookie, and the role of the directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str
    """Role of the directory: `data`, `journal-0`, `ledgers-1`, ... It detects exchanged
    directories."""
    cookie: Cookie

    def to_bytes(self) -> bytes:
        """Encode with a checksum: a changed byte must not name another bookie, cluster or role."""
        return seal(self.model_dump_json(indent=1).encode())


class Stamp(BaseModel):
    """A cookie that is being written to all its places; kept in the data directory meanwhile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cookie: Cookie
    previous: str = ""
    """Incarnation of the cookie that this one replaces; empty for a new bookie."""
    added: tuple[str, ...] = ()
    """Roles of the directories that this cookie adds: only they may be without a cookie."""
    lost: tuple[str, ...] = ()
    """Roles of directories that lost their data; they must be checked before they get the cookie.
    """

    def to_bytes(self) -> bytes:
        """Encode with a checksum: directories are written from it, and no copy exists to compare it
        to."""
        return seal(self.model_dump_json(indent=1).encode())


def read_cookie(disk: Disk, directory: str) -> Cookie | None:
    """Return the cookie of a directory; None if it has none, or its stamping never finished.

    Raises:
        CookieError: the file is damaged.
    """
    found = read_directory_cookie(disk, directory)
    return found.cookie if found is not None else None


def read_directory_cookie(disk: Disk, directory: str) -> DirectoryCookie | None:
    """Return the cookie of a directory with the directory's role; None if it has none."""
    return _read(
        disk,
        posixpath.join(directory, COOKIE_NAME),
        DirectoryCookie,
        "Restore it from a backup, or write it anew as docs/formats/cookie.md says: the role of "
        "its directory, and the cookie that the metadata store has of this bookie",
    )


def read_stamp(disk: Disk, data_directory: str) -> Stamp | None:
    """Return the unfinished stamp in a data directory; None if there is none.

    Raises:
        CookieError: the file is damaged.
    """
    return _read(
        disk,
        posixpath.join(data_directory, STAMPING_NAME),
        Stamp,
        "Take it out of the way and start again, which tells whether all directories agree",
    )


def bookie_id_in(disk: Disk, directory: str) -> str | None:
    """Return the id of the bookie whose data a directory holds; an unfinished stamp counts.

    None if the directory is empty or missing.

    Raises:
        CookieError: the file is damaged.
    """
    cookie = read_cookie(disk, directory)
    if cookie is None and (stamp := read_stamp(disk, directory)) is not None:
        cookie = stamp.cookie
    return cookie.bookie_id if cookie is not None else None


def decode_cookie(data: bytes, place: str) -> Cookie:
    """Decode a cookie that was read from `place`.

    Raises:
        CookieError: the data is not a cookie.
    """
    return _decode(data, place, Cookie)


def _read(disk: Disk, path: str, kind: type[_Record], remedy: str) -> _Record | None:
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    text: bytes | None = data
    if not data.endswith(b"}"):  # written without a checksum by a person or another release
        text = open_sealed(data)
    if text is None:
        raise CookieError(
            f"{path} is damaged: its checksum does not match its text. Nothing was changed. "
            f"{remedy}"
        )
    return _decode(text, path, kind)


def _decode(data: bytes, place: str, kind: type[_Record]) -> _Record:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise CookieError(
            f"the cookie in {place} cannot be read ({error.error_count()} problems, the first: "
            f"{first_problem(error, whole='the whole')}); restore it"
        ) from error
