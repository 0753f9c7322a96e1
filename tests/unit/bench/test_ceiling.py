"""The ceiling of appends: it needs a bounded part of the disk, and says so when one of its processes fails."""

from __future__ import annotations

import queue
import resource
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import eventually_here

from bkpy.bench import ceiling
from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from pathlib import Path


def fails_at_once(port: int, path: str) -> None:
    """A receiver that ends before it has answered anything."""
    ceiling.connect(port).close()


@pytest.mark.thorough
def test_a_process_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "receive_and_sync", fails_at_once)
    with pytest.raises(BookKeeperError, match="one of its processes has failed"):
        ceiling.appends(str(tmp_path), 1 << 20, 1, 1, 5.0)


def never_connects(port: int, path: str) -> None:
    """A receiver that fails before it can say so."""


def test_a_process_that_does_not_come_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(ceiling, "receive_and_sync", never_connects)
    with pytest.raises(BookKeeperError, match="one of its processes has failed"):
        ceiling.appends(str(tmp_path), 1 << 20, 1, 1, 60.0)


def journal_fails(port: int, path: str) -> None:
    """A receiver whose files may be no longer than a megabyte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    ceiling.receive_and_store(port, path)


def log_fails(port: int, path: str) -> None:
    """A receiver whose journal fits, and whose log does not."""
    ceiling.FILE_BYTES_MAX = ceiling.RECEIVE_BYTES_MAX  # type: ignore[misc]
    ceiling.LOG_TIMEOUT_S = 600.0  # type: ignore[misc]
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 20, 10 << 20))
    ceiling.receive_and_store(port, path)


@pytest.mark.parametrize("fails", [journal_fails, log_fails])
def test_a_full_disk_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """Where only the log fails nothing more becomes durable, and the figure would be too low, or zero."""
    monkeypatch.setattr(ceiling, "receive_and_store", fails)
    with pytest.raises(BookKeeperError, match="one of its processes has failed"):
        ceiling.appends(str(tmp_path), 1 << 20, 1, 1, 60.0, stored=True)


def test_its_second_file_stays_small_however_long_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceiling, "LOG_BYTES_MAX", 10_000)
    log: queue.Queue[memoryview] = queue.Queue()
    path = tmp_path / "log"
    threading.Thread(target=ceiling.write_log, args=(str(path), log), daemon=True).start()
    for _ in range(25):
        log.put(memoryview(bytes(1000)))
    eventually_here(lambda: log.empty() and path.exists() and path.stat().st_size == 5_000, "all of it is written")
    assert [file.name for file in tmp_path.iterdir()] == ["log"]
