from itertools import permutations

import pytest

from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.reading.read_errors import is_negative, worst_error

DAMAGED, MALFORMED = DigestMismatchError("d"), BookieProtocolError("p")
AWAY, NO_ENTRY, NO_LEDGER = (
    BookieUnavailableError("u"),
    NoSuchEntryError("e"),
    NoSuchLedgerOnBookieError("l"),
)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([NO_ENTRY, NO_LEDGER, NO_ENTRY], NoSuchEntryError),
        ([NO_LEDGER, NO_LEDGER, NO_LEDGER], NoSuchEntryError),
        ([NO_ENTRY, AWAY, NO_LEDGER], BookieUnavailableError),
        ([NO_ENTRY, AWAY, DAMAGED], DigestMismatchError),
        ([NO_ENTRY, AWAY, MALFORMED], BookieProtocolError),
        ([AWAY, MALFORMED, DAMAGED], DigestMismatchError),
    ],
)
def test_rule_9_1_the_worst_is_reported_in_whatever_order_they_came(
    errors: list[LedgerError], expected: type[LedgerError]
) -> None:
    for order in permutations(errors):
        assert type(worst_error(order, 7, 3)) is expected


def test_only_explicit_negatives_are_negatives() -> None:
    assert [is_negative(each) for each in (NO_ENTRY, NO_LEDGER, AWAY, DAMAGED, MALFORMED)] == [
        True,
        True,
        False,
        False,
        False,
    ]
