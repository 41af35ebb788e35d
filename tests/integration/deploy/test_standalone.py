"""`magnetar standalone` from the outside: how it starts, refuses to start, and stops."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deploy.commands import Ended, magnetar
from tests.processes import HOST, ServerProcess, magnetar_command, magnetar_environment
from tests.standalone import READY_TIMEOUT_S, Standalone, is_ready_line

THREE = ("--bookies", "3", "--quorum", "3,3,2")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def start_in_vain(data: Path, *arguments: str) -> Ended:
    free = ("--port", "0", "--http-port", "0")
    return magnetar("standalone", "--data", str(data), *free, *arguments)


def assert_one_line(ended: Ended, status: int, *expected: str) -> None:
    """The command ended with this status and one line that names what is wrong."""
    assert ended.status == status, ended.stderr
    assert ended.stdout == ""
    assert len(ended.messages()) == 1, ended.stderr
    for text in expected:
        assert text in ended.messages()[0]


def produce(server: Standalone, *payloads: str) -> None:
    ended = magnetar("produce", "flights", "--url", server.url, stdin="\n".join(payloads))
    assert ended.status == 0, ended.stderr


def read(server: Standalone) -> list[str]:
    ended = magnetar("read", "flights", "--url", server.url)
    assert ended.status == 0, ended.stderr
    return ended.stdout.splitlines()


def test_it_says_ready_with_its_urls_and_ends_with_0_on_sigterm(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        assert server.process.ready_line.split() == ["ready", server.url, server.http_url]
        assert server.terminate() == 0
    assert "Traceback" not in server.log_text()


def test_port_0_takes_any_free_port(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", arguments=("--port", "0", "--http-port", "0")) as server:
        _, pulsar_url, http_url = server.process.ready_line.split()
        assert not pulsar_url.endswith(":0")
        assert not http_url.endswith(":0")


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_taken_port_is_one_line(tmp_path: Path, option: str, taken_port: int) -> None:
    ended = start_in_vain(tmp_path / "data", option, str(taken_port))
    assert_one_line(ended, 3, str(taken_port))


def test_a_locked_data_directory_is_one_line(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        assert_one_line(start_in_vain(server.directory), 4, str(server.directory), "--data")
        assert server.terminate() == 0


def test_the_files_of_another_cluster_are_refused(tmp_path: Path) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    for each in directories:
        with Standalone(each) as server:
            server.terminate()
    one, two = directories
    shutil.rmtree(two / "bookie-1")
    shutil.copytree(one / "bookie-1", two / "bookie-1")
    assert_one_line(start_in_vain(two), 5)


def test_the_files_of_another_place_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Standalone(data, arguments=THREE) as server:
        server.terminate()
    shutil.rmtree(data / "bookie-2")
    shutil.copytree(data / "bookie-1", data / "bookie-2")
    assert_one_line(start_in_vain(data, *THREE), 5, "bookie-1", "bookie-2")


@pytest.mark.parametrize("command", ["standalone", "bookie", "cluster", "zookeeper"])
def test_a_data_directory_without_a_name_is_one_line(command: str) -> None:
    """Not files in the directory that somebody happens to be in."""
    assert_one_line(magnetar(command, "--data", ""), 2, "--data is empty")


def test_a_data_directory_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert_one_line(start_in_vain(tmp_path / "data"), 7, str(tmp_path / "data"))


def test_a_data_directory_that_cannot_be_looked_at_is_one_line(tmp_path: Path) -> None:
    # What is somebody else's fails in the same place, but not for root.
    assert_one_line(start_in_vain(tmp_path / ("x" * 256)), 7, "File name too long")


def test_fewer_bookies_than_the_directory_holds_are_refused(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", arguments=THREE) as server:
        server.terminate()
    ended = start_in_vain(server.directory, "--bookies", "2")
    assert_one_line(ended, 2, "3 bookies", "--bookies 3")


@pytest.mark.parametrize(
    "arguments", [("--quorum", "3,3,2"), ("--quorum", "1,2,3"), ("--bookies", "2", "--quorum", "3")]
)
def test_a_quorum_that_cannot_be_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert_one_line(start_in_vain(tmp_path / "data", *arguments), 2, "quorum")


def test_a_bad_setting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "magnetar.toml").write_text("[bookie]\nno_such_setting = 1\n")
    ended = start_in_vain(tmp_path / "data", "--config", str(tmp_path / "magnetar.toml"))
    assert_one_line(ended, 2, "bookie.no_such_setting")


def test_a_misspelt_table_of_the_settings_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "magnetar.toml").write_text("[bokie]\njournal_group_bytes_max = 1\n")
    ended = start_in_vain(tmp_path / "data", "--config", str(tmp_path / "magnetar.toml"))
    assert_one_line(ended, 2, "[bokie]", "bookie, broker")


def test_data_survives_a_restart(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server:
        produce(server, "one", "two")
        assert server.terminate() == 0
        server.start()
        produce(server, "three")
        assert read(server) == ["one", "two", "three"]


@pytest.mark.parametrize("place", ["bookie-1", "bookie-2", "bookie-3"])
def test_one_bookies_files_can_be_deleted_and_everything_is_still_read(
    tmp_path: Path, place: str
) -> None:
    payloads = [f"flight {number}" for number in range(100)]
    with Standalone(tmp_path / "data", arguments=THREE) as server:
        produce(server, *payloads)
        server.kill()
        shutil.rmtree(server.directory / place)
        server.start()
        assert read(server) == payloads
        produce(server, "after the loss")
        assert server.terminate() == 0
        server.start()
        assert read(server) == [*payloads, "after the loss"]


def test_more_lost_bookies_than_the_quorum_can_do_without_are_refused(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", arguments=THREE) as server:
        produce(server, "one")
        server.terminate()
        for place in ("bookie-1", "bookie-2"):
            shutil.rmtree(server.directory / place)
        assert_one_line(start_in_vain(server.directory, *THREE), 7, "bookie-1", "bookie-2")


def test_a_log_that_nobody_takes_any_more_stops_nothing(tmp_path: Path) -> None:
    command = magnetar_command("standalone", "--data", str(tmp_path / "data"))
    with subprocess.Popen(
        [*command, "--port", "0", "--http-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=magnetar_environment(),
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            url = server.stdout.readline().split()[1]
            server.stderr.close()  # As when the `tee` behind it is killed.
            ended = magnetar("produce", "flights", "--url", url, "--message", "one")
            assert ended.status == 0, ended.stderr
            assert magnetar("read", "flights", "--url", url).stdout == "one\n"
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_a_start_says_by_its_status_what_is_wrong_though_its_words_find_no_room(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").write_text("")
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            magnetar_command("standalone", "--data", str(tmp_path / "data")),
            stdout=subprocess.DEVNULL,
            stderr=full,
            timeout=60,
            env=magnetar_environment(),
            check=False,
        )
    assert ended.returncode == 7


def test_bookies_that_cannot_take_the_largest_message_are_refused(tmp_path: Path) -> None:
    ended = magnetar(
        *("standalone", "--data", str(tmp_path / "data"), "--port", "0", "--http-port", "0"),
        environment={"MAGNETAR_BOOKIE_FRAME_BYTES_MAX": str(1 << 20)},
    )
    assert ended.status == 2
    (message,) = ended.messages()
    assert "takes requests of up to 1048576 bytes" in message
    assert "raise frame_bytes_max of the bookies, or lower message_bytes_max" in message


def test_a_smaller_message_has_room_in_smaller_requests(tmp_path: Path) -> None:
    settings = {"MESSAGE_BYTES_MAX": str(1 << 20)}
    config = tmp_path / "magnetar.toml"
    config.write_text(
        "[bookie]\nframe_bytes_max = 2097152\n"
        "[ledger]\nentry_bytes_max = 1114112\nadd_frame_bytes_max = 1048576\n"
    )
    with Standalone(
        tmp_path / "data", arguments=("--config", str(config)), settings=settings
    ) as server:
        server.terminate()


def test_an_advertised_host_of_the_settings_file_counts_beside_a_host_option(
    tmp_path: Path,
) -> None:
    config = tmp_path / "magnetar.toml"
    config.write_text('[broker]\nadvertised_host = "broker.example"\nport = 1\n')
    process = ServerProcess(
        magnetar_command(
            *("standalone", "--data", str(tmp_path / "data"), "--port", "0", "--http-port", "0"),
            *("--host", HOST, "--config", str(config)),
        ),
        log_path=tmp_path / "log",
        is_ready=is_ready_line,
    )
    try:
        process.wait_ready(READY_TIMEOUT_S)
        assert "pulsar://broker.example:" in process.ready_line
        assert "http://broker.example:" in process.ready_line
        # What an option decides all the same is told.
        assert '"setting": "broker.port", "used": "0"' in process.log_path.read_text()
    finally:
        process.kill()
