"""Entry logs as files: what was written is found by a scan and by the footer, and no more."""

import random
from pathlib import Path
from struct import pack

import pytest

from magnetar.bookie.engine.write_cache import LedgerRuns
from magnetar.bookie.entry_logs.entry_log import (
    LOG_HEADER_BYTES,
    TRAILER_BYTES,
    LogHeader,
    RunLocation,
    StoredRun,
    decode_log_header,
    decode_run_head,
    encode_log_header,
    encode_run_head,
    rebind_run_head,
)
from magnetar.bookie.entry_logs.log_names import log_ids, log_name
from magnetar.bookie.entry_logs.log_reader import EntryLogReader
from magnetar.bookie.entry_logs.log_scan import read_footer, read_log_header, scan_log
from magnetar.bookie.entry_logs.log_writer import EntryLogWriter
from magnetar.bookie.entry_logs.packet_run import block_run
from magnetar.bookie.entry_logs.pieces import piece_checksums
from magnetar.bookie.entry_logs.run_plan import plan_runs
from magnetar.bookie.errors import StorageCorruptError
from magnetar.ledger.errors import InvariantError
from magnetar.ledger.system import SystemDisk
from tests.entry_logs import make_writer, planned
from tests.ledger_storage import FailingDisk, make_block


def write_three_runs(writer: EntryLogWriter) -> list[RunLocation]:
    locations = [
        writer.write(1, planned(1, range(10))),
        writer.write(2, planned(2, (0, 2, 3, 5), b"x" * 100)),
        writer.write(1, planned(1, range(10, 12))),
    ]
    writer.sync()
    writer.on_indexing()
    return locations


def test_names_are_ids_in_hex_and_others_are_left_alone() -> None:
    assert log_ids([log_name(1), log_name(0xABCD), "x.log", "0000000g.log", "1.log"]) == [1, 0xABCD]


def test_nothing_is_created_before_the_first_run(tmp_path: Path) -> None:
    make_writer(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_scan_finds_the_runs_and_their_ledgers(tmp_path: Path) -> None:
    locations = write_three_runs(make_writer(tmp_path))
    file = SystemDisk().open(str(tmp_path / log_name(1)))
    scan = scan_log(file, 1)
    assert [run.location for run in scan.runs] == locations
    assert [(run.ledger_id, run.first, run.last) for run in scan.runs] == [
        (1, 0, 9),
        (2, 0, 5),
        (1, 10, 11),
    ]
    assert scan.end == file.size
    assert read_footer(file, 1) is None
    file.close()


def test_a_closed_log_has_a_footer_that_says_what_a_scan_says(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    write_three_runs(writer)
    writer.close()
    file = SystemDisk().open(str(tmp_path / log_name(1)))
    scan = scan_log(file, 1)
    assert len(scan.runs) == 3
    assert read_footer(file, 1) == scan.ledger_bytes()
    assert sum(scan.ledger_bytes().values()) == scan.end - LOG_HEADER_BYTES
    file.close()


def test_4_1_a_scan_ends_at_every_torn_tail_and_invents_no_ledgers(tmp_path: Path) -> None:
    locations = write_three_runs(make_writer(tmp_path))
    data = (tmp_path / log_name(1)).read_bytes()
    torn = tmp_path / "torn"
    for size in range(LOG_HEADER_BYTES, len(data) + 1):
        torn.write_bytes(data[:size])
        file = SystemDisk().open(str(torn))
        whole = [at for at in locations if at.offset + at.size_bytes <= size]
        assert [run.location for run in scan_log(file, 1).runs] == whole
        file.close()


def test_4_1_a_scan_ends_where_tables_are_damaged(tmp_path: Path) -> None:
    locations = write_three_runs(make_writer(tmp_path))
    data = (tmp_path / log_name(1)).read_bytes()
    damaged = tmp_path / "damaged"
    second = locations[1]
    for at in range(second.offset, second.offset + second.tables_bytes):
        for bit in (0, 7):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            damaged.write_bytes(changed)
            file = SystemDisk().open(str(damaged))
            assert [run.location for run in scan_log(file, 1).runs] == locations[:1]
            file.close()


def test_a_damaged_footer_is_reported_and_not_believed(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    write_three_runs(writer)
    writer.close()
    path = tmp_path / log_name(1)
    data = bytearray(path.read_bytes())
    data[-TRAILER_BYTES - 8] ^= 1
    path.write_bytes(data)
    file = SystemDisk().open(str(path))
    with pytest.raises(StorageCorruptError):
        read_footer(file, 1)
    file.close()


def test_a_log_of_another_id_is_refused(tmp_path: Path) -> None:
    write_three_runs(make_writer(tmp_path))
    file = SystemDisk().open(str(tmp_path / log_name(1)))
    with pytest.raises(StorageCorruptError):
        scan_log(file, 2)
    file.close()


def test_a_full_log_is_closed_with_its_footer_and_the_next_begun(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, log_bytes_max=1500)
    for at in range(20):
        writer.write(1, planned(1, range(at * 5, at * 5 + 5)))
    writer.sync()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert log_ids(names) == list(range(1, writer.last_log_id + 1))
    assert writer.last_log_id > 2
    entries = 0
    for log_id in log_ids(names):
        file = SystemDisk().open(str(tmp_path / log_name(log_id)))
        scan = scan_log(file, log_id)
        assert scan.end <= 1500
        entries += sum(run.location.entries for run in scan.runs)
        assert (read_footer(file, log_id) is None) == (log_id == writer.last_log_id)
        file.close()
    assert entries == 100


def test_a_log_holds_no_more_ledgers_than_may_be_in_memory(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, log_ledgers_max=3)
    for ledger_id in (1, 2, 3, 1, 3, 4, 4, 1):
        writer.write(ledger_id, planned(ledger_id, [0]))
    writer.sync()
    in_logs = []
    for log_id in range(1, writer.last_log_id + 1):
        file = SystemDisk().open(str(tmp_path / log_name(log_id)))
        in_logs.append([run.ledger_id for run in scan_log(file, log_id).runs])
        file.close()
    assert in_logs == [[1, 2, 3, 1, 3], [4, 4, 1]]


def test_many_small_buffers_are_written_whole(tmp_path: Path) -> None:
    runs = LedgerRuns()
    for at in range(3000):
        payload = b"x" * 5000 if at % 2 else b""
        runs.append(block_run(make_block(1, range(at, at + 1), payload), range(at, at + 1)), 0)
    writer = make_writer(tmp_path)
    (run,) = plan_runs(runs, entries_max=4096, bytes_max=1 << 30)
    location = writer.write(1, run)
    writer.sync()
    reader = EntryLogReader(str(tmp_path), open_files_max=1, disk=SystemDisk())
    assert reader.load_run(StoredRun(1, 0, 2999, location)).count == 3000
    reader.close()


def test_an_abandoned_log_without_index_records_is_removed(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = make_writer(tmp_path, disk=disk)
    disk.calls_until_failure = 2
    with pytest.raises(OSError, match="error"):
        write_three_runs(writer)
    writer.abandon()
    assert list(tmp_path.iterdir()) == []
    write_three_runs(writer)
    assert [path.name for path in tmp_path.iterdir()] == [log_name(2)]


def test_an_abandoned_log_that_the_index_points_to_stays(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = make_writer(tmp_path, disk=disk)
    locations = write_three_runs(writer)
    disk.calls_until_failure = 0
    with pytest.raises(OSError, match="error"):
        write_three_runs(writer)
    writer.abandon()
    again = write_three_runs(writer)
    assert {at.log_id for at in again} == {2}
    file = SystemDisk().open(str(tmp_path / log_name(1)))
    assert [run.location for run in scan_log(file, 1).runs][:3] == locations
    file.close()


def test_a_log_tells_by_which_rank_its_copies_are_ordered(tmp_path: Path) -> None:
    write_three_runs(make_writer(tmp_path))
    file = SystemDisk().open(str(tmp_path / log_name(1)))
    assert read_log_header(file, 1).rank == 1
    file.close()
    assert decode_log_header(encode_log_header(9, 0, rank=4)) == LogHeader(9, 0, 4)


def test_a_scan_beyond_damage_finds_the_runs_behind_it(tmp_path: Path) -> None:
    locations = write_three_runs(make_writer(tmp_path))
    path = tmp_path / log_name(1)
    data = path.read_bytes()
    second = locations[1]
    for at in range(second.offset, second.offset + second.tables_bytes, 3):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        file = SystemDisk().open(str(path))
        scan = scan_log(file, 1, beyond_damage=True)
        assert [run.location for run in scan.runs] == [locations[0], locations[2]]
        assert scan.skipped == [(second.offset, locations[2].offset)]
        file.close()


def test_a_scan_beyond_damage_is_not_led_astray_by_packets_that_hold_runs(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    run = writer.write(1, planned(1, range(3), b"inner"))
    writer.sync()
    whole = (tmp_path / log_name(1)).read_bytes()[run.offset :]
    outer = writer.write(2, planned(2, range(2), b"MRUN" + whole))
    behind = writer.write(3, planned(3, range(2)))
    writer.sync()
    data = bytearray((tmp_path / log_name(1)).read_bytes())
    data[outer.offset + 20] ^= 1
    (tmp_path / log_name(1)).write_bytes(data)
    file = SystemDisk().open(str(tmp_path / log_name(1)))
    scan = scan_log(file, 1, beyond_damage=True)
    assert [run.location for run in scan.runs] == [run, behind]
    file.close()


def test_a_run_that_names_an_entry_twice_is_corrupt(tmp_path: Path) -> None:
    """A checksum that holds is that of a wrong writer: a read of the id would be ambiguous."""
    location = write_three_runs(make_writer(tmp_path))[1]
    data = bytearray((tmp_path / log_name(1)).read_bytes()[location.offset :])
    data = data[: location.tables_bytes]
    head = decode_run_head(bytes(data), log_id=1, offset=location.offset)
    assert head.differences is not None
    assert len(head.differences) > 2
    at = len(data) - 4 * (len(head.differences) + len(head.checksums))  # the table of the ids
    data[at + 4 : at + 8] = data[at : at + 4]
    twice = rebind_run_head(bytes(data), log_id=1, offset=location.offset)
    with pytest.raises(StorageCorruptError, match="impossible tables"):
        decode_run_head(twice, log_id=1, offset=location.offset)


def test_the_head_of_a_run_can_be_moved_with_its_packets_left_as_they_are(tmp_path: Path) -> None:
    location = write_three_runs(make_writer(tmp_path))[1]
    data = (tmp_path / log_name(1)).read_bytes()[location.offset :][: location.tables_bytes]
    head = decode_run_head(data, log_id=1, offset=location.offset)
    moved = rebind_run_head(data, log_id=7, offset=4711)
    assert decode_run_head(moved, log_id=7, offset=4711) == head
    with pytest.raises(StorageCorruptError):
        decode_run_head(moved, log_id=1, offset=location.offset)


@pytest.mark.parametrize(
    ("first", "last", "gap_ids"),
    [
        pytest.param(3, 9, [3, 4, 6, 4, 6, 9], id="stretches overlap"),
        pytest.param(3, 9, [3, 4, 6, 6, 7, 9], id="one id twice"),
        pytest.param(3, 9, [3, 4, 6, 9], id="fewer ids than packets"),
        pytest.param(3, 9, [4, 5, 6, 7, 8, 9], id="another first id"),
        pytest.param(3, 10, [3, 4, 6, 7, 8, 9], id="another last id"),
        pytest.param(3, 9, None, id="fewer packets than contiguous ids"),
    ],
)
def test_a_run_whose_ids_do_not_ascend_is_never_encoded(
    first: int, last: int, gap_ids: list[int] | None
) -> None:
    """The packets of such a run could not be read, or would be read as other entries."""
    with pytest.raises(InvariantError, match=rf"ledger 7, entries {first} to {last}"):
        encode_run_head(
            log_id=1,
            offset=64,
            ledger_id=7,
            first=first,
            last=last,
            length_table=pack(">6I", *[10] * 6),
            gap_ids=gap_ids,
            checksums=piece_checksums(bytes(60)),
        )


@pytest.mark.parametrize("seed", range(20))
def test_b15_garbage_behind_the_runs_becomes_no_ledger_and_ends_the_scan(
    tmp_path: Path, seed: int
) -> None:
    """The garbage may look like a run, with sizes and ids of nonsense."""
    locations = write_three_runs(make_writer(tmp_path))
    source = random.Random(seed)
    path = tmp_path / log_name(1)
    garbage = source.randbytes(source.randrange(1, 3000))
    if seed % 2:
        garbage = b"MRUN" + bytes([seed % 4 // 2]) + garbage
    path.write_bytes(path.read_bytes() + garbage + b"MRUN" + b"\xff" * 40)
    file = SystemDisk().open(str(path))
    for beyond_damage in (False, True):
        scan = scan_log(file, 1, beyond_damage=beyond_damage)
        assert [run.location for run in scan.runs] == locations
        assert set(scan.ledger_bytes()) == {1, 2}
    assert read_footer(file, 1) is None
    file.close()


def test_b18_a_sync_that_failed_is_not_repeated_on_the_same_log(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = make_writer(tmp_path, disk=disk)
    writer.write(1, planned(1, range(3)))
    disk.calls_until_failure = 1
    with pytest.raises(OSError, match="error"):
        writer.sync()
    writer.abandon()
    writer.sync()  # nothing is there to be synced: what was written is not promised
    assert writer.active_log_id is None
    again = writer.write(1, planned(1, range(3)))
    writer.sync()
    assert again.log_id == 2
    first, second = [at for at, what in enumerate(disk.writes) if what == "datasync"]
    assert "create" in disk.writes[first:second]


def test_a_large_flush_is_synced_and_dropped_in_parts(tmp_path: Path) -> None:
    disk = FailingDisk()
    size, runs_per_part = 1 << 20, 2
    writer = make_writer(tmp_path, disk=disk, sync_bytes=runs_per_part * size)
    for number in range(2 * runs_per_part + 1):
        writer.write(1, planned(1, [number], bytes(size)))
    assert disk.writes.count("datasync") == 2
    writer.sync()
    assert disk.writes.count("datasync") == 3
    writer.write(1, planned(1, [9], bytes(size)))
    assert disk.writes.count("datasync") == 3, "the count begins anew with each sync"


def test_a_part_of_a_flush_that_cannot_be_synced_is_an_error_of_the_write(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = make_writer(tmp_path, disk=disk, sync_bytes=1)
    writer.write(1, planned(1, [0]))
    disk.calls_until_failure = 1  # behind the append
    with pytest.raises(OSError, match="error"):
        writer.write(1, planned(1, [1], bytes(1 << 20)))
    writer.abandon()
    assert list(tmp_path.iterdir()) == []
