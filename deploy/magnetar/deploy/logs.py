"""Logs: structured events on stderr, for people on a terminal and as JSON everywhere else.

Stdout belongs to the command's own output (the `ready` line, messages, figures). Libraries that log
through the standard library are heard from WARNING on and rendered the same way.
"""

import logging
from enum import StrEnum
from typing import TextIO

import structlog
from structlog.typing import Processor


class LogLevel(StrEnum):
    """The least severe events that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How events are written; AUTO is HUMAN on a terminal and JSON otherwise."""

    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


def configure_logging(level: LogLevel, log_format: LogFormat, *, stream: TextIO) -> None:
    """Set up structlog and the standard library's logging for this process."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered = _renderers(log_format, stream)
    structlog.configure(
        processors=[*common, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(threshold, logging.WARNING))


def _renderers(log_format: LogFormat, stream: TextIO) -> list[Processor]:
    is_human = log_format is LogFormat.HUMAN or (log_format is LogFormat.AUTO and stream.isatty())
    if is_human:
        return [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    return [
        structlog.processors.dict_tracebacks,
        structlog.processors.JSONRenderer(default=str),
    ]
