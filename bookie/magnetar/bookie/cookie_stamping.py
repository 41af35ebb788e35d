"""Steps that check and stamp the cookies of a bookie's directories (rules: `cookie_rules.py`)."""

import posixpath
import random
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.bookie.cookie import (
    Cookie,
    DirectoryCookie,
    Stamp,
    decode_cookie,
    read_directory_cookie,
    read_stamp,
)
from magnetar.bookie.cookie_rules import (
    BeginStamp,
    DirectoryView,
    FinishStamp,
    Nothing,
    PublishStamp,
    Restore,
    Wanted,
    next_action,
    roles,
)
from magnetar.bookie.disks.directories import (
    COOKIE_NAME,
    STAMPING_NAME,
    BookieDirectories,
    has_data,
)
from magnetar.bookie.errors import CookieError
from magnetar.ledger.errors import (
    BadVersionError,
    ContendedError,
    NodeExistsError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.ports import Disk
from magnetar.ledger.registration import BookieRegistry

_STEPS_MAX = 8
_INCARNATION_BITS = 128


class Identity(NamedTuple):
    """The identity of a bookie, from its cookie."""

    cookie: Cookie
    lost: tuple[str, ...]
    """Directories that lost their data; empty when all is well.

    They must be restored before `check_cookies(is_restored=True)` writes their cookie.
    """


async def check_cookies(
    registry: BookieRegistry,
    disk: Disk,
    directories: BookieDirectories,
    wanted: Wanted,
    *,
    random: random.Random,
    is_restored: bool = False,
) -> Identity:
    """Check the copies of the cookie and stamp new directories. The caller holds the locks.

    Changes nothing if all copies agree. `is_restored`: the lost directories have been restored.

    Raises:
        CookieError: the copies do not belong together.
        MetadataError: the metadata store failed.
        OSError: the disk failed.
    """
    for _ in range(_STEPS_MAX):
        stored = await registry.read_cookie(wanted.bookie_id)
        known = None
        if stored is not None:
            place = f"the metadata store (cookie of bookie {wanted.bookie_id})"
            known = decode_cookie(stored.value, place)
        action = next_action(
            view_of(disk, directories),
            read_stamp(disk, directories.data),
            known,
            wanted,
            incarnation=f"{random.getrandbits(_INCARNATION_BITS):032x}",
            is_restored=is_restored,
        )
        match action:
            case Nothing(cookie):
                return Identity(cookie, ())
            case Restore(stamp, lost):
                return Identity(stamp.cookie, lost)
            case BeginStamp(stamp):
                path = posixpath.join(directories.data, STAMPING_NAME)
                disk.replace_file(path, stamp.to_bytes())
            case PublishStamp(stamp):
                # An earlier start may have written the stamp and failed to sync the directory. Once
                # the store has the cookie, a bookie that lost its stamp would not start again.
                disk.sync_directory(directories.data)
                version = stored.version if stored is not None else None
                await _publish(registry, wanted.bookie_id, stamp.cookie, version)
            case FinishStamp(stamp, lost_again):
                finish_stamp(disk, directories, stamp, lost_again)
    raise CookieError(
        f"the cookie of bookie {wanted.bookie_id} could not be written to the metadata store in "
        f"{_STEPS_MAX} steps; try again when the store is well"
    )


def view_of(disk: Disk, directories: BookieDirectories) -> Sequence[DirectoryView]:
    """Read the cookies of all directories; the data directory comes first. Blocks.

    Raises:
        CookieError: a cookie is damaged.
        OSError: the disk failed.
    """
    # The data directory has no data of its own: it holds the other directories, or nothing.
    data = directories.data
    views = [DirectoryView(data, "data", read_directory_cookie(disk, data), has_data=False)]
    for path, role in _with_roles(directories)[1:]:
        cookie = read_directory_cookie(disk, path)
        views.append(DirectoryView(path, role, cookie, has_data(disk, path)))
    return views


def finish_stamp(
    disk: Disk, directories: BookieDirectories, stamp: Stamp, lost_again: Sequence[str] = ()
) -> None:
    """Write the cookie into every directory, then remove the stamp. Blocks.

    Roles in `lost_again` get no cookie; if there are any, the stamp stays.
    """
    for path, role in _with_roles(directories):
        if role in lost_again:
            continue
        cookie = DirectoryCookie(directory=role, cookie=stamp.cookie)
        disk.replace_file(posixpath.join(path, COOKIE_NAME), cookie.to_bytes())
    if lost_again:
        return
    disk.remove(posixpath.join(directories.data, STAMPING_NAME))
    disk.sync_directory(directories.data)


async def restamp_engine(
    registry: BookieRegistry, disk: Disk, directories: BookieDirectories, cookie: Cookie
) -> None:
    """Record another storage engine, after all ledger directories have been converted to it.

    `cookie` is the present cookie with the new engine. A repeated call after a crash continues
    where the first one stopped. The caller holds the locks.

    Raises:
        CookieError: the metadata store knows another cookie of this bookie.
        MetadataError: the metadata store failed.
        OSError: the disk failed.
    """
    stamp = Stamp(cookie=cookie, previous=cookie.incarnation)
    disk.replace_file(posixpath.join(directories.data, STAMPING_NAME), stamp.to_bytes())
    other = CookieError(
        f"the metadata store knows another cookie of bookie {cookie.bookie_id}; the engine was not "
        f"recorded"
    )

    def restamp(stored: bytes | None) -> bytes | None:
        known = decode_cookie(stored, "the metadata store") if stored is not None else None
        if known == cookie:
            return None
        if known is None or known.incarnation != cookie.incarnation:
            raise other
        return cookie.to_json()

    try:
        await registry.change_cookie(cookie.bookie_id, restamp, tries_max=_STEPS_MAX)
    except ContendedError as error:
        raise other from error
    finish_stamp(disk, directories, stamp)


async def _publish(
    registry: BookieRegistry, bookie_id: str, cookie: Cookie, version: int | None
) -> None:
    try:
        await registry.write_cookie(bookie_id, cookie.to_json(), version)
    except (NodeExistsError, BadVersionError, NoNodeError, UnknownOutcomeError):
        pass  # the next step reads the present state, and judges it


def _with_roles(directories: BookieDirectories) -> list[tuple[str, str]]:
    names = roles(len(directories.journals), len(directories.ledgers))
    return list(zip(directories, names, strict=True))
