"""What reading an object back in full says of it."""

from pathlib import Path

import pytest

from magnetar.ledger.errors import (
    LogFencedError,
    MetadataUnavailableError,
    ObjectDamagedError,
    ObjectMissingError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.scrub_plan import Verdict
from tests.unit.ledger.offloading.scrubbed_log import HandClock, ScrubbedLog

AWAY = ObjectStoreUnavailableError("503")
REFUSED = ObjectStoreRefusedError("403")
MISSING = ObjectMissingError("404")
DAMAGED = ObjectDamagedError("flipped")


@pytest.fixture
def log(tmp_path: Path) -> ScrubbedLog:
    return ScrubbedLog(tmp_path)


@pytest.fixture
def scrubber(log: ScrubbedLog) -> ObjectScrubber:
    return ObjectScrubber(log, bytes_per_s_max=0, clock=HandClock())


async def verdict(scrubber: ObjectScrubber, log: ScrubbedLog) -> Verdict | None:
    checked = await scrubber.check(log, log.ledgers[0])
    return checked.verdict if checked is not None else None


async def test_an_object_as_it_was_written_is_whole_and_every_byte_of_it_was_read(
    log: ScrubbedLog, scrubber: ObjectScrubber
) -> None:
    await log.add(1)
    assert await verdict(scrubber, log) is Verdict.WHOLE
    assert scrubber.counts.whole == 1
    assert scrubber.counts.bytes_read > 3_000
    assert log.rereads == 0


async def test_a_change_of_any_byte_is_damage(log: ScrubbedLog, scrubber: ObjectScrubber) -> None:
    ledger = await log.add(1)
    for at in range(0, log.file(ledger).stat().st_size, 7):
        log.rot(ledger, at)
        assert await verdict(scrubber, log) is Verdict.DAMAGED, at
        log.rot(ledger, at)
    assert await verdict(scrubber, log) is Verdict.WHOLE


async def test_an_object_of_another_attempt_or_size_than_the_node_names_is_damage(
    log: ScrubbedLog, scrubber: ObjectScrubber
) -> None:
    one = await log.add(1)
    other = await log.add(2)
    log.file(one).write_bytes(log.file(other).read_bytes())
    assert await verdict(scrubber, log) is Verdict.DAMAGED


async def test_an_object_that_is_cut_off_is_damage(
    log: ScrubbedLog, scrubber: ObjectScrubber
) -> None:
    ledger = await log.add(1)
    log.file(ledger).write_bytes(log.file(ledger).read_bytes()[:-1])
    assert await verdict(scrubber, log) is Verdict.DAMAGED


async def test_an_object_that_is_not_there_is_gone_after_the_node_was_read_again(
    log: ScrubbedLog, scrubber: ObjectScrubber
) -> None:
    ledger = await log.add(1)
    log.file(ledger).unlink()
    assert await verdict(scrubber, log) is Verdict.GONE
    assert log.rereads == 1
    assert scrubber.counts.gone == 1


@pytest.mark.parametrize("errors", [[MISSING], [DAMAGED]])
async def test_what_is_wrong_once_is_no_verdict(
    log: ScrubbedLog, scrubber: ObjectScrubber, errors: list[Exception]
) -> None:
    log.fail(await log.add(1), *errors)
    assert await verdict(scrubber, log) is Verdict.WHOLE


@pytest.mark.parametrize(
    "errors",
    [
        [AWAY],
        [REFUSED],
        [MISSING, AWAY],
        [DAMAGED, REFUSED],
        [MISSING, DAMAGED],
        [DAMAGED, MISSING],
    ],
)
async def test_anything_else_is_unreachable_and_never_gone(
    log: ScrubbedLog, scrubber: ObjectScrubber, errors: list[Exception]
) -> None:
    log.fail(await log.add(1), *errors)
    assert await verdict(scrubber, log) is Verdict.UNREACHABLE
    assert (scrubber.counts.gone, scrubber.counts.damaged) == (0, 0)


async def test_an_object_that_the_node_does_not_name_any_more_gets_no_verdict(
    log: ScrubbedLog, scrubber: ObjectScrubber
) -> None:
    ledger = await log.add(1)
    log.file(ledger).unlink()
    log.ledgers = ()
    assert await scrubber.check(log, ledger) is None
    await log.add(1, attempt="cd" * 16)
    assert await scrubber.check(log, ledger) is None


async def test_without_the_node_nothing_is_gone(log: ScrubbedLog, scrubber: ObjectScrubber) -> None:
    log.file(await log.add(1)).unlink()
    log.reread_error = MetadataUnavailableError("away")
    assert await verdict(scrubber, log) is Verdict.UNREACHABLE
    log.reread_error = LogFencedError("another owner")
    with pytest.raises(LogFencedError):
        await verdict(scrubber, log)
