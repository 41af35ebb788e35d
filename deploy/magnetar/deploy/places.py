"""The places of a standalone's data directory, and the bookie in each.

A place (`bookie-2`) holds the bookie whose id its cookie names. A place without a cookie is new, or
its files were lost. The metadata store tells which: it keeps the cookies of all bookies that ever
existed. A lost id is never used again: an empty bookie under that id would deny entries that it
once acknowledged. The place continues under the next id instead (`bookie-2.1`), and the lost bookie
stays silent for ever. Recovery can cope with that while at most the ack quorum minus one bookies
are lost. Decided in docs/decisions/0005; no I/O here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from magnetar.deploy.errors import DataDirectoryError, ForeignCookieError

_LOSSES_OF_A_PLACE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """The bookie ids of all places, and the ids whose files are lost."""

    ids: Mapping[str, str]
    lost: tuple[str, ...]


def assign_ids(
    on_disk: Mapping[str, str | None],
    *,
    is_registered: Callable[[str], bool],
    losses_max: int,
    has_files: Callable[[str], bool] = lambda place: False,
) -> Assignment:
    """Choose the bookie id for each place.

    Args:
        on_disk: place -> the bookie id in its cookie; None without a cookie.
        is_registered: whether the metadata store holds a cookie of this bookie id.
        losses_max: most lost bookies that the quorums tolerate.
        has_files: whether a place holds any files.

    Raises:
        ForeignCookieError: a place holds the files of another one.
        DataDirectoryError: more bookies are lost than the quorums tolerate.
    """
    ids: dict[str, str] = {}
    lost: list[str] = []
    for place, found in on_disk.items():
        if found is not None:
            if not re.fullmatch(re.escape(place) + r"(\.[0-9]+)?", found):
                raise ForeignCookieError(
                    f"{place} holds the files of the bookie {found!r}; put each bookie's files "
                    f"back into the directory of its name"
                )
            ids[place] = found
            continue
        ids[place], times_lost = _first_unused_id(place, is_registered)
        if times_lost:
            lost.append(_nth_id(place, times_lost - 1))
    if len(lost) > losses_max:
        kept = [place for place in on_disk if on_disk[place] is None and has_files(place)]
        if kept:
            raise DataDirectoryError(
                f"{', '.join(kept)} in --data has files but no cookie, which names their bookie; "
                "restore the file 'cookie' from a backup of that directory. Keep all other files: "
                "they hold the messages"
            )
        raise DataDirectoryError(
            f"the files of {', '.join(lost)} are gone, and this quorum tolerates the loss of "
            f"{losses_max}; restore them from a backup. Only if every message may be lost: begin "
            "with an empty --data directory"
        )
    return Assignment(ids, tuple(lost))


def _first_unused_id(place: str, is_registered: Callable[[str], bool]) -> tuple[str, int]:
    for times_lost in range(_LOSSES_OF_A_PLACE_MAX):
        candidate = _nth_id(place, times_lost)
        if not is_registered(candidate):
            return candidate, times_lost
    raise DataDirectoryError(f"{place} was lost {_LOSSES_OF_A_PLACE_MAX} times; check the disk")


def _nth_id(place: str, times_lost: int) -> str:
    return f"{place}.{times_lost}" if times_lost else place
