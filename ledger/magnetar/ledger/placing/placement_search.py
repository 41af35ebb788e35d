"""Fills the places of an ensemble so that every write set spans enough failure domains. Pure.

The write sets of an ensemble are its E rotations: each run of Qw consecutive places, the last ones
wrapping around to the first. A candidate has one domain per *level* (a zone, a rack). Each level
has a minimum: the number of different domains in every write set. A new ensemble has all places
free, a replacement one.

The search goes place by place and tries the domain that the neighbouring places use least. It goes
back when a write set cannot reach its minimum any more. Bookies of the same domains are
interchangeable, so it branches over domains and not over bookies. If there are many domains, it
finds an answer at once. If there are few, it tries all orders, up to `STEPS_MAX`.
"""

from collections.abc import Mapping, Sequence

STEPS_MAX = 10_000
"""Places tried before a search fails, some ten milliseconds."""

Domains = tuple[str | None, ...]
"""One domain per level, the widest first; None if unknown, which counts as no domain."""


def write_sets(ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the places of each distinct write set."""
    starts = 1 if ensemble_size == write_quorum else ensemble_size
    return [
        tuple((start + k) % ensemble_size for k in range(write_quorum)) for start in range(starts)
    ]


def spans(
    members: Sequence[str | None], write_set: Sequence[int], domains: Mapping[str, Domains]
) -> list[int]:
    """Return the number of different domains among the members of a write set, per level."""
    known = [domains[name] for index in write_set if (name := members[index]) is not None]
    return [len(set(level) - {None}) for level in zip(*known, strict=True)]


class Search:
    """One search for bookies for the free places. Use once."""

    def __init__(
        self,
        places: Sequence[str | None],
        *,
        candidates: Sequence[str],
        spares: Sequence[str],
        spares_max: int,
        domains: Mapping[str, Domains],
        write_quorum: int,
        minima: Sequence[int],
        preferred: Domains | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            places: the members; None is a free place.
            candidates, spares: bookies for the free places, in order of preference; at most
                `spares_max` of the spares are used.
            domains: of every name among `places`, `candidates` and `spares`.
            minima: per level, the number of domains that each write set with a free place must
                span.
            preferred: among equals, candidates of these domains come first.
        """
        self._places = list(places)
        self._free = [index for index, name in enumerate(places) if name is None]
        self._good, self._spares, self._spares_left = list(candidates), list(spares), spares_max
        self._domains = domains
        self._minima = minima
        self._preferred = preferred
        self._steps = 0
        self._sets_of: dict[int, list[tuple[int, ...]]] = {index: [] for index in self._free}
        for write_set in write_sets(len(places), write_quorum):
            for index in write_set:
                if index in self._sets_of:
                    self._sets_of[index].append(write_set)

    def run(self) -> tuple[str, ...] | None:
        """Return the members with all places filled, or None if that is impossible."""
        if not self._fill(0):
            return None
        return tuple(name for name in self._places if name is not None)

    def _fill(self, at: int) -> bool:
        if at == len(self._free):
            return True
        index = self._free[at]
        for name in self._choices(index):
            self._steps += 1
            if self._steps > STEPS_MAX:
                return False
            is_spare = name in self._spares
            self._places[index] = name
            self._spares_left -= is_spare
            if self._can_span(index) and self._fill(at + 1):
                return True
            self._places[index] = None
            self._spares_left += is_spare
        return False

    def _choices(self, index: int) -> list[str]:
        """Return one unused bookie for each combination of domains, the best first."""
        used = set(self._places)
        neighbours = [
            self._domains[name]
            for other in sorted({other for each in self._sets_of[index] for other in each})
            if (name := self._places[other]) is not None
        ]
        first_of: dict[tuple[bool, Domains], str] = {}
        for is_spare, names in ((False, self._good), (True, self._spares)):
            if is_spare and not self._spares_left:
                break
            for name in names:
                if name not in used:
                    first_of.setdefault((is_spare, self._domains[name]), name)

        def cost(kind: tuple[bool, Domains]) -> tuple[object, ...]:
            is_spare, domains = kind
            shared = tuple(
                sum(each[level] == domain for each in neighbours)
                for level, domain in enumerate(domains)
            )
            return (*shared, domains != self._preferred, is_spare)

        return [first_of[kind] for kind in sorted(first_of, key=cost)]  # stable: random before

    def _can_span(self, index: int) -> bool:
        """Return whether all write sets of the place can still reach their minima."""
        for write_set in self._sets_of[index]:
            free = sum(self._places[each] is None for each in write_set)
            found = spans(self._places, write_set, self._domains)
            for have, need in zip(found, self._minima, strict=True):
                # A minimum of one requires nothing, not even a known domain.
                if need > 1 and have + free < need:
                    return False
        return True
