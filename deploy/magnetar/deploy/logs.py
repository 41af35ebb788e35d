"""Logs: structured events on stderr, for people on a terminal and as JSON everywhere else.

Stdout belongs to the command's own output (the `ready` line, messages, figures). Libraries that log
through the standard library appear from WARNING on, in the same form. Where several servers log on
one host, MAGNETAR_LOG_NAME names the server: before each line for people, and as `server` in each
JSON event. Without it, the JSON events of a bookie, a broker or auto-recovery carry its id in the
cluster, once that is known.
"""

import logging
import os
from collections.abc import Callable, MutableMapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from structlog.typing import Processor

_NAME_VARIABLE = "MAGNETAR_LOG_NAME"

_server = {"name": ""}
"""Name of the server that this process runs; `name_server` sets it."""


def name_server(name: str) -> None:
    """Add the server's name to all log events of this process from now on."""
    _server["name"] = name


class LogLevel(StrEnum):
    """Least severity of events that are written."""

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
    # Imported here: help pages log nothing, and structlog would delay them.
    import structlog

    threshold = logging.getLevelNamesMapping()[level.upper()]
    name = os.environ.get(_NAME_VARIABLE, "")
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered = _renderers(log_format, stream, name)
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


def _renderers(log_format: LogFormat, stream: TextIO, name: str) -> list["Processor"]:
    import structlog

    is_human = log_format is LogFormat.HUMAN or (log_format is LogFormat.AUTO and stream.isatty())
    if is_human:
        console = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        return [console, *_if(name, _prefixed)]
    return [
        _with_server(name),
        # Without local variables of functions: they may hold tokens and passwords.
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
        structlog.processors.JSONRenderer(default=str),
    ]


def _if(name: str, make: "Callable[[str], Processor]") -> list["Processor"]:
    return [make(name)] if name else []


def _with_server(name: str) -> "Processor":
    def add(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        server = name or _server["name"]
        if server:
            event.setdefault("server", server)
        return event

    return add


def _prefixed(name: str) -> "Processor":
    def prefix(_: object, __: str, text: Any) -> str:  # Any: what a renderer leaves is text
        return "\n".join(f"{name} | {line}" for line in str(text).splitlines())

    return prefix
