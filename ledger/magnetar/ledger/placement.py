"""Placement: choose the bookies of an ensemble, and the replacement of a failed member.

The order of an ensemble is part of placement: entry e is stored on the members `(e + k) mod E` for
k below Qw. So failure domains (racks, zones) must be checked for each run of Qw consecutive
members; the last runs wrap around to the first member. `RandomPlacement` knows no domains;
`placement_domains.py` spreads every write set over racks or zones.

All choices come from the injected random. A placement holds no connection and does no I/O. Source:
ledger protocol, section 5; auto-recovery, section 7.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from magnetar.ledger.errors import NotEnoughBookiesError
from magnetar.ledger.registration import BookieInfo


class Placement(Protocol):
    """Chooses bookies. `bookies` are the writable ones. Those in `excluded` are never chosen; those
    in `avoided` (quarantined) only if no others are left.
    """

    def choose_ensemble(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Choose distinct bookies for a new ensemble, in the order of their places. Return
        `ensemble_size` bookies, or fewer only from a placement that may do so
        (`OpportunisticStriping`).

        Raises:
            NotEnoughBookiesError: says what is missing.
        """
        ...

    def choose_replacement(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble: Sequence[str],
        index: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> str:
        """Choose a bookie for the place `index` of the ensemble, not one of its members.

        Raises:
            NotEnoughBookiesError: says what is missing.
        """
        ...


class RandomPlacement:
    """Chooses bookies at random, so that load spreads evenly."""

    def __init__(self, random: random.Random) -> None:
        self._random = random

    def choose_ensemble(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> tuple[str, ...]:
        good, spare = candidates(bookies, excluded=excluded, avoided=avoided)
        if len(good) + len(spare) < ensemble_size:
            raise NotEnoughBookiesError(
                f"an ensemble of {ensemble_size} bookies is needed, {len(good) + len(spare)} are "
                f"writable: {', '.join(good + spare) or 'none'}; start more bookies or ask for a "
                f"smaller ensemble"
            )
        if len(good) >= ensemble_size:
            return tuple(self._random.sample(good, ensemble_size))
        chosen = good + self._random.sample(spare, ensemble_size - len(good))
        self._random.shuffle(chosen)
        return tuple(chosen)

    def choose_replacement(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble: Sequence[str],
        index: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> str:
        good, spare = candidates(bookies, excluded={*excluded, *ensemble}, avoided=avoided)
        if not good and not spare:
            raise NotEnoughBookiesError(
                f"no writable bookie is left to replace {ensemble[index]}: the other members are "
                f"{', '.join(name for name in ensemble if name != ensemble[index]) or 'none'}; "
                f"start more bookies"
            )
        return self._random.choice(good or spare)


class OpportunisticStriping:
    """Accepts a smaller new ensemble than requested, down to the write quorum, if bookies are few.

    Striping (E above Qw) spreads load and does not affect safety: every entry still has Qw copies.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def choose_ensemble(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> tuple[str, ...]:
        for size in range(ensemble_size, write_quorum, -1):
            try:
                return self._placement.choose_ensemble(
                    bookies,
                    ensemble_size=size,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    excluded=excluded,
                    avoided=avoided,
                )
            except NotEnoughBookiesError:
                continue
        return self._placement.choose_ensemble(
            bookies,
            ensemble_size=write_quorum,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            excluded=excluded,
            avoided=avoided,
        )

    def choose_replacement(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble: Sequence[str],
        index: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> str:
        return self._placement.choose_replacement(
            bookies,
            ensemble=ensemble,
            index=index,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            excluded=excluded,
            avoided=avoided,
        )


def candidates(
    bookies: Mapping[str, BookieInfo], *, excluded: Collection[str], avoided: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the bookies to choose from: good ones and avoided ones. Both are sorted, since the
    same seed must give the same choice whatever order they came in.
    """
    usable = [name for name in sorted(bookies) if name not in excluded]
    good = [name for name in usable if name not in avoided]
    spare = [name for name in usable if name in avoided]
    return good, spare
