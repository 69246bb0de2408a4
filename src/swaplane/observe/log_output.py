"""Where the gateway's own log lines go: standard error and the `proxy` log. Called once at start."""

from __future__ import annotations

import logging
import os
import re
import select
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


class StandardError:
    """Standard error, written without ever waiting for its reader.

    A pipe that nobody reads (a pager, a stuck collector) would stop the whole gateway at the next line.
    What it does not take is dropped and counted; the count is told when it takes lines again.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._writable = select.poll()
        self._writable.register(fd, select.POLLOUT)
        self._dropped = 0

    def write(self, line: bytes) -> None:
        """Write one line, or drop it."""
        if self._dropped and self._put(b"... %d lines dropped: nobody read them ...\n" % self._dropped):
            self._dropped = 0
        if self._dropped or not self._put(line):
            self._dropped += 1

    def _put(self, data: bytes) -> bool:
        # A pipe that is writable takes this much without blocking.
        for start in range(0, len(data), select.PIPE_BUF):
            if not self._writable.poll(0):
                return False
            try:
                os.write(self._fd, data[start : start + select.PIPE_BUF])
            except OSError:  # its reader is gone, or its disk is full
                return False
        return True


class _Sink:
    """What structlog writes to."""

    def __init__(self, logs: LogHub) -> None:
        self._logs = logs
        self._standard_error = StandardError()

    def msg(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        self._standard_error.write(data)
        self._logs.proxy.write(data)

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
