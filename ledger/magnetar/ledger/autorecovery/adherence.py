"""Whether ensembles lie where the placement wants them. Pure.

Each write set of a fragment is looked at by itself: with E > Qw it is not enough that the ensemble
as a whole spans several racks. Bookies that did not say their domain count as one domain of their
own, and a minimum is never higher than the number of domains that there are. Of a write set with a
member that is not registered nobody knows; it is left out.

Source: auto-recovery, section 7.
"""

from collections.abc import Mapping
from enum import Enum

from magnetar.ledger.ledger_metadata import Fragment
from magnetar.ledger.placing.placement_search import write_sets
from magnetar.ledger.registration import BookieInfo


class Adherence(Enum):
    """How well a fragment keeps to the placement."""

    STRICT = "strict"
    """Every write set spans what it should."""
    SOFT = "soft"
    """Some write set spans less, but more than one domain."""
    FAILED = "failed"
    """Some write set lies in a single domain."""
    UNKNOWN = "unknown"
    """No write set is known as a whole."""


def adherence_of(
    fragment: Fragment,
    bookies: Mapping[str, BookieInfo],
    *,
    write_quorum: int,
    racks_min: int,
    zones_min: int = 1,
) -> Adherence:
    """How well one fragment keeps to the minima, with the bookies as they are registered now."""
    worst = Adherence.UNKNOWN
    wanted = [
        (_zone, min(zones_min, write_quorum, len({_zone(each) for each in bookies.values()}))),
        (_rack, min(racks_min, write_quorum, len({_rack(each) for each in bookies.values()}))),
    ]
    for places in write_sets(len(fragment.bookies), write_quorum):
        members = [bookies.get(fragment.bookies[place]) for place in places]
        known = [member for member in members if member is not None]
        if len(known) < len(members):
            continue
        for domain, minimum in wanted:
            spanned = len({domain(member) for member in known})
            if spanned < minimum:
                if spanned == 1:
                    return Adherence.FAILED
                worst = Adherence.SOFT
        if worst is Adherence.UNKNOWN:
            worst = Adherence.STRICT
    return worst


def _zone(info: BookieInfo) -> tuple[str, ...]:
    return (info.zone,)


def _rack(info: BookieInfo) -> tuple[str, ...]:
    return (info.zone, info.rack)
