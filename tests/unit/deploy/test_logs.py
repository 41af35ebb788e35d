import io
import json
import logging

import pytest
import structlog

from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging, name_server


def test_events_are_one_json_object_a_line_off_a_terminal() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.AUTO, stream=stream)
    structlog.get_logger().info("ledger_closed", ledger_id=7)
    event = json.loads(stream.getvalue())
    assert event["event"] == "ledger_closed"
    assert event["ledger_id"] == 7
    assert event["level"] == "info"


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.WARNING, LogFormat.JSON, stream=stream)
    structlog.get_logger().info("ledger_closed")
    assert stream.getvalue() == ""


def test_libraries_are_heard_from_warning_on_in_the_same_form() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.JSON, stream=stream)
    logging.getLogger("kazoo.client").info("quiet")
    logging.getLogger("kazoo.client").warning("connection dropped")
    event = json.loads(stream.getvalue())
    assert event["event"] == "connection dropped"
    assert event["logger"] == "kazoo.client"


def test_people_get_text() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.HUMAN, stream=stream)
    structlog.get_logger().info("ledger_closed", ledger_id=7)
    assert "ledger_closed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(
    ("log_format", "begins"),
    [(LogFormat.HUMAN, "bookie-1 | "), (LogFormat.JSON, '{"ledger_id": 7, ')],
)
def test_servers_of_one_host_say_who_they_are(
    monkeypatch: pytest.MonkeyPatch, log_format: LogFormat, begins: str
) -> None:
    monkeypatch.setenv("MAGNETAR_LOG_NAME", "bookie-1")
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, log_format, stream=stream)
    structlog.get_logger().info("ledger_closed", ledger_id=7)
    assert stream.getvalue().startswith(begins)
    assert "bookie-1" in stream.getvalue()


def test_events_of_a_server_say_its_id_once_it_is_known() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.JSON, stream=stream)
    try:
        structlog.get_logger().info("before")
        name_server("broker:6650")
        structlog.get_logger().info("after")
        structlog.get_logger().info("of_another", server="bookie-1")
    finally:
        name_server("")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("server") for each in events] == [None, "broker:6650", "bookie-1"]
