"""Writes the golden files of the stored formats and the wire anew, from fixed inputs: `make golden`.

A difference means that files written by earlier versions can't be read any more: raise the format's version instead.
"""

from __future__ import annotations

from pathlib import Path

from tests.golden import wire
from tests.sim.disk import SimDisk

from bkpy.protocol.wire.messages import pack
from bkpy.protocol.wire.records import RecordCodec
from bkpy.spark.id_runs import Runs
from bkpy.spark.manifest import (
    ExportLayout,
    ExportSource,
    Moves,
    State,
    Totals,
    committed_line,
    first_line,
    planned_line,
)
from bkpy.storage.at_risk import IN_MEMORY
from bkpy.storage.entry_log.entry_log import BlockWriter, Place, encode_block, kept_log_id, log_name
from bkpy.storage.identity import Cookie, LedgerDirectory
from bkpy.storage.index import index
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import BlockRow, KeptBatch, LedgerRow, LogRow, ShardRow
from bkpy.storage.index.tombstones import encode_tombstone, tombstone_key
from bkpy.storage.journal.format import (
    FileHeader,
    FrameKind,
    Mark,
    RecordKind,
    encode_file_header,
    encode_frame,
    encode_ledger,
    encode_record,
)
from bkpy.storage.scrub.damages import Known
from bkpy.storage.scrub.state import Round, ScrubState
from bkpy.storage.tools.check.defects import OTHER_COPIES, REBUILD, Defect

HERE = Path(__file__).parent / "storage"
EXPORT = Path(__file__).parent / "export" / "manifest"
KEY = bytes(range(32))
NONCE = b"0123456789abcdef"
UUID = b"fedcba9876543210"
LEDGER = 5
STRIPED = Ids.from_bits(100, 0b1011011)


def records(entry_ids: list[int]) -> bytes:
    parts: list[bytes] = []
    codec = RecordCodec(LEDGER)
    for entry_id in entry_ids:
        codec.encode(parts, (b"entry %d" % entry_id,), entry_id, 1, entry_id - 1, (10 * (entry_id + 1),))
    return b"".join(parts)


def export_manifest() -> bytes:
    """Of a log, when the second batch has been committed and its files haven't got their names."""
    ids, added = Runs.between(2000, 3000), Totals(1000, 116_000, 0, 1)
    staged, name = "day=2026-11-22/part-00000-x.c000.snappy.parquet", "part-00000001-00000-c000.snappy.parquet"
    moves = Moves(1, "staging-0123456789abcdef/00000001-1", ((staged, f"day=2026-11-22/{name}"),))
    source = ExportSource("3a3a-instance", "orders", "00112233")
    state = State(
        source, ExportLayout("parquet", None, "day"), Runs.of([7, *range(9, 2000)]), 1, Totals(1992, 231_072, 0, 2)
    )
    lines = first_line(state), planned_line(1, moves.staging, ids), committed_line(ids, added, moves)
    return b"".join(lines)


def journal() -> bytes:
    body = records([0, 1, 2])
    columns = pack([0, [LEDGER], [0], [3], 1, [len(body)]])
    ledger = encode_ledger(LEDGER)
    lac = RecordCodec(LEDGER).explicit_lac(2, 30)
    file = encode_file_header(FileHeader(1, 0x18F00000000, NONCE, 7, 0xABCD))
    frames = (
        (FrameKind.RECORDS, ((RecordKind.KEY, ledger, KEY), (RecordKind.ADD, columns, body))),
        (FrameKind.RECORDS, ((RecordKind.FENCE, ledger, KEY), (RecordKind.EXPLICIT_LAC, ledger, lac))),
        (FrameKind.RECORDS, ((RecordKind.DELETED, ledger, b""),)),
        (FrameKind.CLEAN_STOP, ()),
    )
    sequence, chain = 7, 0xABCD
    for kind, contents in frames:
        parts = [part for k, head, data in contents for part in (encode_record(k, head, data), head, data)]
        buffers, _, chain = encode_frame(kind, NONCE, sequence, chain, len(contents), parts)
        sequence += 1
        file += b"".join(buffers)
    return file


def entry_log() -> bytes:
    disk = SimDisk()
    disk.make_dirs("/d")
    log = BlockWriter(disk, "/d", 3, UUID)
    log.append(LEDGER, Ids(0, 3), [(0, 0)], [records([0, 1, 2])])
    log.append(LEDGER + 1, Ids(9, 1), [(0, 0)], [records([9])])
    log.finish()
    return disk.contents(f"/d/{log_name(3)}")


def rows() -> bytes:
    """The index's rows, one a line: key, then value."""
    ledger = LedgerRow(KEY, True, True, RecordCodec(LEDGER).explicit_lac(2, 30), 99, 98, 7, 2, 0x12345678)
    marks = (Mark(0x18F00000000, 4096, 7, 0xABCD), Mark(0x18F00000001, 8192, 9, 0xEF))
    shard = ShardRow(UUID, True, 4, 1, 0x9ABCDEF0, marks)
    items = (
        (index.SHARD_KEY, index.encode_shard(shard)),
        (index.ledger_key(LEDGER), index.encode_ledger(LEDGER, ledger)),
        index.encode_block_row(LEDGER, BlockRow(Ids(0, 3), Place(3, 64, 200))),
        (index.log_key(3), index.encode_log(3, LogRow(1000, 2, True))),
        (index.log_key(4), index.encode_log(4, LogRow(1000, 2, True, 300))),
        (tombstone_key(6), encode_tombstone(6, 9)),
        (index.trash_key(8), index.seal(index.trash_key(8), b"")),
    )
    return b"".join(b"%s %s\n" % (key.hex().encode(), value.hex().encode()) for key, value in items)


def kept_rows() -> bytes:
    """Rows of an index that names batches in journal files."""
    log_id = kept_log_id(1, 0x18F00000000)
    assert log_id is not None
    batch = KeptBatch(3, 4, 0x2468ACE0)
    items = (
        (index.SHARD_KEY, index.encode_shard(ShardRow(UUID, False, 4, 1, 0x9ABCDEF0, (), True))),
        index.encode_block_row(LEDGER, BlockRow(Ids(3, 4), Place(log_id, 8260, 400), batch)),
        index.encode_block_row(LEDGER, BlockRow(Ids(4, 2), Place(log_id, 8260, 400), batch)),
    )
    return b"".join(b"%s %s\n" % (key.hex().encode(), value.hex().encode()) for key, value in items)


def at_risk_rows() -> bytes:
    """Rows of shards whose bookie acknowledges what no disk has yet: in memory, and in the page cache of a boot."""
    marks = (Mark(0x18F00000000, 4096, 7, 0xABCD),)
    rows = (
        ShardRow(UUID, True, 4, 1, 0x9ABCDEF0, marks, False, IN_MEMORY),
        ShardRow(UUID, False, 4, 1, 0x9ABCDEF0, marks, True, NONCE),
    )
    return b"".join(b"%s %s\n" % (index.SHARD_KEY.hex().encode(), index.encode_shard(r).hex().encode()) for r in rows)


def in_doubt_rows() -> bytes:
    """Rows of shards that doubt ledgers that they have never seen up to an id: without more, and with all there is."""
    marks = (Mark(0x18F00000000, 4096, 7, 0xABCD),)
    rows = (
        ShardRow(UUID, False, 4, 1, 0x9ABCDEF0, marks, limbo_to=0),
        ShardRow(UUID, True, 4, 1, 0x9ABCDEF0, marks, True, NONCE, True, 0x123456789),
    )
    return b"".join(b"%s %s\n" % (index.SHARD_KEY.hex().encode(), index.encode_shard(r).hex().encode()) for r in rows)


def cookie() -> bytes:
    directories = (LedgerDirectory("/data/1", UUID.hex()), LedgerDirectory("/data/2", NONCE.hex()))
    return Cookie("bookie-1", "11111111-2222-3333-4444-555555555555", ("/journal",), directories).encode()


def scrub() -> bytes:
    """How far the scrub is, in the middle of a round that has found something."""
    path = f"/d/{log_name(3)}"
    known = (
        Known(Defect(path, 64, LEDGER, "a block's checksum doesn't match its bytes", OTHER_COPIES, 0, 2), 4),
        Known(Defect("/d/index", None, LEDGER, "the ledger's row: it is damaged", REBUILD), 3),
    )
    return ScrubState(3, 1_700_000_000.5, 1_700_000_000.5, Round(1_700_604_800.0, LEDGER, 9, 4096), known, 7).encode()


def exact() -> dict[str, bytes]:
    """Files that are written to the last byte as they always were."""
    return {
        "journal.txn": journal(),
        "entry-log.log": entry_log(),
        "index-rows.txt": rows(),
        "kept-rows.txt": kept_rows(),
        "at-risk-rows.txt": at_risk_rows(),
        "in-doubt-rows.txt": in_doubt_rows(),
        "cookie.json": cookie(),
        "scrub.json": scrub(),
    }


def readable() -> dict[str, bytes]:
    """Files with compressed bitmaps: another zlib may write other bytes, but must read these."""
    block = b"".join(encode_block(LEDGER, STRIPED, [(0, 0)], [records(list(STRIPED.from_rank(0)))], tag=0)[0])
    key, value = index.encode_block_row(LEDGER, BlockRow(STRIPED, Place(3, 64, 200)))
    return {"striped-block.bin": block, "striped-row.txt": b"%s %s\n" % (key.hex().encode(), value.hex().encode())}


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, data in (exact() | readable()).items():
        (HERE / name).write_bytes(data)
        print(f"{HERE / name}: {len(data)} bytes")
    EXPORT.parent.mkdir(exist_ok=True)
    EXPORT.write_bytes(export_manifest())
    print(f"{EXPORT}: {len(export_manifest())} bytes")
    wire.WIRE.write_bytes(wire.frames())
    print(f"{wire.WIRE}: {len(wire.frames())} bytes")
