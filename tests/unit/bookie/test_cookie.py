from pathlib import Path

import pytest
from pydantic import ValidationError

from magnetar.bookie.cookie import (
    Cookie,
    DirectoryCookie,
    Stamp,
    read_directory_cookie,
    read_stamp,
)
from magnetar.bookie.cookie_rules import (
    Action,
    BeginStamp,
    DirectoryView,
    FinishStamp,
    Nothing,
    PublishStamp,
    Restore,
    Wanted,
    next_action,
    roles,
)
from magnetar.bookie.disks.directories import COOKIE_NAME, STAMPING_NAME
from magnetar.bookie.errors import CookieError
from magnetar.ledger.system import SystemDisk

OURS = Cookie(bookie_id="b1", instance_id="i1", incarnation="aa", journals=1, storage_shards=(2,))
OTHER_DIRECTORY = OURS.model_copy(update={"incarnation": "bb"})
OTHER_BOOKIE = OURS.model_copy(update={"bookie_id": "b2"})
OTHER_CLUSTER = OURS.model_copy(update={"instance_id": "i2"})
GROWN = OURS.model_copy(update={"storage_shards": (2, 3)})
ROLES = ("data", "journal-0", "ledgers-0", "ledgers-1")
FRESH = "ff"


def wanted(
    *,
    ledgers: int = 2,
    journals: int = 1,
    engine: str = "db",
    may_expand: bool = False,
    may_restore: bool = False,
) -> Wanted:
    return Wanted(
        bookie_id="b1",
        instance_id="i1",
        engine="interleaved" if engine == "interleaved" else "db",
        journals=journals,
        ledgers=ledgers,
        may_expand=may_expand,
        may_restore=may_restore,
    )


def judge(
    on_disk: dict[str, Cookie | None] | Cookie | None = None,
    *,
    stamp: Stamp | None = None,
    in_metadata: Cookie | None = None,
    data: tuple[str, ...] = (),
    want: Wanted | None = None,
    is_restored: bool = False,
) -> Action:
    """`on_disk` by role, or one for all; `data`: the roles whose directories hold something."""
    want = want or wanted()
    views: list[DirectoryView] = []
    for role in roles(want.journals, want.ledgers):
        cookie = on_disk.get(role) if isinstance(on_disk, dict) else on_disk
        found = DirectoryCookie(directory=role, cookie=cookie) if cookie is not None else None
        views.append(DirectoryView(f"/{role}", role, found, role in data))
    return next_action(views, stamp, in_metadata, want, incarnation=FRESH, is_restored=is_restored)


def refusal(*args: object, **named: object) -> str:
    with pytest.raises(CookieError) as raised:
        judge(*args, **named)  # type: ignore[arg-type]  # passed through
    text = str(raised.value)
    assert "\n" not in text
    return text


def all_but(*missing: str) -> dict[str, Cookie | None]:
    return {role: OURS for role in ROLES if role not in missing}


def test_copies_that_agree_are_fine() -> None:
    assert judge(OURS, in_metadata=OURS, data=ROLES) == Nothing(OURS)


# A new bookie


def test_a_new_bookie_is_stamped_in_three_steps() -> None:
    begun = judge()
    assert isinstance(begun, BeginStamp)
    stamp = begun.stamp
    assert stamp.cookie == OURS.model_copy(update={"incarnation": FRESH})
    assert judge(stamp=stamp) == PublishStamp(stamp)
    assert judge(stamp=stamp, in_metadata=stamp.cookie) == FinishStamp(stamp)
    some: dict[str, Cookie | None] = {"data": stamp.cookie, "journal-0": stamp.cookie}
    assert judge(some, stamp=stamp, in_metadata=stamp.cookie) == FinishStamp(stamp)
    assert judge(stamp.cookie, in_metadata=stamp.cookie) == Nothing(stamp.cookie)


def test_a_stamp_that_was_begun_under_another_name_or_with_other_directories_begins_anew() -> None:
    for other in (OTHER_BOOKIE, OTHER_CLUSTER, GROWN):
        assert isinstance(judge(stamp=Stamp(cookie=other, added=ROLES)), BeginStamp)


# Copies that do not belong together


@pytest.mark.parametrize(
    ("on_disk", "in_metadata", "data", "text"),
    [
        (OTHER_BOOKIE, OURS, ROLES, "belongs to bookie b2"),
        (OTHER_CLUSTER, OURS, ROLES, "another cluster"),
        (OURS, None, ROLES, "right metadata store"),
        (OURS, OTHER_DIRECTORY, ROLES, "another directory"),
        (None, None, ROLES, "no cookie"),
        (None, OURS, ROLES, "no cookie"),
        (None, OURS, (), "new bookie id"),
        (all_but("ledgers-1"), OURS, ("ledgers-1",), "/ledgers-1 holds bookie data but no cookie"),
        ({**all_but(), "ledgers-1": OTHER_DIRECTORY}, OURS, (), "another directory"),
        (all_but(), OTHER_DIRECTORY, (), "another directory"),
    ],
)
def test_copies_that_do_not_belong_together_are_refused(
    on_disk: dict[str, Cookie | None] | Cookie | None,
    in_metadata: Cookie | None,
    data: tuple[str, ...],
    text: str,
) -> None:
    assert text in refusal(on_disk, in_metadata=in_metadata, data=data)


@pytest.mark.parametrize("role", ROLES[1:])
def test_b24_one_empty_directory_among_others_is_refused(role: str) -> None:
    """A disk that was exchanged, or is not mounted."""
    text = refusal(all_but(role), in_metadata=OURS)
    assert f"/{role} " in text
    assert "not mounted" in text


def test_exchanged_directories_are_refused() -> None:
    views = [
        DirectoryView("/a", "data", DirectoryCookie(directory="data", cookie=OURS), False),
        DirectoryView("/j", "journal-0", DirectoryCookie(directory="journal-0", cookie=OURS), True),
        DirectoryView("/y", "ledgers-0", DirectoryCookie(directory="ledgers-1", cookie=OURS), True),
        DirectoryView("/x", "ledgers-1", DirectoryCookie(directory="ledgers-0", cookie=OURS), True),
    ]
    with pytest.raises(CookieError, match="/y is ledgers-1 of bookie b1"):
        next_action(views, None, OURS, wanted(), incarnation=FRESH)


# Other directories, another engine


def test_another_engine_is_refused_and_the_text_names_the_way_to_convert() -> None:
    text = refusal(OURS, in_metadata=OURS, want=wanted(engine="interleaved"))
    assert "convert --to interleaved" in text


def test_fewer_directories_are_refused() -> None:
    text = refusal(OURS, in_metadata=OURS, want=wanted(ledgers=1, may_expand=True))
    assert "name all of them" in text


def test_more_directories_are_refused_unless_that_is_allowed() -> None:
    text = refusal(all_but(), in_metadata=OURS, want=wanted(ledgers=3))
    assert "allow_storage_expansion" in text


def test_an_expansion_keeps_the_old_counts_and_takes_three_steps() -> None:
    want = wanted(ledgers=3, may_expand=True)
    begun = judge(all_but(), in_metadata=OURS, want=want)
    stamp = Stamp(cookie=GROWN, previous="aa", added=("ledgers-2",))
    assert begun == BeginStamp(stamp)
    published = judge(all_but(), stamp=stamp, in_metadata=OURS, want=want)
    assert published == PublishStamp(stamp)
    for done in ({}, {"data": GROWN}, {"data": GROWN, "ledgers-2": GROWN}):
        finish = judge({**all_but(), **done}, stamp=stamp, in_metadata=GROWN, want=want)
        assert finish == FinishStamp(stamp)
    assert judge(GROWN, in_metadata=GROWN, want=want) == Nothing(GROWN)


def test_more_journals_leave_the_ledgers_where_they_are() -> None:
    want = wanted(journals=2, may_expand=True)
    begun = judge(all_but(), in_metadata=OURS, want=want)
    assert isinstance(begun, BeginStamp)
    assert begun.stamp.cookie.storage_shards == (2,)
    assert begun.stamp.cookie.journals == 2
    assert begun.stamp.added == ("journal-1",)


def test_a_directory_with_data_is_not_added() -> None:
    want = wanted(ledgers=3, may_expand=True)
    text = refusal(all_but(), in_metadata=OURS, data=("ledgers-2",), want=want)
    assert "/ledgers-2 holds bookie data but no cookie" in text


def test_b24_a_directory_that_is_lost_in_the_middle_of_an_expansion_is_refused() -> None:
    stamp = Stamp(cookie=GROWN, previous="aa", added=("ledgers-2",))
    want = wanted(ledgers=3, may_expand=True)
    text = refusal(all_but("ledgers-0"), stamp=stamp, in_metadata=GROWN, want=want)
    assert "/ledgers-0 " in text


def test_a_half_done_expansion_ends_before_the_next_change() -> None:
    stamp = Stamp(cookie=GROWN, previous="aa", added=("ledgers-2",))
    want = wanted(ledgers=4, may_expand=True)
    assert "3 ledger directories" in refusal(all_but(), stamp=stamp, in_metadata=GROWN, want=want)


# Lost directories that may be filled again


def test_lost_directories_are_restored_before_they_get_their_cookie() -> None:
    want = wanted(may_restore=True)
    begun = judge(all_but("ledgers-1"), in_metadata=OURS, want=want)
    again = OURS.model_copy(update={"incarnation": FRESH})
    stamp = Stamp(cookie=again, previous="aa", lost=("ledgers-1",))
    assert begun == BeginStamp(stamp)
    here = all_but("ledgers-1")
    # Until it is restored it may hold a part of what was fetched already.
    for data in ((), ("ledgers-1",)):
        found = judge(here, stamp=stamp, in_metadata=OURS, want=want, data=data)
        assert found == Restore(stamp, ("/ledgers-1",))
        published = judge(
            here, stamp=stamp, in_metadata=OURS, want=want, data=data, is_restored=True
        )
        assert published == PublishStamp(stamp)
    finish = judge(here, stamp=stamp, in_metadata=again, data=("ledgers-1",))
    assert finish == FinishStamp(stamp)
    assert judge(again, in_metadata=again, want=want) == Nothing(again)
    # The old directory comes back: it knows nothing of what was acknowledged since.
    old = {**dict.fromkeys(ROLES, again), "ledgers-1": OURS}
    assert "another directory" in refusal(old, in_metadata=again, want=want)


def test_a_directory_that_is_lost_while_another_one_is_restored_begins_anew() -> None:
    want = wanted(may_restore=True)
    stamp = Stamp(cookie=OTHER_DIRECTORY, previous="aa", lost=("ledgers-1",))
    begun = judge(all_but("ledgers-0", "ledgers-1"), stamp=stamp, in_metadata=OURS, want=want)
    assert isinstance(begun, BeginStamp)
    assert begun.stamp.lost == ("ledgers-0", "ledgers-1")


def test_b24_a_restored_directory_that_is_empty_again_gets_no_cookie() -> None:
    again = OURS.model_copy(update={"incarnation": "bb"})
    stamp = Stamp(cookie=again, previous="aa", lost=("journal-0", "ledgers-0"))
    here = all_but("journal-0", "ledgers-0")
    assert "not mounted" in refusal(here, stamp=stamp, in_metadata=again)
    # What this process restored is gone again: it does not stamp what it does not hold.
    want = wanted(may_restore=True)
    text = refusal(here, stamp=stamp, in_metadata=again, want=want, is_restored=True)
    assert "not mounted" in text
    # The others get their cookie, so that they are known when the next stamp replaces it.
    finish = judge(here, stamp=stamp, in_metadata=again, want=want)
    assert finish == FinishStamp(stamp, lost_again=("ledgers-0",))
    others: dict[str, Cookie | None] = {role: again for role in ROLES if role != "ledgers-0"}
    begun = judge(others, stamp=stamp, in_metadata=again, want=want)
    assert isinstance(begun, BeginStamp)
    assert begun.stamp.cookie.incarnation == FRESH
    assert (begun.stamp.previous, begun.stamp.lost) == ("bb", ("ledgers-0",))
    restore = judge(others, stamp=begun.stamp, in_metadata=again, want=want)
    assert restore == Restore(begun.stamp, ("/ledgers-0",))


def test_b24_a_lost_directory_that_is_back_before_its_stamp_is_finished_is_not_ours() -> None:
    again = OURS.model_copy(update={"incarnation": "bb"})
    stamp = Stamp(cookie=again, previous="aa", lost=("journal-0", "ledgers-0"))
    here = all_but("journal-0")
    for may_restore in (False, True):
        want = wanted(may_restore=may_restore)
        text = refusal(here, stamp=stamp, in_metadata=again, want=want, data=("ledgers-0",))
        assert "another directory than /ledgers-0" in text


def test_nothing_is_restored_while_the_directories_change() -> None:
    want = wanted(ledgers=3, may_expand=True, may_restore=True)
    assert "at the same time" in refusal(all_but("ledgers-1"), in_metadata=OURS, want=want)


# The record


def test_a_cookie_survives_its_json() -> None:
    assert Cookie.model_validate_json(GROWN.to_json()) == GROWN


@pytest.mark.parametrize("shards", [[], [2, 2], [3, 2], [0], ["2"], [True]])
def test_the_counts_of_ledger_directories_grow(shards: list[object]) -> None:
    with pytest.raises(ValidationError):
        Cookie.model_validate({**OURS.model_dump(), "storage_shards": shards})


def test_a_flipped_bit_in_a_stamp_is_noticed(tmp_path: Path) -> None:
    disk, path = SystemDisk(), tmp_path / STAMPING_NAME
    stamp = Stamp(cookie=GROWN, previous="aa", added=("ledgers-2",))
    path.write_bytes(stamp.to_bytes())
    assert read_stamp(disk, str(tmp_path)) == stamp
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CookieError, match=STAMPING_NAME):
                read_stamp(disk, str(tmp_path))
    path.write_text(stamp.model_dump_json(indent=1))  # as older releases wrote it
    assert read_stamp(disk, str(tmp_path)) == stamp


def test_a_damaged_cookie_of_a_directory_is_no_cookie_of_another_bookie(tmp_path: Path) -> None:
    disk, path = SystemDisk(), tmp_path / COOKIE_NAME
    cookie = DirectoryCookie(directory="ledgers-1", cookie=OURS)
    path.write_bytes(cookie.to_bytes())
    assert read_directory_cookie(disk, str(tmp_path)) == cookie
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CookieError, match=r"cookie is damaged.*Restore it from a backup"):
                read_directory_cookie(disk, str(tmp_path))
    path.write_text(cookie.model_dump_json(indent=1))  # as older releases wrote it
    assert read_directory_cookie(disk, str(tmp_path)) == cookie
