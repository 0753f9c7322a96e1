"""The log lines of a process on standard error: text for people, or JSON objects for programs.

Invariant: a JSON object is one line of ASCII, whatever its message, arguments, fields and error are.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

LogFormat = Literal["text", "json"]

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FIELDS: Final = "bkpy_fields"


def log_to_stderr(level: int | str, log_format: LogFormat, **fields: object) -> None:
    """Send all log lines of this process to standard error. `fields` are in each JSON object.

    As JSON, the warnings of Python and the errors that nothing catches are log lines, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    as_json = log_format == "json"
    handler.setFormatter(JsonFormatter(fields) if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(force=True, level=level, handlers=[handler])
    logging.captureWarnings(as_json)
    if as_json:
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda of: _log_uncaught(of.exc_type, of.exc_value, of.exc_traceback)


def logs_json() -> bool:
    """Whether this process logs JSON: then nothing else belongs on standard error."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def with_fields(**fields: object) -> dict[str, object]:
    """For `extra` of a log call: fields of the JSON object beside its message."""
    return {_FIELDS: fields}


class JsonFormatter(logging.Formatter):
    """One object a record: `time`, `level`, `logger`, `message`, `pid`, the given fields, the record's own, `error`."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._constant = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """The object in one line. It never raises: a log line is written where something is wrong already."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "pid": record.process,
            **self._constant,
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = _error(record.exc_info[1])
        return json.dumps(line, default=_text, skipkeys=True)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments don't fit the text, or can't be shown
        return _text(record.msg)


def _error(error: BaseException) -> dict[str, str]:
    return {
        "type": type(error).__qualname__,
        "message": _text(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__qualname__} that can't be shown>"


def _log_uncaught(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt) or error is None:
        sys.__excepthook__(kind, error or kind(), where)
        return
    logging.getLogger("bkpy").critical("an error ends the process or a thread of it", exc_info=(kind, error, where))
