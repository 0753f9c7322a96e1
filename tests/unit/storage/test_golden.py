"""The stored formats stay as they are: fixed inputs give the golden bytes, and the golden bytes are read as ever."""

from __future__ import annotations

import pytest
from tests.golden.regenerate import HERE, KEY, LEDGER, NONCE, STRIPED, UUID, exact
from tests.sim.disk import SimDisk
from tests.unit.storage.support import found_ids

from bkpy.storage.at_risk import IN_MEMORY, is_lost
from bkpy.storage.entry_log.entry_log import BlockReader, Place, decode_block, kept_in, log_name
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.identity import decode_cookie
from bkpy.storage.index import index
from bkpy.storage.index.tombstones import decode_tombstone, tombstone_key
from bkpy.storage.journal.format import Mark, RecordKind, decode_ledger, decode_records, file_name
from bkpy.storage.journal.reader import JournalReader
from bkpy.storage.scrub.state import decode_state


@pytest.mark.parametrize("name", exact())
def test_the_bytes_are_the_golden_ones(name: str) -> None:
    assert exact()[name] == (HERE / name).read_bytes()


def test_the_golden_journal_is_replayed() -> None:
    disk = SimDisk()
    disk.make_dirs("/j")
    disk.replace(f"/j/{file_name(0x18F00000000)}", (HERE / "journal.txn").read_bytes())
    replay = JournalReader(disk, "/j", 1, Mark(0x18F00000000, 4096, 7, 0xABCD))
    first, second, third, stop = list(replay)
    key, entries = decode_records(first.body, first.records)
    assert (key.kind, decode_ledger(key.head), bytes(key.body)) == (RecordKind.KEY, LEDGER, KEY)
    assert (entries.kind, found_ids([entries.body])) == (RecordKind.ADD, [0, 1, 2])
    fence, lac = decode_records(second.body, second.records)
    assert (fence.kind, lac.kind) == (RecordKind.FENCE, RecordKind.EXPLICIT_LAC)
    (deleted,) = decode_records(third.body, third.records)
    assert (deleted.kind, decode_ledger(deleted.head), len(deleted.body)) == (RecordKind.DELETED, LEDGER, 0)
    assert (stop.records, replay.damages, replay.torn) == (0, [], None)


@pytest.mark.parametrize("name", ["entry-log.log", "entry-log-untagged.log"])
def test_the_golden_entry_log_is_read(name: str) -> None:
    """The second one is as software wrote it whose blocks did not say where they are."""
    disk = SimDisk()
    disk.make_dirs("/d")
    data = (HERE / name).read_bytes()
    disk.replace(f"/d/{log_name(3)}", data)
    length = 52 + 8 + 3 * (32 + 7)
    block = decode_block(BlockReader(disk, "/d").read(Place(3, 64, length)), LEDGER)
    assert found_ids([block.data]) == list(block.ids.from_rank(0)) == [0, 1, 2]
    assert data.endswith(b"bkFT")
    assert UUID in data[:64]
    scan = LogScan(disk.open(f"/d/{log_name(3)}", read_only=True), read_bytes=4096)
    assert next((found.ledger_id, found.offset) for found in scan) == (LEDGER, 64)
    assert not scan.damages


def test_golden_bitmaps_are_read() -> None:
    block = decode_block((HERE / "striped-block.bin").read_bytes(), LEDGER)
    assert found_ids([block.data]) == list(block.ids.from_rank(0)) == list(STRIPED.from_rank(0))
    key, value = (bytes.fromhex(part) for part in (HERE / "striped-row.txt").read_text().split())
    assert list(index.decode_block_row(key, value).ids.from_rank(0)) == list(STRIPED.from_rank(0))


def test_golden_rows_of_kept_batches_are_read() -> None:
    lines = (HERE / "kept-rows.txt").read_text().splitlines()
    (key, shard), *rows = (tuple(bytes.fromhex(part) for part in line.split()) for line in lines)
    assert key == index.SHARD_KEY
    assert shard[0] == 2, "software that knows no such rows must not start"
    assert index.decode_shard(shard).keeps
    found = [index.decode_block_row(*row) for row in rows]
    assert [list(row.ids.from_rank(0)) for row in found] == [[3, 4, 5, 6], [4, 5]]
    assert {row.kept for row in found} == {(3, 4, 0x2468ACE0)}
    assert {kept_in(row.place.log_id) for row in found} == {(1, 0x18F00000000)}
    assert {row.place[1:] for row in found} == {(8260, 400)}


def test_golden_rows_of_shards_at_risk_are_read() -> None:
    """In each of them is a mark of a run that acknowledged what no disk had, after which everything may be in limbo."""
    lines = (HERE / "at-risk-rows.txt").read_text().splitlines()
    memory, cache = ([bytes.fromhex(part) for part in line.split()] for line in lines)
    assert (memory[0], cache[0]) == (index.SHARD_KEY, index.SHARD_KEY)
    assert (memory[1][0], cache[1][0]) == (3, 3), "software that doesn't know the mark must not start"
    for found, in_limbo, keeps, mark in ((memory, True, False, IN_MEMORY), (cache, False, True, NONCE)):
        row = index.decode_shard(found[1])
        assert (row.at_risk, row.keeps, row.unknown_in_limbo) == (mark, keeps, in_limbo)
        assert (row.uuid, row.next_log_id, row.ledgers, row.checksum) == (UUID, 4, 1, 0x9ABCDEF0)
        assert row.marks == (Mark(0x18F00000000, 4096, 7, 0xABCD),)
    for today in ("another boot", NONCE.decode()):
        assert is_lost(IN_MEMORY, today.encode())
        assert is_lost(NONCE, today.encode()) == (today == "another boot")


def test_golden_rows_of_shards_in_doubt_are_read() -> None:
    lines = (HERE / "in-doubt-rows.txt").read_text().splitlines()
    first, second = (bytes.fromhex(line.split()[1]) for line in lines)
    assert (first[0], second[0]) == (4, 4), "software that doesn't know the doubt would deny"
    row = index.decode_shard(first)
    assert (row.limbo_to, row.unknown_in_limbo, row.keeps, row.at_risk) == (0, False, False, b"")
    row = index.decode_shard(second)
    assert (row.limbo_to, row.unknown_in_limbo, row.keeps, row.at_risk) == (0x123456789, True, True, NONCE)
    assert row.unasked
    assert row.marks == (Mark(0x18F00000000, 4096, 7, 0xABCD),)


def test_the_golden_state_of_the_scrub_is_read() -> None:
    state = decode_state((HERE / "scrub.json").read_bytes(), "/elsewhere")
    assert (state.rounds, state.counted_from_s, state.ended_s, state.left_out) == (
        3,
        1_700_000_000.5,
        1_700_000_000.5,
        7,
    )
    assert state.round == (1_700_604_800.0, LEDGER, 9, 4096)
    assert [(*one.defect[:3], one.defect.first, one.defect.last, one.round) for one in state.known] == [
        (f"/elsewhere/{log_name(3)}", 64, LEDGER, 0, 2, 4),
        ("/elsewhere/index", None, LEDGER, None, None, 3),
    ]


def test_golden_rows_and_cookie_are_read() -> None:
    lines = (HERE / "index-rows.txt").read_text().splitlines()
    rows = dict(tuple(bytes.fromhex(part) for part in line.split()) for line in lines)
    shard = index.decode_shard(rows[index.SHARD_KEY])
    assert (shard.uuid, shard.unknown_in_limbo, shard.next_log_id, len(shard.marks)) == (UUID, True, 4, 2)
    ledger = index.decode_ledger(index.ledger_key(LEDGER), rows[index.ledger_key(LEDGER)])
    assert (ledger.key, ledger.fenced, ledger.limbo, ledger.last_entry, ledger.lac) == (KEY, True, True, 99, 98)
    logs = {i: index.decode_log(index.log_key(i), rows[index.log_key(i)]) for i in (3, 4)}
    assert logs == {3: (1000, 2, True, None), 4: (1000, 2, True, 300)}
    assert decode_tombstone(tombstone_key(6), rows[tombstone_key(6)]) == (6, 9)
    assert index.unseal(index.trash_key(8), rows[index.trash_key(8)]) == b""
    cookie = decode_cookie((HERE / "cookie.json").read_bytes(), "cookie.json")
    assert [directory.path for directory in cookie.ledger_directories] == ["/data/1", "/data/2"]
