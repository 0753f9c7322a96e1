"""The ceiling of appends: it needs a bounded part of the disk, and says so when one of its processes fails."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

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
