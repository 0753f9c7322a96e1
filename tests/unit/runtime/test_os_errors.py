"""Errors of the operating system name the file that they are about."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bkpy.runtime.os_errors import naming


def test_a_write_that_fails_names_its_file() -> None:
    with pytest.raises(OSError, match="No space left") as raised, naming("/the/file"):
        Path("/dev/full").write_text("something")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/the/file")


def test_an_error_that_names_a_file_goes_on_as_it_is() -> None:
    with pytest.raises(FileNotFoundError) as raised, naming("/the/file"):
        Path("/no/such/file").read_bytes()
    assert raised.value.filename == "/no/such/file"


def test_an_error_that_is_none_of_the_systems_goes_on_as_it_is() -> None:
    error = OSError("of some library")
    with pytest.raises(OSError, match="of some library") as raised, naming("/the/file"):
        raise error
    assert raised.value is error
