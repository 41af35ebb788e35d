import pytest

from magnetar.bookie.cookie import Cookie, CookieAction, next_action
from magnetar.bookie.errors import CookieError

OURS = Cookie(bookie_id="b1", instance_id="i1", incarnation="aa")
OTHER_DIRECTORY = Cookie(bookie_id="b1", instance_id="i1", incarnation="bb")
OTHER_BOOKIE = Cookie(bookie_id="b2", instance_id="i1", incarnation="aa")
OTHER_CLUSTER = Cookie(bookie_id="b1", instance_id="i2", incarnation="aa")


def judge(
    *,
    on_disk: Cookie | None = None,
    stamping: Cookie | None = None,
    in_metadata: Cookie | None = None,
    is_empty: bool = True,
) -> CookieAction:
    return next_action(
        directory="/data",
        bookie_id="b1",
        instance_id="i1",
        on_disk=on_disk,
        stamping=stamping,
        in_metadata=in_metadata,
        is_directory_empty=is_empty,
    )


def test_copies_that_agree_are_fine() -> None:
    assert judge(on_disk=OURS, in_metadata=OURS, is_empty=False) is CookieAction.NOTHING


def test_a_new_bookie_is_stamped_in_three_steps() -> None:
    assert judge() is CookieAction.BEGIN_STAMP
    assert judge(stamping=OURS) is CookieAction.STAMP_METADATA
    assert judge(stamping=OURS, in_metadata=OURS) is CookieAction.FINISH_STAMP
    assert judge(on_disk=OURS, in_metadata=OURS) is CookieAction.NOTHING


def test_a_stamp_that_was_begun_under_another_name_begins_anew() -> None:
    assert judge(stamping=OTHER_BOOKIE) is CookieAction.BEGIN_STAMP


@pytest.mark.parametrize(
    ("on_disk", "stamping", "in_metadata", "is_empty", "text"),
    [
        (OTHER_BOOKIE, None, OURS, False, "belongs to bookie b2"),
        (OTHER_CLUSTER, None, OURS, False, "another cluster"),
        (OURS, None, None, False, "right metadata store"),
        (OURS, None, OTHER_DIRECTORY, False, "another data directory"),
        (None, None, None, False, "no cookie"),
        (None, None, OURS, False, "no cookie"),
        (None, OURS, OURS, False, "no cookie"),
        (None, None, OURS, True, "new bookie id"),
        (None, OURS, OTHER_DIRECTORY, True, "new bookie id"),
    ],
)
def test_copies_that_do_not_belong_together_are_refused(
    on_disk: Cookie | None,
    stamping: Cookie | None,
    in_metadata: Cookie | None,
    is_empty: bool,
    text: str,
) -> None:
    with pytest.raises(CookieError, match=text) as raised:
        judge(on_disk=on_disk, stamping=stamping, in_metadata=in_metadata, is_empty=is_empty)
    assert "\n" not in str(raised.value)


def test_a_cookie_survives_its_json() -> None:
    assert Cookie.model_validate_json(OURS.to_json()) == OURS
