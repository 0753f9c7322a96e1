"""What an inspection says of blocks that rows name, and of journal files in which batches have stayed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from tests.sim.store import SimStores
from tests.unit.storage.support import Batch, Host, add

from bkpy.storage.entry_log.entry_log import KEPT, BlockReader, log_id_of
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import block_rows, decode_block_row, encode_block_row, ledger_of_block
from bkpy.storage.tools.inspect.stored import inspect_kept_file, stored_block

if TYPE_CHECKING:
    from bkpy.storage.index.index import BlockRow
    from bkpy.storage.tools.inspect.finding import Finding

LARGE = b"x" * 100_000  # such a batch stays in the journal file


async def stopped(payload: bytes = LARGE) -> Host:
    """Ledgers 1 and 2 with two batches of one entry each, all of them in one file."""
    host = Host()
    storage = await host.boot()
    for entry_id in range(2):
        for ledger_id in (1, 2):
            await storage.states((ledger_id,))
            await add(storage, Batch(ledger_id, entry_id, payload=payload))
    await storage.close()
    return host


def directory_of(host: Host) -> str:
    (directory,) = host.settings.ledger_directories
    return directory


def kept_file(host: Host) -> str:
    """The name of the journal file in which the batches have stayed."""
    (name,) = (n for n in host.disk.listdir(directory_of(host)) if (log_id_of(n) or 0) & KEPT)
    return name


def rows_of(host: Host) -> dict[tuple[int, int], BlockRow]:
    """Rows by ledger and first id."""
    store = SimStores(host.disk).open(f"{directory_of(host)}/index", read_only=True)
    with store.read() as txn:
        rows = {
            (ledger_of_block(key), row.ids.first): row
            for key, row in ((key, decode_block_row(key, value)) for key, value in block_rows(txn))
        }
    store.close()
    return rows


def look(host: Host, *, ledger: int | None = None, offset: int = 0, file: str = "") -> list[Finding]:
    store = SimStores(host.disk).open(f"{directory_of(host)}/index", read_only=True)
    try:
        name = file or kept_file(host)
        return list(inspect_kept_file(host.disk, directory_of(host), name, store, ledger=ledger, offset=offset))
    finally:
        store.close()


def entries(findings: list[Finding]) -> set[tuple[object, object]]:
    return {(f.facts["ledger"], f.facts["first"]) for f in findings if f.kind == "block"}


async def test_only_what_rows_name_is_shown_of_a_journal_file() -> None:
    host = await stopped()
    rows = rows_of(host)
    assert len(rows) == 4
    note, *blocks = look(host)
    assert "what the index says has stayed in it" in str(note.facts)
    assert entries(blocks) == rows.keys()
    assert all(not f.damage and f.facts["checked"] and f.path.endswith(kept_file(host)) for f in blocks)
    assert {f.offset for f in blocks} == {row.place.offset for row in rows.values()}


async def test_a_ledger_an_offset_and_the_file_choose_what_is_shown() -> None:
    host = await stopped()
    rows = rows_of(host)
    assert entries(look(host, ledger=2)) == {(2, 0), (2, 1)}
    last = max(rows, key=lambda key: rows[key].place.offset)
    assert entries(look(host, offset=rows[last].place.offset)) == {last}
    assert entries(look(host, offset=rows[last].place.offset + 1)) == set()
    assert entries(look(host, file=f"{KEPT | 5:016x}.txn")) == set()


async def test_without_an_index_nothing_is_known_of_a_journal_file() -> None:
    host = await stopped()
    (note,) = inspect_kept_file(host.disk, directory_of(host), kept_file(host), None, ledger=None, offset=0)
    assert "only the index knows which" in str(note.facts)


async def test_a_batch_that_rots_in_a_journal_file_is_damage() -> None:
    host = await stopped()
    row = rows_of(host)[2, 1]
    host.disk.flip(f"{directory_of(host)}/{kept_file(host)}", row.place.offset + 500)
    findings = look(host)
    (damage,) = (f for f in findings if f.damage)
    assert (damage.offset, damage.facts["ledger"], damage.facts["first"]) == (row.place.offset, 2, 1)
    assert "doesn't hold the batch" in damage.damage
    assert len(entries(findings)) == 3, "the others are looked at"


async def test_a_damaged_row_hides_no_other_batch() -> None:
    host = await stopped()
    row = rows_of(host)[1, 0]
    store = SimStores(host.disk).open(f"{directory_of(host)}/index")
    key, value = encode_block_row(1, row)
    with store.write() as txn:
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    store.close()
    assert entries(look(host)) == {(1, 1), (2, 0), (2, 1)}


async def test_a_journal_file_that_the_bookie_lets_go_meanwhile_is_no_damage() -> None:
    host = await stopped()
    name = kept_file(host)
    host.disk.unlink(f"{directory_of(host)}/{name}")
    findings = look(host, file=name)
    assert [f for f in findings if f.damage] == []
    assert "let go meanwhile" in str(findings[-1].facts)
    assert len(findings) == 2


@pytest.mark.parametrize("payload", [pytest.param(LARGE, id="batch"), pytest.param(b"small", id="block")])
async def test_a_block_that_cannot_be_read_is_damage_with_its_place_and_entries(payload: bytes) -> None:
    host = await stopped(payload)
    (ledger_id, first), row = min(rows_of(host).items())
    reader = BlockReader(host.disk, directory_of(host))

    def finding(row: BlockRow) -> Finding:
        found = stored_block(directory_of(host), reader, ledger_id, row)
        assert (found.facts["ledger"], found.facts["first"]) == (ledger_id, first)
        assert not found.damage or "*unknown*" in found.advice
        return found

    assert not finding(row).damage
    assert "names ids that are not in the block" in finding(row._replace(ids=Ids(first, 100))).damage
    host.disk.fail_at(1, errno.EIO, operation="pread", path=directory_of(host))
    unreadable = finding(row)
    assert "can't be read: Input/output error" in unreadable.damage
    assert unreadable.offset == row.place.offset
    assert not finding(row).damage
    reader.close()
    host.disk.unlink(unreadable.path)
    gone = finding(row)
    assert "the entry log is gone" in gone.damage
    assert gone.offset is None
