"""Tables whose reader has gone."""

from __future__ import annotations

import os
import sys

import pytest

from bkpy.cli.output.tables import print_table


def test_a_reader_that_goes_away_is_known_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with the status that it has for that, as with lines of text."""
    reading, writing = os.pipe()
    os.close(reading)
    output = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(BrokenPipeError):
        print_table(("name", "size"), [("a", 1)])
    with pytest.raises(BrokenPipeError):
        output.close()  # what is left in its buffer
