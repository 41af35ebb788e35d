"""Which bookies a new ledger's ensemble takes.

Random among the writable ones, so that load spreads. Racks and zones are a later concern; they will
replace `choose_ensemble` and nothing else.
"""

import random
from collections.abc import Collection

from magnetar.ledger.errors import NotEnoughBookiesError


def choose_ensemble(
    writable: Collection[str], *, ensemble_size: int, rng: random.Random
) -> tuple[str, ...]:
    """`ensemble_size` distinct bookie ids, in random order (the order is part of placement).

    Raises:
        NotEnoughBookiesError: fewer bookies are writable.
    """
    if len(writable) < ensemble_size:
        raise NotEnoughBookiesError(
            f"an ensemble of {ensemble_size} bookies is needed, {len(writable)} are writable: "
            f"{', '.join(sorted(writable)) or 'none'}; start more bookies or ask for a smaller "
            f"ensemble"
        )
    # Sorted first: the same seed must give the same ensemble whatever order the ids came in.
    return tuple(rng.sample(sorted(writable), ensemble_size))
