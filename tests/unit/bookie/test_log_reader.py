"""Reading entry logs: every byte that is handed out was checked, and damage has a name."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.entry_log import StoredRun
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.pieces import PIECE_BYTES
from magnetar.bookie.errors import StorageCorruptError, StorageIOError, StorageLogMissingError
from magnetar.ledger.ports import File
from magnetar.ledger.system import SystemDisk
from tests.entry_logs import make_writer, planned
from tests.ledger_storage import make_packet

ALL = 1 << 40
BYTES = 1 << 20


def write_run(
    directory: Path, ids: Sequence[int], payload: bytes = b"", ledger_id: int = 1
) -> StoredRun:
    writer = make_writer(directory)
    location = writer.write(ledger_id, planned(ledger_id, ids, payload))
    writer.sync()
    return StoredRun(ledger_id, ids[0], ids[-1], location)


def make_reader(directory: Path) -> EntryLogReader:
    return EntryLogReader(str(directory), open_files_max=1, disk=SystemDisk())


def flip(directory: Path, at: int, mask: int = 1) -> None:
    path = directory / log_name(1)
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def test_single_packets_are_those_of_the_whole_run(tmp_path: Path) -> None:
    for number, (ids, size) in enumerate(
        ((range(5, 40), 700), (range(1), 9000), (range(0, 60, 3), 500), ((1, 2, 9), 5000))
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        payload = bytes(range(256)) * (size // 256)
        run = write_run(directory, ids, payload)
        reader = make_reader(directory)
        head = reader.load_head(run)
        loaded = reader.load_run(run)
        for entry_id in ids:
            packet = make_packet(1, entry_id, payload)
            assert loaded.take(entry_id, entry_id, BYTES) == [packet]
            assert reader.load_packets(run, head, entry_id, entry_id, BYTES) == [packet]
            several = loaded.take(entry_id, ALL, 3000)
            assert reader.load_packets(run, head, entry_id, ALL, 3000) == several
        assert reader.check_run(run) == []
        assert reader.locate(1, run.location.offset) == run
        reader.close()


def test_4_2_a_read_for_another_ledger_or_of_another_place_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path, range(10))
    reader = make_reader(tmp_path)
    moved = run.location._replace(offset=run.location.offset + 1)
    fewer = run.location._replace(entries=9)
    for wrong in (
        run._replace(ledger_id=2),
        run._replace(location=moved),
        run._replace(location=fewer),
    ):
        with pytest.raises(StorageCorruptError) as caught:
            reader.load_head(wrong)
        assert caught.value.damage is not None
        assert caught.value.damage[2:5] == wrong[:3]
        with pytest.raises(StorageCorruptError):
            reader.load_run(wrong)
    with pytest.raises(StorageCorruptError):
        reader.locate(1, run.location.offset + 4)
    reader.close()


def test_b14_a_missing_log_names_the_entries_that_are_not_readable(tmp_path: Path) -> None:
    run = write_run(tmp_path, range(10))
    (tmp_path / log_name(1)).unlink()
    reader = make_reader(tmp_path)
    with pytest.raises(StorageLogMissingError) as caught:
        reader.load_head(run)
    assert caught.value.damage is not None
    assert caught.value.damage[:5] == (str(tmp_path / log_name(1)), 64, 1, 0, 9)
    with pytest.raises(StorageLogMissingError):
        reader.check_run(run)


def test_b14_every_truncation_is_an_error_or_the_right_packet(tmp_path: Path) -> None:
    payload = b"x" * 1000
    run = write_run(tmp_path, range(10), payload)
    whole = (tmp_path / log_name(1)).read_bytes()
    for size in range(0, len(whole), 37):
        (tmp_path / log_name(1)).write_bytes(whole[:size])
        reader = make_reader(tmp_path)
        with pytest.raises(StorageCorruptError):
            reader.load_run(run)
        for entry_id in range(10):
            try:
                head = reader.load_head(run)
                packets = reader.load_packets(run, head, entry_id, entry_id, BYTES)
            except StorageCorruptError as error:
                damage = error.damage
            else:
                assert packets == [make_packet(1, entry_id, payload)]
                continue
            assert damage is not None
            assert damage.first <= entry_id <= damage.last
        reader.close()


@pytest.mark.parametrize("ids", [range(3, 15), tuple(range(0, 24, 2))])
def test_b14_every_damaged_byte_of_a_run_is_an_error_or_the_right_packet(
    tmp_path: Path, ids: Sequence[int]
) -> None:
    payload = bytes(range(250)) * 4
    run = write_run(tmp_path, ids, payload)
    offset, tables_bytes = run.location.offset, run.location.tables_bytes
    whole = (tmp_path / log_name(1)).read_bytes()
    places = [*range(offset, offset + tables_bytes), *range(offset + tables_bytes, len(whole), 61)]
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        (tmp_path / log_name(1)).write_bytes(changed)
        check_damage_at(tmp_path, run, ids, payload, at - offset - tables_bytes)


def check_damage_at(
    directory: Path, run: StoredRun, ids: Sequence[int], payload: bytes, at: int
) -> None:
    """`at` is where a byte is damaged, counted from the first packet."""
    reader = make_reader(directory)
    (damage,) = reader.check_run(run)
    assert damage.path == str(directory / log_name(1))
    if at < 0:
        assert damage[2:5] == run[:3]
        with pytest.raises(StorageCorruptError):
            reader.load_head(run)
        reader.close()
        return
    piece = at // PIECE_BYTES
    assert damage.offset == run.location.offset + run.location.tables_bytes + piece * PIECE_BYTES
    with pytest.raises(StorageCorruptError):
        reader.load_run(run)
    head = reader.load_head(run)
    packet_bytes = len(make_packet(1, 0, payload))
    for position, entry_id in enumerate(ids):
        begin, end = position * packet_bytes, (position + 1) * packet_bytes
        touches = begin // PIECE_BYTES <= piece <= (end - 1) // PIECE_BYTES
        assert touches == (damage.first <= entry_id <= damage.last)
        if touches:
            with pytest.raises(StorageCorruptError) as caught:
                reader.load_packets(run, head, entry_id, entry_id, BYTES)
            assert caught.value.damage == damage
        else:
            packets = reader.load_packets(run, head, entry_id, ALL, BYTES)
            assert packets[0] == make_packet(1, entry_id, payload)
    reader.close()


def test_a_damaged_packet_ends_what_is_read_before_it(tmp_path: Path) -> None:
    payload = b"x" * 1000
    run = write_run(tmp_path, range(30), payload)
    flip(tmp_path, run.location.offset + run.location.tables_bytes + 3 * PIECE_BYTES)
    reader = make_reader(tmp_path)
    head = reader.load_head(run)
    packets = reader.load_packets(run, head, 2, ALL, BYTES)
    assert packets == [make_packet(1, entry_id, payload) for entry_id in range(2, 11)]
    reader.close()


def test_two_damaged_places_are_both_told(tmp_path: Path) -> None:
    run = write_run(tmp_path, range(30), b"x" * 1000)
    packets_at = run.location.offset + run.location.tables_bytes
    flip(tmp_path, packets_at + 1 * PIECE_BYTES)
    flip(tmp_path, packets_at + 2 * PIECE_BYTES)
    flip(tmp_path, packets_at + 6 * PIECE_BYTES)
    reader = make_reader(tmp_path)
    damages = reader.check_run(run)
    assert [damage.offset - packets_at for damage in damages] == [PIECE_BYTES, 6 * PIECE_BYTES]
    reader.close()


def test_4_2_a_packet_of_another_entry_is_never_handed_out(tmp_path: Path) -> None:
    """All checksums hold: somebody wrote the wrong packets into a run."""
    writer = make_writer(tmp_path)
    right, wrong = planned(1, range(4)), planned(1, range(100, 104))
    right.pieces[0] = wrong.pieces[0]._replace(run=wrong.pieces[0].run)
    mixed = right._replace(pieces=[_Disguised(wrong.pieces[0], first=0)])  # type: ignore[list-item]
    run = StoredRun(1, 0, 3, writer.write(1, mixed))
    writer.sync()
    reader = make_reader(tmp_path)
    head = reader.load_head(run)
    for entry_id in range(4):
        with pytest.raises(StorageCorruptError, match="another entry"):
            reader.load_packets(run, head, entry_id, entry_id, BYTES)
    with pytest.raises(StorageCorruptError, match="another entry"):
        reader.load_run(run)
    assert [damage[2:5] for damage in reader.check_run(run)] == [(1, 0, 0)]
    reader.close()


class _Disguised:
    """A piece that claims other ids than its packets have."""

    def __init__(self, piece: object, first: int) -> None:
        self.run = piece.run  # type: ignore[attr-defined]
        self.start, self.stop = 0, self.run.count
        self.first, self.last = first, first + self.run.count - 1


def test_an_io_error_names_the_entries_and_the_file_is_opened_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path, range(10))

    opened: list[File] = []

    class FirstFileFails(SystemDisk):
        def open(self, path: str) -> File:
            file = super().open(path)
            if not opened:
                file.pread = _fail  # type: ignore[method-assign]
            opened.append(file)
            return file

    reader = EntryLogReader(str(tmp_path), open_files_max=1, disk=FirstFileFails())
    with pytest.raises(StorageIOError) as caught:
        reader.load_head(run)
    assert caught.value.damage is not None
    assert caught.value.damage[2:5] == (1, 0, 9)
    assert reader.check_run(run) == []
    assert len(opened) == 2
    reader.close()


def _fail(size: int, offset: int) -> bytes:
    raise OSError(errno.EIO, "broken sector")


def test_files_kept_open_are_bounded(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, log_bytes_max=500)
    runs = [
        StoredRun(1, at, at, writer.write(1, planned(1, range(at, at + 1), b"x" * 400)))
        for at in range(6)
    ]
    writer.sync()
    opened: list[str] = []

    class CountingDisk(SystemDisk):
        def open(self, path: str) -> File:
            opened.append(path)
            return super().open(path)

    reader = EntryLogReader(str(tmp_path), open_files_max=2, disk=CountingDisk())
    for at in (0, 1, 0, 2, 0):
        reader.load_run(runs[at])
    assert len(opened) == 3
    reader.load_run(runs[1])
    assert len(opened) == 4
    reader.close()
