"""Logs that are gone are told; those that a running bookie has moved meanwhile are not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.tools.inspect.built import build

from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.system import RealFiles
from bkpy.storage.index.index import block_rows, scan_blocks
from bkpy.storage.tools.inspect.stored import missing_logs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("moved", [False, True])
def test_a_log_is_missing_if_rows_name_it_after_its_file_was_looked_for(tmp_path: Path, moved: bool) -> None:
    settings = asyncio.run(build(tmp_path, clean=True))
    (directory, *_) = settings.ledger_directories
    store = LmdbStores().open(f"{directory}/index")
    assert list(missing_logs(RealFiles(), directory, store, ledger=None)) == []
    (path,) = (tmp_path / "ledgers0").glob("*.log")
    path.unlink()

    class Files(RealFiles):
        def exists(self, path: str) -> bool:
            with store.write() as txn:
                for key, _ in list(block_rows(txn)) if moved else ():
                    txn.delete(key)
            return super().exists(path)

    found = list(missing_logs(Files(), directory, store, ledger=None))
    assert [(finding.path, bool(finding.damage)) for finding in found] == ([] if moved else [(str(path), True)])
    store.close()


def test_entries_of_one_ledger_alone_are_told_of_a_missing_log(tmp_path: Path) -> None:
    settings = asyncio.run(build(tmp_path, clean=True))
    (directory, *_) = settings.ledger_directories
    store = LmdbStores().open(f"{directory}/index")
    (path,) = (tmp_path / "ledgers0").glob("*.log")
    path.unlink()
    (found,) = missing_logs(RealFiles(), directory, store, ledger=1)
    assert found.facts["entries"] == ["ledger 1: 0-2", "ledger 1: 3-4"]
    assert list(missing_logs(RealFiles(), directory, store, ledger=77)) == []
    with store.write() as txn:  # a damaged row hides no other
        key, value = next(iter(scan_blocks(txn, 1, 0, 9)))
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    (found,) = missing_logs(RealFiles(), directory, store, ledger=1)
    assert found.facts["entries"] == ["ledger 1: 3-4"]
    store.close()
