"""The rules of a bookie that lost data (storage sheet, section 13), off one at a time.

They need a loss, which random runs do not have: the stories of `test_loss_pass.py` notice them.
"""

from magnetar.bookie.integrity import loss_pass
from magnetar.bookie.integrity.full_check import FullCheck
from magnetar.bookie.requests.lac_requests import LacRequests
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.bookie.requests.read_requests import ReadRequests
from tests.simulation.mutations.mutation import Mutation, edited, replaced

MUTATIONS: list[Mutation] = [
    Mutation(
        name="limbo_is_denied",
        rule="C3, 13",
        defects=("D14", "B24"),
        description="a read that misses in a ledger in limbo is answered by a negative",
        apply=lambda: edited(
            ReadRequests,
            "_in_limbo",
            ("was_in_limbo or self._ledgers.is_in_limbo(ledger_id)", "False"),
        ),
    ),
    Mutation(
        name="limbo_tells_its_lac",
        rule="7, 13",
        defects=("D14",),
        description="a bookie that lost entries tells the LAC of what it has left",
        apply=lambda: edited(
            LacRequests, "_reply_lac", ("self._ledgers.is_in_limbo(ledger_id)", "False")
        ),
    ),
    Mutation(
        name="loss_pass_left_out",
        rule="13",
        defects=("D14", "D16", "B24"),
        description="the cookies are stamped, and nobody looks at what the bookie had",
        apply=lambda: replaced(loss_pass, "names_bookie", lambda metadata, bookie_id: False),
    ),
    Mutation(
        name="loss_pass_does_not_fence",
        rule="13",
        defects=("D16",),
        description="a ledger whose fence may be lost takes ordinary adds",
        apply=lambda: replaced(loss_pass, "must_be_fenced", lambda metadata, bookie_id: False),
    ),
    Mutation(
        name="cookies_before_the_loss_is_noted",
        rule="12, 13",
        defects=("D14", "B24"),
        description="the stamp is finished before the records of the lost ledgers are durable",
        apply=lambda: edited(
            loss_pass.LossPass,
            "run",
            ("    await self._storage.flush()\n    horizon", "    horizon"),
        ),
    ),
    Mutation(
        name="no_loss_horizon",
        rule="13",
        defects=("D16",),
        description="a ledger that names the bookie nowhere any more is new to it after a loss",
        apply=lambda: edited(LossHorizon, "hides", ("ledger_id <= self.ledger_id", "False")),
    ),
    Mutation(
        name="limbo_left_without_copying",
        rule="13",
        defects=("D14",),
        description="a ledger leaves limbo when it is closed, whatever is missing here",
        apply=lambda: edited(
            FullCheck, "_make_whole", ("await self._copy_missing(metadata)", "True")
        ),
    ),
    Mutation(
        name="loss_mark_removed_before_the_flush",
        rule="13",
        defects=("D14",),
        description="nobody remembers the check when the power goes before its result is durable",
        apply=lambda: edited(FullCheck, "run_round", ("await self._flush()\n", "pass\n")),
    ),
    Mutation(
        name="limbo_is_not_recovered",
        rule="13",
        defects=("D14",),
        description="the check takes a ledger that is not closed for whole up to its last fragment",
        apply=lambda: edited(
            FullCheck,
            "_settled_metadata",
            ("metadata.state is LedgerState.CLOSED or is_writable_elsewhere", "True"),
        ),
    ),
]
