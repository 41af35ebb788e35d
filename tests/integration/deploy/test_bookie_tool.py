"""`magnetar bookie-tool` on the files of a standalone, running and stopped, whole and spoiled."""

import json
import shutil
from pathlib import Path

import pytest

from magnetar.bookie.entry_logs.entry_log import TRAILER_BYTES
from tests.integration.deploy.commands import Ended, magnetar
from tests.standalone import Standalone

MESSAGES = 20


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a bookie that was stopped in an orderly way."""
    data = tmp_path_factory.mktemp("bookie-tool") / "data"
    with Standalone(data) as server:
        arguments = [part for number in range(MESSAGES) for part in ("-m", f"message {number}")]
        ended = magnetar("produce", "t", *arguments, "--url", server.url)
        assert ended.status == 0, ended.stderr
        assert server.terminate() == 0
    return data / "bookie-1"


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(stopped, tmp_path / "bookie-1"))


def run(*arguments: str) -> Ended:
    return magnetar("bookie-tool", *arguments)


def lines(*arguments: str, status: int = 0) -> list[dict[str, object]]:
    ended = run(*arguments, "--json")
    assert ended.status == status, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def log_file(data: Path) -> Path:
    """The entry log that has runs."""
    (log,) = (data / "ledgers" / "entry-logs").glob("*.log")
    return log


def test_every_directory_shows_its_cookie(stopped: Path) -> None:
    cookies = lines("cookie", "--data", str(stopped))
    assert [Path(str(each["directory"])).name for each in cookies] == [
        "bookie-1",
        "journal",
        "ledgers",
    ]
    assert {each["bookie_id"] for each in cookies} == {"bookie-1"}


def test_marks_and_journals_say_where_a_start_begins(stopped: Path) -> None:
    (mark,) = lines("marks", "--data", str(stopped))
    journals = lines("journals", "--data", str(stopped))
    files = [Path(str(each["file"])) for each in journals]
    assert mark["journal_file"] in [file.name for file in files]
    records = lines("journal", str(files[-1]))
    assert {"master_key", "entry_block"} <= {record.get("type") for record in records}
    assert not any("problem" in record for record in records)


def test_a_whole_bookie_is_found_whole(stopped: Path) -> None:
    (counts,) = lines("verify", "--data", str(stopped))
    assert counts["problems"] == 0
    for what in ("journal_records", "runs", "ledgers", "index_records"):
        assert int(str(counts[what])) > 0, what


def test_ledgers_lead_to_their_runs_in_the_entry_logs(stopped: Path) -> None:
    ledgers = lines("ledgers", "--data", str(stopped))
    assert all(each["has_key"] for each in ledgers)
    largest = max(ledgers, key=lambda each: int(str(each["last_entry_id"])))
    runs = lines("ledger", str(largest["ledger_id"]), "--data", str(stopped))
    assert runs[0]["first"] == 0
    assert runs[-1]["last"] == largest["last_entry_id"]
    shown = lines("log", str(runs[0]["file"]), "--ledger", str(largest["ledger_id"]))
    assert runs[0]["offset"] in [each["offset"] for each in shown]
    (log,) = lines("logs", "--data", str(stopped))
    assert log["file"] == runs[0]["file"]


def test_a_spoiled_byte_of_an_entry_is_told_with_file_offset_ledger_and_entry(data: Path) -> None:
    log = log_file(data)
    run_of = lines("log", str(log))[0]
    offset = int(str(run_of["offset"])) + int(str(run_of["size_bytes"])) - 1
    flip(log, offset)
    problem, counts = lines("verify", "--data", str(data), status=11)
    assert problem["path"] == str(log)
    assert problem["ledger_id"] == run_of["ledger_id"]
    first, last = int(str(problem["first"])), int(str(problem["last"]))
    assert int(str(run_of["first"])) <= first <= last == run_of["last"]
    assert int(str(problem["offset"])) <= offset
    assert counts["problems"] == 1


@pytest.mark.parametrize(
    "name", ["cookie", "ledgers/cookie", "ledgers/last-mark", "ledgers/index-mark"]
)
def test_a_spoiled_small_file_is_told(data: Path, name: str) -> None:
    flip(data / name, 20)
    problems = lines("verify", "--data", str(data), status=11)[:-1]
    assert problems
    assert all(str(data / name) in str(each) or "index" in str(each) for each in problems)


def test_a_spoiled_journal_record_is_told(data: Path) -> None:
    journals = lines("journals", "--data", str(data))
    path = Path(str(journals[-1]["file"]))
    records = lines("journal", str(path))
    flip(path, int(str(records[1]["offset"])) + 9)
    problems = lines("verify", "--data", str(data), status=11)[:-1]
    assert [(each["path"], each["offset"]) for each in problems] == [
        (str(path), records[1]["offset"])
    ]


def test_a_newest_journal_file_that_is_gone_is_told(data: Path) -> None:
    journals = lines("journals", "--data", str(data))
    assert [each["is_named_newest"] for each in journals] == [False] * (len(journals) - 1) + [True]
    newest = Path(str(journals[-1]["file"]))
    newest.unlink()
    told, *_ = lines("journals", "--data", str(data))
    assert str(newest) in str(told["problem"])
    problems = lines("verify", "--data", str(data), status=11)[:-1]
    assert any(str(newest) in str(each) for each in problems)


def test_a_footer_is_written_anew_when_told_to(data: Path) -> None:
    log = log_file(data)
    (before,) = lines("logs", "--data", str(data))
    log.write_bytes(log.read_bytes()[:-TRAILER_BYTES])
    assert lines("logs", "--data", str(data))[0]["footer"] == "none"
    (said,) = lines("rebuild-footer", str(log))
    assert "missing" in str(said["footer"])
    assert lines("logs", "--data", str(data))[0]["footer"] == "none"
    lines("rebuild-footer", str(log), "--yes")
    (after,) = lines("logs", "--data", str(data))
    assert (after["ledgers"], after["run_bytes"]) == (before["ledgers"], before["run_bytes"])
    lines("verify", "--data", str(data))


def test_a_running_bookie_can_be_looked_at_and_not_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Standalone(data) as server:
        assert magnetar("produce", "t", "-m", "one", "--url", server.url).status == 0
        assert server.terminate() == 0
        server.start()
        bookie = data / "bookie-1"
        assert lines("journals", "--data", str(bookie))
        lines("ledgers", "--data", str(bookie))
        (log,) = lines("logs", "--data", str(bookie))[-1:]
        ended = run("rebuild-footer", str(log["file"]), "--yes")
        assert ended.status == 4, ended.stderr
        assert "stop it first" in ended.stderr


def test_a_wrong_file_is_refused_in_words(stopped: Path) -> None:
    ended = run("log", str(stopped / "cookie"))
    assert ended.status == 2
    assert "is not the name of an entry log" in ended.stderr


def test_what_garbage_collection_would_free_is_told_and_not_freed(stopped: Path) -> None:
    url = f"embedded:{stopped.parent / 'metadata.db'}"
    before = sorted((stopped / "ledgers" / "entry-logs").iterdir())
    ledgers, *logs = lines("gc", "--data", str(stopped), "--metadata", url)
    assert ledgers["ledgers_to_delete"] == 0
    assert int(str(ledgers["ledgers"])) > 0
    assert [log["action"] for log in logs] == ["keep"]
    assert sorted((stopped / "ledgers" / "entry-logs").iterdir()) == before


def test_garbage_collection_is_previewed_with_the_settings_of_the_bookie(
    stopped: Path, tmp_path: Path
) -> None:
    url = f"embedded:{stopped.parent / 'metadata.db'}"
    config = tmp_path / "bookie.toml"
    config.write_text(
        f'[bookie]\nmetadata = "{url}"\nport = 0\ngc_major_live_share = 1.0\n'
        "gc_minor_live_share = 0\n"
    )
    _, *logs = lines("gc", "--data", str(stopped), "--metadata", url, "--config", str(config))
    assert [log["action"] for log in logs] == ["compact in a major run"]
    config.write_text("[bookie]\ngc_major_live_share = 2\n")
    ended = run("gc", "--data", str(stopped), "--metadata", url, "--config", str(config))
    assert ended.status == 2
    assert "gc_major_live_share" in ended.stderr


def payloads(server: Standalone) -> list[str]:
    ended = magnetar("read", "t", "--url", server.url)
    assert ended.status == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_bookie_serves_the_same_after_it_was_given_the_other_engine_and_back(
    stopped: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(stopped.parent, tmp_path / "data"))
    bookie, url = str(place / "bookie-1"), f"embedded:{place / 'metadata.db'}"
    with Standalone(place) as server:
        before = payloads(server)
        assert len(before) == MESSAGES
        assert server.terminate() == 0
    (said,) = lines("convert", "--data", bookie, "--to", "interleaved", "--metadata", url)
    assert said["from"] == "db"
    for engine in ("interleaved", "db"):
        lines("convert", "--data", bookie, "--to", engine, "--metadata", url, "--yes")
        lines("verify", "--data", bookie)
        assert {each["storage_engine"] for each in lines("cookie", "--data", bookie)} == {engine}
        config = tmp_path / f"{engine}.toml"
        config.write_text(f'[bookie]\nstorage_engine = "{engine}"\n')
        with Standalone(place, arguments=("--config", str(config))) as server:
            assert payloads(server) == before
            assert server.terminate() == 0


def test_an_index_is_made_anew_from_the_entry_logs_alone(stopped: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(stopped.parent, tmp_path / "data"))
    bookie = place / "bookie-1"
    with Standalone(place) as server:
        before = payloads(server)
        assert server.terminate() == 0
    lines("rebuild-index", "--data", str(bookie))
    lines("verify", "--data", str(bookie))
    *_, said, then = lines("rebuild-index", "--data", str(bookie), "--yes")
    assert said["index"] == "rebuilt"
    assert "metadata of all ledgers" in str(then["next"])
    assert said["are_states_complete"]
    (mark,) = bookie.rglob("index-mark")
    mark.rename(f"{mark}.rebuilt")  # as when the command is killed before its last step
    said, then = lines("rebuild-index", "--data", str(bookie), "--yes")
    assert (said["index"], "logs" in said) == ("put in place", False)
    assert "verify" in str(said["note"])
    with Standalone(place) as server:
        assert payloads(server) == before
