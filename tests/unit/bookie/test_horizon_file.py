"""What a bookie keeps for ever of a loss."""

from pathlib import Path

import pytest

from magnetar.bookie.errors import HorizonDamagedError
from magnetar.bookie.integrity.horizon_file import HORIZON_NAME, read_horizon, write_horizon
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.ledger.system import SystemDisk

HORIZON = LossHorizon(100, frozenset({7, 99}))


def directories(tmp_path: Path, count: int) -> list[str]:
    made = [tmp_path / str(number) for number in range(count)]
    for each in made:
        each.mkdir()
    return list(map(str, made))


def test_a_bookie_that_lost_nothing_hides_nothing(tmp_path: Path) -> None:
    found = read_horizon(SystemDisk(), directories(tmp_path, 2))
    assert found == LossHorizon()
    assert not found.hides(0)


def test_the_horizon_is_read_from_whichever_directory_has_it(tmp_path: Path) -> None:
    places = directories(tmp_path, 3)
    write_horizon(SystemDisk(), places, HORIZON)
    (Path(places[0]) / HORIZON_NAME).unlink()
    (Path(places[1]) / HORIZON_NAME).write_bytes(b"nonsense")
    assert read_horizon(SystemDisk(), places) == HORIZON
    assert HORIZON.hides(6)
    assert not HORIZON.hides(7)
    assert HORIZON.hides(100)
    assert not HORIZON.hides(101)


def test_the_horizon_of_the_last_loss_counts(tmp_path: Path) -> None:
    places = directories(tmp_path, 2)
    write_horizon(SystemDisk(), places, HORIZON)
    write_horizon(SystemDisk(), places[:1], LossHorizon(200))  # cut between the two
    assert read_horizon(SystemDisk(), places) == LossHorizon(200)


def test_a_flipped_byte_is_noticed_and_no_start_goes_on_without_a_copy(tmp_path: Path) -> None:
    (place,) = directories(tmp_path, 1)
    write_horizon(SystemDisk(), [place], HORIZON)
    path = Path(place) / HORIZON_NAME
    data = path.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(HorizonDamagedError, match="no other copy"):
            read_horizon(SystemDisk(), [place])
