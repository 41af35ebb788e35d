"""Rack- and zone-aware placement: every write set spans several failure domains.

A rack is identified by its zone and its name. `rack_aware` requires a minimum of racks in each
write set. `zone_aware` requires a minimum of zones, and puts members of one zone into different
racks if it can. Minima are capped at the write quorum.

If there are too few domains, there are two modes. *Enforced*: NotEnoughBookiesError; bookies of
unknown domain are not used at all. *Best effort*: the minima are lowered step by step, racks before
zones, until there are bookies. Bookies of unknown domain count as one domain of their own.
`on_fallback` then gets the write sets that span too little. In both modes quarantined bookies come
last: best effort gives up a domain before it uses one of them.

The domains of unregistered bookies are remembered for the lifetime of the placement: a replacement
must know where the other members are. Source: auto-recovery, section 7.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product

import structlog

from magnetar.ledger.errors import NotEnoughBookiesError
from magnetar.ledger.placement import (
    OpportunisticStriping,
    Placement,
    RandomPlacement,
    candidates,
)
from magnetar.ledger.placing.placement_search import Domains, Search, spans, write_sets
from magnetar.ledger.registration import BookieInfo
from magnetar.ledger.settings import LedgerSettings

_log = structlog.get_logger(__name__)

OnFallback = Callable[[list[str]], None]
"""Called with one sentence for each write set that spans fewer domains than required."""


def rack_aware(
    random: random.Random,
    *,
    racks_min: int = 2,
    is_enforced: bool = False,
    on_fallback: OnFallback = lambda shortfalls: None,
) -> Placement:
    """Return a placement whose write sets each span `racks_min` racks."""
    return _SpreadPlacement(
        random,
        levels=(("rack", _rack_of),),
        minima=(racks_min,),
        is_enforced=is_enforced,
        on_fallback=on_fallback,
    )


def zone_aware(
    random: random.Random,
    *,
    zones_min: int = 2,
    racks_min: int = 1,
    is_enforced: bool = False,
    on_fallback: OnFallback = lambda shortfalls: None,
) -> Placement:
    """Return a placement whose write sets each span `zones_min` zones, and `racks_min` racks."""
    return _SpreadPlacement(
        random,
        levels=(("zone", _zone_of), ("rack", _rack_of)),
        minima=(zones_min, racks_min),
        is_enforced=is_enforced,
        on_fallback=on_fallback,
    )


def placement_of(settings: LedgerSettings, random: random.Random) -> Placement:
    """Return the placement that the settings describe."""
    placement: Placement
    if settings.placement == "random":
        placement = RandomPlacement(random)
    elif settings.placement == "rack":
        placement = rack_aware(
            random,
            racks_min=settings.placement_racks_min,
            is_enforced=settings.placement_enforced,
            on_fallback=_log_fallback,
        )
    else:
        placement = zone_aware(
            random,
            zones_min=settings.placement_zones_min,
            racks_min=settings.placement_racks_min,
            is_enforced=settings.placement_enforced,
            on_fallback=_log_fallback,
        )
    return OpportunisticStriping(placement) if settings.opportunistic_striping else placement


def _log_fallback(shortfalls: list[str]) -> None:
    _log.warning("placement_fell_back", shortfalls=shortfalls)


def _zone_of(info: BookieInfo) -> str | None:
    return info.zone or None


def _rack_of(info: BookieInfo) -> str | None:
    if not info.rack:
        return None
    return f"{info.zone}/{info.rack}" if info.zone else info.rack


class _SpreadPlacement:
    def __init__(
        self,
        random: random.Random,
        *,
        levels: Sequence[tuple[str, Callable[[BookieInfo], str | None]]],
        minima: Sequence[int],
        is_enforced: bool,
        on_fallback: OnFallback,
    ) -> None:
        self._random = random
        self._levels = levels
        self._minima = minima
        self._is_enforced = is_enforced
        self._on_fallback = on_fallback
        self._infos: dict[str, BookieInfo] = {}
        """Every bookie that was ever seen; the cluster's history bounds their number."""

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
        return self._fill(
            f"an ensemble of {ensemble_size} bookies is needed",
            [None] * ensemble_size,
            bookies,
            write_quorum=write_quorum,
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
        places: list[str | None] = [*ensemble]
        places[index] = None
        chosen = self._fill(
            f"a replacement for {ensemble[index]} in {', '.join(ensemble)} is needed",
            places,
            bookies,
            write_quorum=write_quorum,
            excluded={*excluded, *ensemble},
            avoided=avoided,
            preferred=self._domains_of(ensemble[index]),
        )
        return chosen[index]

    def _fill(
        self,
        need: str,
        places: Sequence[str | None],
        bookies: Mapping[str, BookieInfo],
        *,
        write_quorum: int,
        excluded: Collection[str],
        avoided: Collection[str],
        preferred: Domains | None = None,
    ) -> tuple[str, ...]:
        """Fill the free places with bookies.

        Raises:
            NotEnoughBookiesError
        """
        self._infos.update(bookies)
        minima = [min(minimum, write_quorum) for minimum in self._minima]
        good, spares = candidates(bookies, excluded=excluded, avoided=avoided)
        usable = good + spares
        if self._is_enforced:
            good, spares = (
                self._of_known_domain(good, minima),
                self._of_known_domain(spares, minima),
            )
        self._random.shuffle(good)
        self._random.shuffle(spares)
        domains = {
            name: self._domains_of(name)
            for name in (*good, *spares, *(name for name in places if name is not None))
        }
        free = places.count(None)
        for spares_max in range(min(free, len(spares)) + 1):
            if spares_max + len(good) < free:
                continue
            for lowered in self._attempts(minima):
                chosen = Search(
                    places,
                    candidates=good,
                    spares=spares,
                    spares_max=spares_max,
                    domains=domains,
                    write_quorum=write_quorum,
                    minima=lowered,
                    preferred=preferred,
                ).run()
                if chosen is not None:
                    self._tell_shortfalls(chosen, write_quorum, minima)
                    return chosen
        raise NotEnoughBookiesError(self._what_is_missing(need, usable, free, write_quorum, minima))

    def _attempts(self, minima: Sequence[int]) -> Iterable[tuple[int, ...]]:
        """Return the minima to try, in order: best effort lowers the narrower domains first."""
        if self._is_enforced:
            return [tuple(minima)]
        return product(*(range(minimum, 0, -1) for minimum in minima))

    def _of_known_domain(self, names: Sequence[str], minima: Sequence[int]) -> list[str]:
        return [
            name
            for name in names
            if all(
                minimum <= 1 or domain_of(self._infos[name]) is not None
                for (_, domain_of), minimum in zip(self._levels, minima, strict=True)
            )
        ]

    def _domains_of(self, name: str) -> Domains:
        """Return the bookie's domain per level. Best effort takes all bookies of unknown domain for
        one domain; with enforcement they do not count.
        """
        info = self._infos.get(name)
        unknown = None if self._is_enforced else ""
        return tuple(
            (domain_of(info) if info is not None else None) or unknown
            for _, domain_of in self._levels
        )

    def _tell_shortfalls(
        self, members: Sequence[str], write_quorum: int, minima: Sequence[int]
    ) -> None:
        if not any(
            domain_of(info) is not None
            for info in self._infos.values()
            for _, domain_of in self._levels
        ):
            return  # No bookie ever had a domain, so nothing can fall short.
        domains = {name: self._domains_of(name) for name in members}
        shortfalls = [
            f"write set {', '.join(members[index] for index in write_set)} spans {have} of "
            f"{need} {level}s"
            for write_set in write_sets(len(members), write_quorum)
            for (level, _), have, need in zip(
                self._levels, spans(members, write_set, domains), minima, strict=True
            )
            if have < need
        ]
        if shortfalls:
            self._on_fallback(shortfalls)

    def _what_is_missing(
        self, need: str, usable: Sequence[str], free: int, write_quorum: int, minima: Sequence[int]
    ) -> str:
        if len(usable) < free:
            return (
                f"{need}, {len(usable)} are writable: {', '.join(usable) or 'none'}; start more "
                f"bookies or ask for a smaller ensemble"
            )
        parts = []
        for (level, domain_of), minimum in zip(self._levels, minima, strict=True):
            if minimum <= 1:
                continue
            members: dict[str, list[str]] = {}
            for name in usable:
                members.setdefault(domain_of(self._infos[name]) or "", []).append(name)
            unknown = members.pop("", [])
            found = "; ".join(f"{each}: {', '.join(members[each])}" for each in sorted(members))
            parts.append(
                f"each write set of {write_quorum} must span {minimum} {level}s, and writable are, "
                f"by {level}: {found or 'none'}"
                + (f"; without a {level}, so not used: {', '.join(unknown)}" if unknown else "")
                + f"; {_advice(level, minimum, members)}"
            )
        return f"{need}: {' | '.join(parts)}"


def _advice(level: str, minimum: int, members: Mapping[str, Sequence[str]]) -> str:
    if len(members) < minimum:
        return f"start bookies in {minimum - len(members)} more {level}s (--{level})"
    largest = max(sorted(members), key=lambda each: len(members[each]))
    return f"too few are outside of {level} {largest}: start bookies in other {level}s"
