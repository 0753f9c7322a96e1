"""The real files and workers, on a real disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.runtime.system import RealFiles

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_a_durable_write_takes_any_number_of_buffers(tmp_path: Path) -> None:
    file = RealFiles().open(str(tmp_path / "file"), create=True)
    buffers = [b"%d," % i for i in range(5000)]
    file.write_durably(buffers, 3)
    file.write_durably([b"abc"], 0)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abc" + b"".join(buffers)


def test_what_is_not_kept_in_the_page_cache_is_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []
    advise = os.posix_fadvise

    def watch(fd: int, offset: int, length: int, advice: int) -> None:
        asked.append((offset, length, advice))
        advise(fd, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", watch)
    file = RealFiles().open(str(tmp_path / "file"), create=True)
    data = random.Random(1).randbytes(300_000)
    file.write_durably([data], 4096)
    file.uncache(4096, len(data))
    assert asked == [(4096, len(data), os.POSIX_FADV_DONTNEED)]
    assert file.pread(len(data), 4096) == data
    file.close()
    file.uncache(0, 1)  # whatever the system says to it


class Kernel:
    """Watches the system calls that write: what of a file would a power cut take?"""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, short: bool = False, refuses_flags: bool = False) -> None:
        self.calls: list[str] = []
        self.volatile = 0  # bytes that were written since the last sync
        self._short = short
        self._refuses_flags = refuses_flags
        self._pwritev, self._pwrite, self._fdatasync = os.pwritev, os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        self.calls.append(f"pwritev {flags}")
        if flags and self._refuses_flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        data = b"".join(buffers)
        if self._short:
            self._short = False
            data = data[: len(data) // 2]
        done = self._pwritev(fd, [data], offset)
        self.volatile += 0 if flags & os.RWF_DSYNC else done
        return done

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self.calls.append("pwrite")
        done = self._pwrite(fd, data[: max(1, len(data) // 2)], offset)  # short again and again
        self.volatile += done
        return done

    def fdatasync(self, fd: int) -> None:
        self.calls.append("fdatasync")
        self._fdatasync(fd)
        self.volatile = 0


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("refuses_flags", [False, True])
@pytest.mark.parametrize("count", [1, 3, 1024, 1025, 3000])
def test_a_durable_write_is_on_disk_whole_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, short: bool, refuses_flags: bool
) -> None:
    file = RealFiles().open(str(tmp_path / "file"), create=True)
    buffers = [b"%d," % i for i in range(count)]
    kernel = Kernel(monkeypatch, short=short, refuses_flags=refuses_flags)
    for start in (5, 100_000):
        file.write_durably(buffers, start)
        assert kernel.volatile == 0, kernel.calls
    file.close()
    data = b"".join(buffers)
    assert (tmp_path / "file").read_bytes()[5 : 5 + len(data)] == data
    assert (tmp_path / "file").read_bytes()[100_000:] == data
    if count <= 1024 and not short and not refuses_flags:
        assert kernel.calls == [f"pwritev {os.RWF_DSYNC}"] * 2, "one system call each"
    if refuses_flags:
        assert kernel.calls.count(f"pwritev {os.RWF_DSYNC}") <= 1, "not asked for again"


@pytest.mark.parametrize("count", [1, 1024, 3000])
def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    file = RealFiles().open(str(tmp_path / "file"), create=True)
    Kernel(monkeypatch, short=True)
    buffers = [b"%d," % i for i in range(count)]
    data = b"".join(buffers)
    assert file.pwritev(buffers, 3) == len(data)
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(3) + data


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


@pytest.mark.parametrize("name", ["journal-0", "a name of more than fifteen characters"])
async def test_the_system_shows_the_names_of_workers(name: str) -> None:
    with contextlib.closing(RealFiles().worker(name)) as worker:
        assert await worker.run(Path("/proc/thread-self/comm").read_text) == f"{name[:15]}\n"


async def test_a_worker_calls_back_in_order_on_the_loop_with_a_result_or_an_error_and_not_once_it_is_closed() -> None:
    called: list[tuple[Any, Any, int]] = []

    def done(result: Any, error: BaseException | None) -> None:
        called.append((result, repr(error), threading.get_ident()))

    worker = RealFiles().worker("calls")
    worker.submit(done, divmod, 7, 2)
    worker.submit(done, divmod, 7, 0)
    after = await worker.run(len, "seven")
    worker.close()
    worker.submit(done, divmod, 7, 3)
    assert worker.run(len, "eight").cancelled()
    await asyncio.sleep(0)
    here = threading.get_ident()
    assert called == [
        ((3, 1), "None", here),
        (None, "ZeroDivisionError('integer division or modulo by zero')", here),
    ]
    assert after == 5
