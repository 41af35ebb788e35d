"""The cookie: proof that this data directory, this bookie id and this cluster belong together.

The same record lies in the metadata store and in the data directory. A bookie whose copies do not
agree must not start: with an emptied or exchanged disk it would deny entries that it acknowledged,
and accept adds to ledgers that it had fenced (defects D14, D16, B24).

Stamping a new bookie takes three steps, each of which may be the last before a crash: the cookie is
written into the directory as "being stamped", then into the metadata store, then it takes its real
name. Its random incarnation tells our own half-done stamp from the cookie of another directory.

Layout: docs/formats/cookie.md. Source: ledger protocol section 11, storage sheet section 12.
"""

import posixpath
import random
from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from magnetar.bookie.disks.directories import has_data
from magnetar.bookie.errors import CookieError
from magnetar.ledger.errors import NodeExistsError, UnknownOutcomeError
from magnetar.ledger.ports import Disk
from magnetar.ledger.registration import BookieRegistry

_NAME = "cookie"
_STAMPING_NAME = "cookie.stamping"
_STAMP_ATTEMPTS_MAX = 5
_INCARNATION_BITS = 128


class Cookie(BaseModel):
    """Identity of one bookie's data. Stored as JSON, so that tools and people can read it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    bookie_id: str
    instance_id: str
    """The cluster's id in the metadata store."""
    incarnation: str
    """Random; a directory that was stamped again is another bookie."""
    storage_shards: Literal[1] = 1
    """Ledgers are spread over shards by id: with another number they would not be found."""

    def to_json(self) -> bytes:
        return self.model_dump_json(indent=1).encode()


class CookieAction(Enum):
    """What to do next about the cookie."""

    NOTHING = auto()
    """All copies agree."""
    BEGIN_STAMP = auto()
    """New here and in the cluster."""
    STAMP_METADATA = auto()
    """The directory is marked as being stamped; the cluster does not know it yet."""
    FINISH_STAMP = auto()
    """The cluster has the cookie; the directory's copy has yet to take its name."""


def next_action(
    *,
    directory: str,
    bookie_id: str,
    instance_id: str,
    on_disk: Cookie | None,
    stamping: Cookie | None,
    in_metadata: Cookie | None,
    is_directory_empty: bool,
) -> CookieAction:
    """Judge the copies.

    Raises:
        CookieError: they do not belong together; the text says what to do.
    """
    if on_disk is not None:
        _check_ours(on_disk, directory, bookie_id, instance_id)
        if in_metadata is None:
            raise CookieError(
                f"{directory} holds data of bookie {bookie_id}, but the metadata store does not "
                f"know that bookie; check that this is the right metadata store"
            )
        if in_metadata != on_disk:
            raise CookieError(
                f"bookie id {bookie_id} belongs to another data directory than {directory}; "
                f"start with that directory, or give this one its own bookie id"
            )
        return CookieAction.NOTHING
    if not is_directory_empty:
        raise CookieError(
            f"{directory} holds bookie data but no cookie; restore the file "
            f"{posixpath.join(directory, _NAME)}, or use an empty directory and a new bookie id"
        )
    if in_metadata is None:
        is_begun = stamping is not None and (stamping.bookie_id, stamping.instance_id) == (
            bookie_id,
            instance_id,
        )
        return CookieAction.STAMP_METADATA if is_begun else CookieAction.BEGIN_STAMP
    if stamping == in_metadata:
        return CookieAction.FINISH_STAMP
    raise CookieError(
        f"bookie id {bookie_id} was in use, and {directory} does not hold its data (lost, or the "
        f"wrong directory); restore the data, or start under a new bookie id"
    )


def _check_ours(cookie: Cookie, directory: str, bookie_id: str, instance_id: str) -> None:
    if cookie.instance_id != instance_id:
        raise CookieError(
            f"{directory} belongs to another cluster (instance {cookie.instance_id}, the metadata "
            f"store says {instance_id}); use that cluster's metadata store, or another directory"
        )
    if cookie.bookie_id != bookie_id:
        raise CookieError(
            f"{directory} belongs to bookie {cookie.bookie_id}, not {bookie_id}; "
            f"start it under that id, or use another directory"
        )


def read_cookie(disk: Disk, directory: str) -> Cookie | None:
    """The cookie of a data directory; None if it has none (or was never stamped to the end).

    Raises:
        CookieError: the file is damaged.
    """
    return _read(disk, posixpath.join(directory, _NAME))


def bookie_id_in(disk: Disk, directory: str) -> str | None:
    """Whose data a directory holds, a half-done stamp included; None for an empty or missing one.

    Raises:
        CookieError: the file is damaged.
    """
    cookie = read_cookie(disk, directory) or _read(disk, posixpath.join(directory, _STAMPING_NAME))
    return cookie.bookie_id if cookie is not None else None


async def validate_cookie(
    registry: BookieRegistry,
    disk: Disk,
    directory: str,
    *,
    bookie_id: str,
    instance_id: str,
    data_directories: Sequence[str],
    random: random.Random,
) -> None:
    """Check the copies of the cookie, and stamp a new bookie. The caller holds the lock.

    Raises:
        CookieError: the copies do not belong together.
        MetadataError: as the store.
    """
    stamping_path = posixpath.join(directory, _STAMPING_NAME)
    for _ in range(_STAMP_ATTEMPTS_MAX):
        stamping = _read(disk, stamping_path)
        action = next_action(
            directory=directory,
            bookie_id=bookie_id,
            instance_id=instance_id,
            on_disk=read_cookie(disk, directory),
            stamping=stamping,
            in_metadata=await _read_metadata(registry, bookie_id),
            is_directory_empty=not any(has_data(disk, each) for each in data_directories),
        )
        match action:
            case CookieAction.NOTHING:
                return
            case CookieAction.BEGIN_STAMP:
                incarnation = f"{random.getrandbits(_INCARNATION_BITS):032x}"
                cookie = Cookie(
                    bookie_id=bookie_id, instance_id=instance_id, incarnation=incarnation
                )
                disk.replace_file(stamping_path, cookie.to_json())
            case CookieAction.STAMP_METADATA:
                assert stamping is not None
                try:
                    await registry.write_cookie(bookie_id, stamping.to_json(), None)
                except (NodeExistsError, UnknownOutcomeError):
                    pass  # the next turn reads what is there now, and judges
            case CookieAction.FINISH_STAMP:
                disk.rename(stamping_path, posixpath.join(directory, _NAME))
                disk.sync_directory(directory)
    raise CookieError(
        f"the cookie of bookie {bookie_id} could not be written to the metadata store in "
        f"{_STAMP_ATTEMPTS_MAX} attempts; try again when the store is well"
    )


async def _read_metadata(registry: BookieRegistry, bookie_id: str) -> Cookie | None:
    stored = await registry.read_cookie(bookie_id)
    if stored is None:
        return None
    return _decode(stored.value, f"the metadata store (cookie of bookie {bookie_id})")


def _read(disk: Disk, path: str) -> Cookie | None:
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    return _decode(data, path)


def _decode(data: bytes, place: str) -> Cookie:
    try:
        return Cookie.model_validate_json(data)
    except ValidationError as error:
        raise CookieError(
            f"the cookie in {place} cannot be read ({error.error_count()} problems, the first: "
            f"{error.errors()[0]['msg']}); restore it"
        ) from error
