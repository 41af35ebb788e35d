"""A bookie is well while it can be found and its journal can be written; read-only is well, too."""

from magnetar.bookie.health import BookieHealth


def _health(
    *, has_session: bool = True, registered_as: str | None = "writable", journals_full: int = 0
) -> BookieHealth:
    return BookieHealth(has_session, registered_as, journals_full, ["a disk of the bookie is full"])


def test_a_read_only_bookie_is_well_and_says_why_it_takes_nothing() -> None:
    assert _health(registered_as="read-only").status == "ok"


def test_everything_that_is_wrong_is_said() -> None:
    assert _health(has_session=False).status == "the metadata store does not answer"
    assert _health(registered_as=None).status == "the bookie is not registered"
    assert _health(journals_full=1).status == "the journal cannot be written: its disk is full"
    all_of_it = _health(has_session=False, registered_as=None, journals_full=2).status
    assert all_of_it.count(";") == 2
