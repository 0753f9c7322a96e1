"""The real files and workers, on a real disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bkpy.runtime import RealFiles


def test_a_durable_write_takes_any_number_of_buffers(tmp_path: Path) -> None:
    file = RealFiles().open(str(tmp_path / "file"), create=True)
    buffers = [b"%d," % i for i in range(5000)]
    file.write_durably(buffers, 3)
    file.write_durably([b"abc"], 0)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abc" + b"".join(buffers)


def test_a_durable_write_that_fails_says_why() -> None:
    full = RealFiles().open("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        full.write_durably([b"x"], 0)
    full.close()
    assert error.value.errno == errno.ENOSPC


def test_space_that_cannot_be_reserved_names_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with pytest.raises(OSError, match=f"{1 << 60} bytes were to be reserved") as caught:
        RealFiles().open(path, create=True).allocate(1 << 60)
    assert caught.value.filename == path
