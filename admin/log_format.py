"""How logs look on standard error: text for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from streamlease.admin.output import iso_microseconds
from streamlease.protocol.log_lines import AboutFilter


class LogFormat(StrEnum):
    """How logs look."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat, typer.Option(envvar="STREAMLEASE_LOG_FORMAT", help="Format of the logs on standard error.")
]


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message; group, term, borrower and stream where they are
    known; and the traceback of a defect."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        fields: dict[str, Any] = {
            "time": iso_microseconds(round(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, and in brackets what the line is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of one record, without a traceback."""
        about = " ".join(f"{name}={value}" for name, value in getattr(record, "about", {}).items())
        line = super().formatMessage(record)
        return f"{line} [{about}]" if about else line


def set_up_logs(form: LogFormat, level: int = logging.INFO) -> None:
    """Send logs to standard error: all of Streamlease from `level` on, of others only warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(AboutFilter())
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("streamlease").setLevel(level)
