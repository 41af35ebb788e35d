"""GET /metrics and GET /health of bookie processes and of a standalone."""

from pathlib import Path

from tests.cluster import READY_TIMEOUT_S
from tests.http_calls import call
from tests.integration.deploy.commands import magnetar
from tests.processes import HOST, ServerProcess, magnetar_command
from tests.standalone import Standalone, is_ready_line
from tests.waiting import wait_until


def test_a_bookie_process_shows_its_metrics_and_its_health(tmp_path: Path) -> None:
    server = ServerProcess(
        magnetar_command(
            *("bookie", "--metadata", f"embedded:{tmp_path / 'metadata.db'}"),
            *("--data", str(tmp_path / "b1"), "--id", "b1"),
            *("--port", "0", "--metrics-port", "0"),
        ),
        log_path=tmp_path / "b1.log",
        is_ready=is_ready_line,
    )
    try:
        server.wait_ready(READY_TIMEOUT_S)
        bookie_url, http_url = server.ready_line.split()[1:]
        body = call(http_url, "GET", "/metrics", expect=200).text
        for line in (
            'magnetar_bookie_connections{bookie="b1"} 0.0',
            'magnetar_bookie_journal_commit_seconds_count{bookie="b1"}',
            "magnetar_event_loop_lateness_seconds_bucket",
            "process_resident_memory_bytes",
        ):
            assert line in body, body
        said = call(http_url, "GET", "/health", expect=200).json
        port = bookie_url.rpartition(":")[2]
        assert said == {
            "status": "ok",
            "bookie": "b1",
            "port": int(port),
            "writable": True,
            "registered_as": "writable",
            "read_only_reasons": [],
        }
        call(http_url, "GET", "/nothing", expect=404)
        from_page = {"Origin": "http://elsewhere.example"}
        call(http_url, "POST", "/gc", headers=from_page, expect=403)
        call(http_url, "POST", "/gc?major=true", expect=202)
        rounds = 'magnetar_bookie_gc_rounds_total{bookie="b1"} 1.0'
        wait_until(
            lambda: rounds in call(http_url, "GET", "/metrics").text, "a round is made", within_s=10
        )
        assert server.terminate() == 0
    finally:
        if server.returncode is None:
            server.kill()


def test_a_taken_metrics_port_ends_the_start_in_one_line(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as running:
        ended = magnetar(
            *("bookie", "--metadata", f"embedded:{tmp_path / 'metadata.db'}"),
            *("--data", str(tmp_path / "b1"), "--id", "b1", "--port", "0"),
            *("--metrics-port", str(running.http_port)),
        )
    assert ended.status == 3
    (message,) = ended.messages()
    assert f"{HOST}:{running.http_port}" in message


def test_a_standalone_shows_the_metrics_of_all_its_bookies(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", arguments=["--bookies", "2"]) as server:
        sent = magnetar("produce", "--url", server.url, "t", stdin="hello\n")
        assert sent.status == 0, sent
        body = call(server, "GET", "/metrics").text
    values = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in body.splitlines()}
    for bookie in ("bookie-1", "bookie-2"):
        assert float(values[f'magnetar_bookie_add_entries_total{{bookie="{bookie}"}}']) > 0
        assert float(values[f'magnetar_bookie_connections{{bookie="{bookie}"}}']) > 0
    assert "magnetar_broker_topics" in values
    assert "magnetar_event_loop_lateness_seconds_sum" in values
