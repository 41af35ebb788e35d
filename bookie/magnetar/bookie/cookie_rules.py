"""Judgement of the cookie copies at a start: which step comes next. Pure.

A stamp takes the same steps whether a bookie is new, gets more directories, or lost some. It is
written into the data directory (`BeginStamp`); the metadata store gets the cookie (`PublishStamp`);
every directory gets it (`FinishStamp`); then the stamp is removed. A crash may follow any step; the
next start finds out which one it was. Source: storage sheet section 12, rule 11.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.bookie.cookie import Cookie, DirectoryCookie, Stamp
from magnetar.bookie.errors import CookieError
from magnetar.bookie.indexes.index_mark import EngineKind

_LEDGERS = "ledgers-"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The identity that settings and cluster ask for."""

    bookie_id: str
    instance_id: str
    engine: EngineKind
    journals: int
    ledgers: int
    may_expand: bool = False
    """Whether directories may be added."""
    may_restore: bool = False
    """Whether lost directories may be filled again from the other bookies."""


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """Cookie and state of one directory on disk."""

    path: str
    role: str
    cookie: DirectoryCookie | None
    has_data: bool


@dataclass(frozen=True, slots=True)
class Nothing:
    """Action: none, all copies agree."""

    cookie: Cookie


@dataclass(frozen=True, slots=True)
class BeginStamp:
    """Action: write this stamp into the data directory."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Restore:
    """Action: find out what these empty directories held, then publish the stamp."""

    stamp: Stamp
    lost: tuple[str, ...]
    """Paths of the directories."""


@dataclass(frozen=True, slots=True)
class PublishStamp:
    """Action: write the stamp's cookie to the metadata store."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class FinishStamp:
    """Action: write the cookie, which the metadata store has, into every directory."""

    stamp: Stamp
    lost_again: tuple[str, ...] = ()
    """Roles of directories that do not get the cookie: they were restored, and are empty once more.

    The stamp stays while there are any, until another stamp takes its place.
    """


Action = Nothing | BeginStamp | Restore | PublishStamp | FinishStamp


def next_action(
    directories: Sequence[DirectoryView],
    stamp: Stamp | None,
    in_metadata: Cookie | None,
    wanted: Wanted,
    *,
    incarnation: str,
    is_restored: bool = False,
) -> Action:
    """Judge the copies and return the next action. The data directory comes first in `directories`.

    `incarnation` is for a new cookie; `is_restored` says that the last `Restore` was carried out.

    Raises:
        CookieError: the copies do not belong together; the text says what to do.
    """
    for view in directories:
        _check_ours(view, wanted)
    if stamp is not None and not _is_of(stamp.cookie, wanted):
        stamp = None  # begun under another name, and never published by us
    if in_metadata is None:
        return _judge_unknown(directories, stamp, wanted, incarnation)
    if stamp is not None and stamp.cookie == in_metadata:
        return _judge_published(directories, stamp, wanted, incarnation, is_restored)
    lost = _lost(directories, stamp, in_metadata, wanted)
    if lost:
        return _judge_lost(lost, stamp, in_metadata, wanted, incarnation, is_restored)
    return _judge_counts(directories, stamp, in_metadata, wanted)


def _judge_unknown(
    directories: Sequence[DirectoryView], stamp: Stamp | None, wanted: Wanted, incarnation: str
) -> Action:
    """Judge a bookie that the metadata store does not know: nothing may be on its disks either."""
    for view in directories:
        if view.cookie is not None:
            raise CookieError(
                f"{view.path} holds data of bookie {wanted.bookie_id}, but the metadata store does "
                f"not know that bookie; check that this is the right metadata store"
            )
        if view.has_data:
            raise _no_cookie(view)
    if stamp is not None and not stamp.previous and _fits(stamp.cookie, wanted):
        return PublishStamp(stamp)
    cookie = Cookie(
        bookie_id=wanted.bookie_id,
        instance_id=wanted.instance_id,
        incarnation=incarnation,
        storage_engine=wanted.engine,
        journals=wanted.journals,
        storage_shards=(wanted.ledgers,),
    )
    return BeginStamp(Stamp(cookie=cookie, added=tuple(_roles_of(cookie))))


def _judge_published(
    directories: Sequence[DirectoryView],
    stamp: Stamp,
    wanted: Wanted,
    incarnation: str,
    is_restored: bool,
) -> FinishStamp | BeginStamp:
    """Judge a published stamp: directories may have the new cookie, the previous one, or none
    yet."""
    cookie = stamp.cookie
    if not _fits(cookie, wanted):
        raise CookieError(
            f"the directories of bookie {wanted.bookie_id} were being changed to "
            f"{_counts(cookie)}; start it once with these settings before anything else is changed"
        )
    lost_again: list[DirectoryView] = []
    for view in directories:
        if view.cookie is None:
            if view.has_data and view.role not in stamp.lost:
                raise _no_cookie(view)
            if view.role not in (*stamp.added, *stamp.lost):
                raise _data_lost(view.path, wanted)
            # The findings from the other bookies were written to every ledger directory before the
            # metadata store got the cookie. A ledger directory without them has lost them, too.
            if view.role in stamp.lost and view.role.startswith(_LEDGERS) and not view.has_data:
                lost_again.append(view)
        elif view.cookie.cookie.incarnation != cookie.incarnation and (
            # A lost directory that is back lacks the findings that were written in its place.
            view.cookie.cookie.incarnation != stamp.previous or view.role in stamp.lost
        ):
            raise _of_another(view, wanted)
    if not lost_again:
        return FinishStamp(stamp)
    if is_restored or not wanted.may_restore:
        # This very process restored them, and they are empty again: no new stamp without a new
        # restore.
        raise _data_lost(", ".join(view.path for view in lost_again), wanted)
    again = tuple(view.role for view in lost_again)
    if any(
        view.cookie is None or view.cookie.cookie != cookie
        for view in directories
        if view.role not in again
    ):
        return FinishStamp(stamp, again)
    return BeginStamp(_anew(cookie, incarnation, lost_again))


def _lost(
    directories: Sequence[DirectoryView], stamp: Stamp | None, known: Cookie, wanted: Wanted
) -> list[DirectoryView]:
    """Return the directories that should have a cookie and have none.

    Raises:
        CookieError: a directory holds data that is not known to be ours.
    """
    expected = _roles_of(known)
    lost: list[DirectoryView] = []
    for view in directories:
        if view.cookie is not None:
            if view.cookie.cookie != known:
                raise _of_another(view, wanted)
        elif view.has_data and not (stamp is not None and view.role in stamp.lost):
            raise _no_cookie(view)
        elif view.role in expected:
            lost.append(view)
    return lost


def _judge_lost(
    lost: Sequence[DirectoryView],
    stamp: Stamp | None,
    known: Cookie,
    wanted: Wanted,
    incarnation: str,
    is_restored: bool,
) -> Action:
    paths = ", ".join(view.path for view in lost)
    if not wanted.may_restore:
        raise _data_lost(paths, wanted)
    if not _fits(known, wanted):
        raise CookieError(
            f"{paths} of bookie {wanted.bookie_id} are empty, and its directories are changed at "
            f"the same time: it has {_counts(known)}; restore it first"
        )
    is_begun = (
        stamp is not None
        and stamp.previous == known.incarnation
        and {view.role for view in lost} <= set(stamp.lost)
    )
    if not is_begun:
        return BeginStamp(_anew(known, incarnation, lost))
    assert stamp is not None
    if is_restored:
        return PublishStamp(stamp)
    return Restore(stamp, tuple(view.path for view in lost))


def _anew(known: Cookie, incarnation: str, lost: Sequence[DirectoryView]) -> Stamp:
    """Make a stamp with a new incarnation, so that a lost directory that comes back is not
    accepted."""
    return Stamp(
        cookie=known.model_copy(update={"incarnation": incarnation}),
        previous=known.incarnation,
        lost=tuple(view.role for view in lost),
    )


def _judge_counts(
    directories: Sequence[DirectoryView], stamp: Stamp | None, known: Cookie, wanted: Wanted
) -> Action:
    """Compare the directories with the settings; every directory that the cookie names is there."""
    if known.storage_engine != wanted.engine:
        raise CookieError(
            f"the ledgers of bookie {wanted.bookie_id} are stored by the engine "
            f"{known.storage_engine}, not {wanted.engine}; set storage_engine to "
            f"{known.storage_engine}, or convert them first with "
            f"'magnetar bookie-tool convert --to {wanted.engine}'"
        )
    if _fits(known, wanted):
        return Nothing(known)
    if wanted.journals < known.journals or wanted.ledgers < _shards(known):
        raise CookieError(
            f"bookie {wanted.bookie_id} has {_counts(known)}, the settings name fewer; "
            f"name all of them, in their order"
        )
    if not wanted.may_expand:
        raise CookieError(
            f"bookie {wanted.bookie_id} has {_counts(known)}, the settings name more; set "
            f"allow_storage_expansion to add empty directories behind the known ones"
        )
    shards = known.storage_shards
    cookie = known.model_copy(
        update={
            "journals": wanted.journals,
            "storage_shards": shards if wanted.ledgers == shards[-1] else (*shards, wanted.ledgers),
        }
    )
    added = tuple(role for role in _roles_of(cookie) if role not in _roles_of(known))
    wanted_stamp = Stamp(cookie=cookie, previous=known.incarnation, added=added)
    return PublishStamp(wanted_stamp) if stamp == wanted_stamp else BeginStamp(wanted_stamp)


def roles(journals: int, ledgers: int) -> list[str]:
    """Return the roles of a bookie's directories, in the order of `BookieDirectories`."""
    return [
        "data",
        *(f"journal-{index}" for index in range(journals)),
        *(f"{_LEDGERS}{index}" for index in range(ledgers)),
    ]


def _roles_of(cookie: Cookie) -> list[str]:
    return roles(cookie.journals, _shards(cookie))


def _check_ours(view: DirectoryView, wanted: Wanted) -> None:
    if view.cookie is None:
        return
    cookie, path = view.cookie.cookie, view.path
    if cookie.instance_id != wanted.instance_id:
        raise CookieError(
            f"{path} belongs to another cluster (instance {cookie.instance_id}, the metadata "
            f"store says {wanted.instance_id}); use that cluster's metadata store, or another "
            f"directory"
        )
    if cookie.bookie_id != wanted.bookie_id:
        raise CookieError(
            f"{path} belongs to bookie {cookie.bookie_id}, not {wanted.bookie_id}; "
            f"start it under that id, or use another directory"
        )
    if view.cookie.directory != view.role:
        raise CookieError(
            f"{path} is {view.cookie.directory} of bookie {cookie.bookie_id}, and the settings "
            f"name it as {view.role}; name the directories in their order"
        )


def _is_of(cookie: Cookie, wanted: Wanted) -> bool:
    return (cookie.bookie_id, cookie.instance_id) == (wanted.bookie_id, wanted.instance_id)


def _fits(cookie: Cookie, wanted: Wanted) -> bool:
    return (cookie.storage_engine, cookie.journals, _shards(cookie)) == (
        wanted.engine,
        wanted.journals,
        wanted.ledgers,
    )


def _shards(cookie: Cookie) -> int:
    return cookie.storage_shards[-1]


def _counts(cookie: Cookie) -> str:
    return (
        f"{cookie.journals} journal and {_shards(cookie)} ledger directories and the engine "
        f"{cookie.storage_engine}"
    )


def _no_cookie(view: DirectoryView) -> CookieError:
    return CookieError(
        f"{view.path} holds bookie data but no cookie; restore its file cookie, or use an empty "
        f"directory and a new bookie id"
    )


def _data_lost(paths: str, wanted: Wanted) -> CookieError:
    return CookieError(
        f"bookie id {wanted.bookie_id} was in use, and its data is not in {paths} (lost, not "
        f"mounted, or the wrong directory); restore the data, or start under a new bookie id "
        f"with empty directories, or allow integrity_stamp_missing_cookies"
    )


def _of_another(view: DirectoryView, wanted: Wanted) -> CookieError:
    return CookieError(
        f"bookie id {wanted.bookie_id} belongs to another directory than {view.path}; "
        f"start with that directory, or give this one its own bookie id"
    )
