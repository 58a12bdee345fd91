"""The lines of the service's logs: plain text, or one JSON object each (``--log-format json``)."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

FORMAT_VARIABLE = "FIELDFARE_LOG_FORMAT"
"""Environment variable with the format of all processes' logs."""


class LogFormat(StrEnum):
    """Values of ``--log-format``."""

    TEXT = "text"
    JSON = "json"


REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the HTTP request that is handled; empty outside of one."""


def is_json() -> bool:
    """Return whether this process writes JSON lines."""
    return os.environ.get(FORMAT_VARIABLE) == LogFormat.JSON


def configure_logging(process: str) -> None:
    """Log to standard error, in the format of the service's setting."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process) if is_json() else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It logs each request, to a neighbour for example.


def process_line(process: str, text: str) -> str:
    """Return a line about a process, outside of its log: about its start or its end."""
    if not is_json():
        return f"fieldfare {process}: {text}" if process else f"fieldfare: {text}"
    return _encoded(time.time(), "INFO", process or "supervisor", "fieldfare", text)


class TextLines(logging.Formatter):
    """Time, level, logger, message, and the id of the request."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, request = super().formatMessage(record), REQUEST_ID.get()
        return f"{line} (request {request})" if request else line


class JsonLines(logging.Formatter):
    """An object with ``time``, ``level``, ``process``, ``logger``, ``message``; where there are, ``request``
    and ``exception``.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, Any] = {}
        if request := REQUEST_ID.get():
            more["request"] = request
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            more["stack"] = self.formatStack(record.stack_info)
        return _encoded(
            record.created, record.levelname, self._process, record.name, record.getMessage(), **more
        )


def _encoded(created_s: float, level: str, process: str, logger: str, message: str, **more: Any) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
    line = {
        "time": f"{moment}.{int(created_s * 1000) % 1000:03d}Z",
        "level": level,
        "process": process,
        "logger": logger,
        "message": message,
    }
    return json.dumps(line | more)
