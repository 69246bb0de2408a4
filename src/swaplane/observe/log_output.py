"""Where the gateway's own log lines go: standard error and the `proxy` log. Called once at start."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import MutableMapping
from typing import Any

import structlog

from swaplane.observe.logs import LogHub

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_NEEDS_QUOTES = re.compile(r'[\s"=]')
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def configure_logging(logs: LogHub, *, level: str) -> None:
    """Send structlog's lines, and the libraries' warnings, to standard error and to `logs.proxy`.

    `level` is one of debug, info, warn, error. Lines read `TIME level event key=value ...`.
    """
    threshold = _LEVELS[level]
    sink = _Sink(logs)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _Stamp(),
            structlog.processors.format_exc_info,
            _as_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge(sink)], level=max(threshold, logging.WARNING), force=True)


class _Stamp:
    """Adds the time. A busy gateway writes hundreds of lines in one second, so that second's text is kept."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def __call__(self, logger: object, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        second = int(time.time())
        if second != self._second:
            self._second, self._text = second, time.strftime(_TIME_FORMAT, time.localtime(second))
        fields["timestamp"] = self._text
        return fields


def _as_line(logger: object, method: str, fields: MutableMapping[str, Any]) -> str:
    moment, level, event = fields.pop("timestamp"), fields.pop("level"), fields.pop("event")
    exception = fields.pop("exception", None)
    pairs = "".join(f" {key}={_shown(value)}" for key, value in fields.items() if value is not None)
    line = f"{moment} [{level}] {event}{pairs}"
    return line if exception is None else f"{line}\n{exception}"


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or _NEEDS_QUOTES.search(text) else text


class _Sink:
    """What structlog writes to."""

    def __init__(self, logs: LogHub) -> None:
        self._logs = logs

    def msg(self, line: str) -> None:
        line += "\n"  # written in one piece, which is one system call
        sys.stderr.write(line)
        sys.stderr.flush()
        self._logs.proxy.write(line.encode("utf-8", "backslashreplace"))

    debug = info = warning = error = critical = msg


class _Bridge(logging.Handler):
    """Passes the records of libraries on to structlog."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields: dict[str, Any] = {
            "timestamp": logging.Formatter().formatTime(record, _TIME_FORMAT),
            "level": record.levelname.lower(),
            "event": f"{record.name}: {record.getMessage()}",
        }
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        self._sink.msg(_as_line(self._sink, "msg", fields))
