"""Stores kept by LMDB, with others that read the same file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from bkpy.runtime.ordered_store import LmdbStores

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.runtime.interfaces import OrderedStore

READER = """
import sys, time
from bkpy.runtime.ordered_store import LmdbStores

with LmdbStores().open(sys.argv[1], bytes_max=1 << 30, read_only=True).read() as txn:
    print(sum(1 for _ in txn.scan(b"a", b"z")), flush=True)
    time.sleep(600)
"""


def rewrite(store: OrderedStore, times: int) -> None:
    for number in range(times):
        with store.write() as txn:
            for row in range(100):
                txn.put(b"row %03d" % row, b"%03d" % number * 100)


def test_a_reader_that_was_killed_keeps_no_pages(tmp_path: Path) -> None:
    """An inspection of a running bookie that is ended by force: the index must not grow from then on."""
    store = LmdbStores().open(str(tmp_path / "index"), create=True, bytes_max=1 << 30)
    rewrite(store, 20)
    before = store.sizes()[0]
    reader = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path / "index")], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"100\n"
    rewrite(store, 20)
    during = store.sizes()[0]
    assert during > 2 * before, "the reader has to find what it had found"
    reader.kill()
    reader.wait()
    reader.stdout.close()
    rewrite(store, 200)
    assert store.sizes()[0] < 1.2 * during
    store.close()
