"""Log lines as JSON: one object a line, whatever is in it, and the fields that the documentation names."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from bkpy.runtime.logs import JsonFormatter, with_fields

COMMON = {"time", "level", "logger", "message", "pid"}


class Unshowable:
    def __str__(self) -> str:
        raise ValueError("no text")


def formatted(message: object, *args: object, **attributes: Any) -> dict[str, Any]:
    """The object that the line holds."""
    record = logging.LogRecord("bkpy.some", logging.WARNING, __file__, 1, message, args, None)
    vars(record).update(attributes)
    line = JsonFormatter({"bookie": "b1"}).format(record)
    assert line.isascii()
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_has_the_fields_of_every_line() -> None:
    found = formatted("ledger %d: bookie %s failed", 7, "b2")
    assert found.keys() == {*COMMON, "bookie"}
    assert (found["level"], found["logger"], found["bookie"]) == ("WARNING", "bkpy.some", "b1")
    assert found["message"] == "ledger 7: bookie b2 failed"
    assert found["time"].endswith("+00:00")


def test_a_record_adds_fields_of_its_own() -> None:
    found = formatted("slow", **with_fields(request="r-1", sync_ms=2.5))
    assert (found["request"], found["sync_ms"]) == ("r-1", 2.5)


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31m", "\u2028", "\udcff", "\0", '"}', "ä"])
def test_any_text_stays_in_its_line(text: str) -> None:
    assert formatted("%s", text)["message"] == text


@pytest.mark.parametrize(
    ("message", "args"), [("%d", ("no number",)), ("%s", (Unshowable(),)), (Unshowable(), ()), ("%s %s", (1,))]
)
def test_what_cannot_be_shown_is_a_line_all_the_same(message: object, args: tuple[object, ...]) -> None:
    assert formatted(message, *args)["message"]


def test_an_error_is_inside_with_its_traceback() -> None:
    try:
        raise KeyError("a\nb") from ValueError("cause")
    except KeyError as e:
        found = formatted("it failed", exc_info=(type(e), e, e.__traceback__))
    assert found["error"].keys() == {"type", "message", "traceback"}
    assert found["error"]["type"] == "KeyError"
    assert "ValueError: cause" in found["error"]["traceback"]


def test_fields_that_json_does_not_know_become_text() -> None:
    assert formatted("m", **with_fields(what={1, 2}, why=Unshowable()))["what"] == "{1, 2}"


ENDS = """
import logging, sys, threading, warnings
from bkpy.runtime.logs import log_to_stderr
log_to_stderr("INFO", "json", bookie="b1")
logging.getLogger("asyncio").info("one")
warnings.warn("two")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
raise RuntimeError("four")
"""


def test_warnings_and_errors_that_nothing_catches_are_lines_too() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["INFO", "WARNING", "CRITICAL", "CRITICAL"]
    assert [line["error"]["type"] for line in lines[2:]] == ["ZeroDivisionError", "RuntimeError"]
    assert done.returncode == 1
