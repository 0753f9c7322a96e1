"""The check of a bookie's directories: silent about what is sound, and it tells every kind of damage with its place."""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.sim.disk import SimulatedCrash
from tests.sim.store import SimStores
from tests.unit.storage.acknowledged_writes import AcknowledgedWrites, copy_of, dropped, kept, new_host, whole_life
from tests.unit.storage.support import Batch, Host, add, records, settings, sim_runtime

from bkpy.errors import IdentityError, StorageFailedError
from bkpy.storage.entry_log.entry_log import LOG_HEADER_BYTES, TRAILER_BYTES, encode_footer, log_id_of
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.identity import read_cookie
from bkpy.storage.index.index import LogRow, block_key, ledger_key, trash_rows
from bkpy.storage.index.tombstones import tombstone_key
from bkpy.storage.journal.format import PAGE_BYTES
from bkpy.storage.space.deletion import hide
from bkpy.storage.tools.check.check import Checked, bytes_to_check, check_bookie
from bkpy.storage.tools.check.logs import check_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.runtime.interfaces import Files
    from bkpy.storage.tools.check.defects import Defect


FOOTER_BLOCK_BYTES = 40


def check(host: Host, *, running: bool = False) -> tuple[Checked, list[Defect]]:
    findings: list[Defect] = []
    done: list[int] = []
    runtime = sim_runtime(host.disk, host.clock)
    operations = host.disk.operations
    size = bytes_to_check(host.settings, runtime.files, running=running)
    checked = check_bookie(
        host.settings, runtime, running=running, found=findings.append, progress=lambda now: done.append(now)
    )
    assert done == sorted(done)
    assert not done or running or done[-1] == size
    opened = 4 * running
    assert host.disk.operations - operations <= opened + 8, "it has changed something"
    return checked, findings


def files_of(host: Host, suffix: str) -> list[str]:
    directories = (*host.settings.journal_directories, *host.settings.ledger_directories)
    return [f"{d}/{name}" for d in directories for name in host.disk.listdir(d) if name.endswith(suffix)]


async def lived() -> Host:
    """Of several lives, with logs of both kinds, an unclean stop and something left in the journals."""
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    storage = await host.boot()
    for i in range(20):
        await storage.states((i, i + 1))
        await add(storage, Batch(i, 100, 5), Batch(i + 1, 200 + i, 3, payload=b"x" * 900))
        if i == 12:
            await storage.checkpoint()
    host.disk.crash()
    return host


async def test_what_is_sound_is_not_complained_of() -> None:
    host = await lived()
    checked, findings = check(host)
    assert findings == []
    assert checked.ledgers >= 13
    assert checked.block_rows <= checked.blocks
    assert checked.logs == len(files_of(host, ".log"))
    assert checked.journal_frames > 20
    assert checked.skipped == []
    (await host.boot()).release()  # what it leaves is sound as well
    assert check(host)[1] == []


async def test_a_bookie_that_runs() -> None:
    host = await lived()
    storage = await host.boot()
    with pytest.raises(IdentityError, match="another process") as refused:
        check(host)
    assert "--running" in refused.value.__notes__[0]
    host.disk.crash()
    checked, findings = check(host, running=True)  # the simulated store can't be open twice
    assert findings == []
    assert len(checked.skipped) == 4
    assert checked.journal_frames == 0
    del storage


@pytest.mark.thorough
async def test_every_flip_in_a_log_is_told_or_harmless() -> None:
    host = await lived()
    rng = random.Random(1)
    logs = files_of(host, ".log")
    for _ in range(150 // stride()):
        path = rng.choice(logs)
        offset = rng.randrange(len(host.disk.contents(path)))
        torn = copy_of(host)
        torn.disk.flip(path, offset, rng.randrange(1, 256))
        _, findings = check(torn)
        if 44 <= offset < 64:  # zeros behind the header, which nobody reads
            assert findings == []
        else:
            assert {finding.path for finding in findings} == {path}
            # The place is told to the block.
            assert any(f.offset is not None and f.offset <= offset for f in findings)


async def cut_at_a_write_of_a_log() -> AsyncIterator[Host]:
    """A bookie that died in the first write of a log, one that died in the second, and so on."""
    for nth in itertools.count(1):
        host = new_host()
        await (await host.boot()).close()
        host.disk.crash_at(nth, operation="pwritev", path=".log")
        with contextlib.suppress(SimulatedCrash, StorageFailedError):
            await whole_life(host, AcknowledgedWrites())
        if not host.disk.dead:
            return
        host.disk.heal()
        yield host


@pytest.mark.thorough
async def test_what_a_crash_has_cut_of_a_log_is_no_damage() -> None:
    """At any write of a log, header or block: no row names what is torn, and it stays until the log is removed."""
    crashes = cut = 0
    async for host in cut_at_a_write_of_a_log():
        crashes += 1
        for fate in (kept, None):
            torn = copy_of(host)
            torn.disk.rng.seed(crashes)
            torn.disk.power_cut(fate)
            before = check(torn)[1]
            (await torn.boot()).release()
            assert (before, check(torn)[1]) == ([], [])
            files = sim_runtime(torn.disk, torn.clock).files
            cut += any(_is_cut(files, path) for path in files_of(torn, ".log"))
    assert crashes >= 5
    assert cut >= 3


@pytest.mark.thorough
async def test_what_power_takes_of_a_log_that_a_start_has_counted_is_no_damage() -> None:
    """A write that a crash cut is still in the page cache when the next start counts the log's bytes."""
    shorter = 0
    async for host in cut_at_a_write_of_a_log():
        host.disk.crash()
        (await host.boot()).release()
        counted = {path: len(host.disk.contents(path)) for path in files_of(host, ".log")}
        host.disk.power_cut(dropped)
        shorter += any(len(host.disk.contents(path)) < size for path, size in counted.items())
        assert check(host)[1] == []
    assert shorter >= 3


def _is_cut(files: Files, path: str) -> bool:
    with contextlib.closing(files.open(path, read_only=True)) as file:
        scan = LogScan(file, read_bytes=1 << 16)
        blocks = list(scan)
        return bool(scan.damages) or not (blocks or file.size() >= LOG_HEADER_BYTES)


async def test_what_is_damaged_in_a_complete_log_or_before_the_last_row_was_cut_by_no_crash() -> None:
    host = await lived()
    path = files_of(host, ".log")[0]
    directory, _, name = path.rpartition("/")
    files, log_id = sim_runtime(host.disk, host.clock).files, log_id_of(name)
    assert log_id is not None
    host.disk.replace(path, host.disk.contents(path)[:150] + b"\0" * 50)  # its first block is cut

    def told(named_end: int | None, *, footer: bool) -> bool:
        found: list[Defect] = []
        row = LogRow(200, 0, footer)
        check_log(
            files, directory, log_id, row, named_end, read_bytes=4096, found=found.append, progress=lambda _: None
        )
        return any("no sound block" in defect.what for defect in found)

    assert [told(end, footer=False) for end in (0, LOG_HEADER_BYTES, 150, None)] == [False, False, True, True]
    assert [told(end, footer=True) for end in (0, LOG_HEADER_BYTES, 150, None)] == [True] * 4


@pytest.mark.parametrize(
    ("footer", "counted", "named_end", "told"),
    [
        (False, 201, 200, False),  # not synced when it was counted
        (False, 300, 0, False),
        (False, 300, 201, True),  # what a row names is gone
        (False, 199, 150, True),  # no later write goes there
        (True, 201, 200, True),
    ],
)
async def test_the_bytes_of_a_log_are_what_a_start_counted_but_for_what_no_row_names(
    footer: bool, counted: int, named_end: int, told: bool
) -> None:
    host = await lived()
    path = files_of(host, ".log")[0]
    directory, _, name = path.rpartition("/")
    files, log_id = sim_runtime(host.disk, host.clock).files, log_id_of(name)
    assert log_id is not None
    found: list[Defect] = []
    host.disk.replace(path, host.disk.contents(path)[:200])
    row = LogRow(counted, 0, footer)
    check_log(files, directory, log_id, row, named_end, read_bytes=4096, found=found.append, progress=lambda _: None)
    assert any("the log has 200 bytes" in defect.what for defect in found) == told


async def test_a_damaged_block_is_told_with_its_ledger() -> None:
    host = await lived()
    path = files_of(host, ".log")[0]
    host.disk.flip(path, 150, 1)
    _, findings = check(host)
    assert any(f.ledger_id is not None and "is damaged" in f.what and f.offset == 64 for f in findings)


@pytest.mark.thorough
async def test_flips_in_a_journal_are_told_or_torn() -> None:
    host = await lived()
    rng = random.Random(2)
    for path in files_of(host, ".txn"):
        data = host.disk.contents(path)
        used = [offset for offset, byte in enumerate(data) if byte]  # all but what pages are filled up with
        reported = 0
        for _ in range(20):
            torn = copy_of(host)
            torn.disk.flip(path, rng.choice(used), rng.randrange(1, 256))
            _, findings = check(torn)
            reported += any(finding.path.startswith(path.rpartition("/")[0]) for finding in findings)
        assert reported >= 5, path


async def test_missing_files_are_told() -> None:
    host = await lived()
    # The oldest file of a journal is one that nothing relies on any more.
    oldest = {path.rpartition("/")[0]: path for path in reversed(files_of(host, ".txn"))}.values()
    for path in (*files_of(host, ".txn"), *files_of(host, ".log"), *files_of(host, "cookie.json")):
        if path in oldest:
            continue
        torn = copy_of(host)
        torn.disk.unlink(path)
        _, findings = check(torn)
        directory = path.rpartition("/")[0]
        assert any(f.path.startswith(directory) for f in findings), path
    torn = copy_of(host)
    torn.disk.replace(f"{host.settings.ledger_directories[0]}/index/data.mdb", b"page 3 is rotten")
    _, findings = check(torn)
    assert [(f.what, "rebuild-index" in f.remedy) for f in findings] == [
        ("the index is damaged: page 3 is rotten", True)
    ]


@pytest.mark.parametrize("delete", [True, False])
async def test_rows_that_rot_or_vanish_are_told(delete: bool) -> None:
    host = await lived()
    index = f"{host.settings.ledger_directories[0]}/index"
    store = SimStores(host.disk).open(index)
    with store.read() as txn:
        keys = [key for key, _ in txn.scan(b"a", b"z")]
    store.close()
    assert {key[:1] for key in keys} == {b"b", b"g", b"l", b"m"}
    for key in keys:
        torn = copy_of(host)
        store = SimStores(torn.disk).open(index)
        with store.write() as txn:
            value = bytearray(txn.get(key) or b"")
            value[2] ^= 8
            if delete:
                txn.delete(key)
            else:
                txn.put(key, bytes(value))
        store.close()
        _, findings = check(torn)
        if not (delete and key[:1] == b"g"):  # of a log without a row, as after an unclean stop
            assert any(index in finding.path for finding in findings), key
    assert block_key(2, 100) in keys
    assert ledger_key(2) in keys


async def test_another_index_is_told() -> None:
    host = await lived()
    first, second = host.settings.ledger_directories
    host.disk.directories[f"{first}/index"] = host.disk.directories[f"{second}/index"]
    _, findings = check(host)
    assert any("not the one that the cookie names" in finding.what for finding in findings)
    host.disk.replace(f"{second}/cookie.json", b"{}")
    _, findings = check(host)
    assert any(finding.path == second and "cookie" in finding.what for finding in findings)


async def test_batches_that_stayed_in_a_journal_file_are_checked() -> None:
    host = Host()
    storage = await host.boot()
    for i in range(3):
        await storage.states((1,))
        await add(storage, Batch(1, i, payload=b"x" * 100_000))
    await storage.close()
    assert check(host)[1] == []
    (path,) = (name for name in files_of(host, ".txn") if "ledgers" in name)
    for journal in host.journal_files():
        host.disk.unlink(journal)
    host.disk.flip(path, 150_000)
    assert [defect.path for defect in check(host)[1] if defect.path == path] == [path]


async def test_cookies_that_disagree_are_told() -> None:
    host = await lived()
    *_, last = host.settings.ledger_directories
    cookie = read_cookie(host.disk, last)
    assert cookie is not None
    host.disk.replace(f"{last}/cookie.json", cookie._replace(instance_id="another").encode())
    _, findings = check(host)
    assert [f.path for f in findings if "is another than that of" in f.what] == [last]


@pytest.mark.parametrize("at", [0, PAGE_BYTES])
async def test_a_journal_that_cannot_be_read_is_told_and_hides_no_other_finding(at: int) -> None:
    host = await lived()
    path = host.journal_files()[0]
    host.disk.unreadable.append((path, range(at, at + 1)))
    checked, findings = check(host)
    assert [f.path for f in findings if "Input/output error" in f.what] == [path]
    assert not [f for f in findings if "relies on" in f.what and f.path.startswith(path.rpartition("/")[0])]
    assert checked.logs == len(files_of(host, ".log"))


async def test_a_log_of_which_a_part_cannot_be_read_is_told() -> None:
    host = await lived()
    path = files_of(host, ".log")[0]
    for at, what in ((0, "the log's header can't be read"), (100, "no sound block"), (-1, "the footer is damaged")):
        end = len(host.disk.contents(path)) if at < 0 else 0
        host.disk.unreadable[:] = [(path, range(end + at, end + at + 1))]
        _, findings = check(host)
        assert any(f.path == path and what in f.what for f in findings), what


def changed_footer(data: bytes) -> bytes:
    """Of a log: its footer with other offsets."""
    offset, blocks, _ = struct.unpack_from("<QII", data, len(data) - TRAILER_BYTES)
    table = bytearray(data[offset : offset + blocks * FOOTER_BLOCK_BYTES])
    table[FOOTER_BLOCK_BYTES - 1] ^= 1  # of the first block's checksum
    return data[:offset] + encode_footer(bytes(table), offset)


async def test_a_footer_that_names_other_blocks_is_told_once_for_each() -> None:
    host = await lived()
    path = files_of(host, ".log")[0]
    host.disk.replace(path, changed_footer(host.disk.contents(path)))
    _, findings = check(host)
    assert [(f.path, f.offset) for f in findings if f.what == "the footer names another block here"] == [(path, 64)]


async def test_a_log_that_has_lost_its_footer_is_told() -> None:
    host = await lived()
    path = files_of(host, ".log")[0]
    data = host.disk.contents(path)
    host.disk.replace(path, data[: struct.unpack_from("<QII", data, len(data) - TRAILER_BYTES)[0]])
    _, findings = check(host)
    assert [f.path for f in findings if "the log has no footer, and the index says" in f.what] == [path]


async def test_records_that_came_as_no_sound_entries_are_told_with_their_block() -> None:
    host = Host(settings=settings(block_bytes=1))
    storage = await host.boot()
    body = records(1, range(3))
    wrong = body[:-1] + bytes((body[-1] ^ 1,))  # the last payload
    await add(storage, Batch(1, 0, 3), bodies=[wrong])
    await add(storage, Batch(2, 0, 3), bodies=[b"x" * len(records(2, range(3)))])
    await add(storage, Batch(3, 0, 3, 5000), bodies=[b"x"])  # so far apart that a block has only the ids
    await storage.close()
    _, findings = check(host)
    told = [f for f in findings if "records that are no sound entries" in f.what]
    assert [f.ledger_id for f in told] == [1, 2]
    assert "the checksum of entry 2 is wrong" in told[0].what


async def test_rows_of_a_deleted_ledger_that_are_still_there_are_no_strays() -> None:
    host = Host(settings=settings(block_bytes=1))
    storage = await host.boot()
    await add(storage, *(Batch(i, 0) for i in (1, 2)))
    await storage.close()
    storage = await host.boot()
    hidden = await hide(storage, 1)
    assert hidden is not None
    assert await hidden.delete()
    (shard,) = storage.shards
    async with shard.checkpointing:
        await shard.write_tombstones()
    with shard.store.read() as txn:
        assert trash_rows(txn) == [1]
    storage.release()
    host.disk.crash()
    assert check(host)[1] == []


async def test_a_damaged_row_of_deleted_ledgers_is_told() -> None:
    host = Host()
    storage = await host.boot()
    await add(storage, *(Batch(i, 0) for i in (1, 2)))
    hidden = await hide(storage, 1)
    assert hidden is not None
    assert await hidden.delete()
    await storage.close()
    assert check(host)[1] == []
    values = host.disk.inode("/b/ledgers0/index/data.mdb").rows.values
    values[tombstone_key(1)] = bytes(12)
    (finding,) = check(host)[1]
    assert (finding.path, finding.ledger_id) == ("/b/ledgers0/index", None)
    assert "from ledger 1 on" in finding.what


async def test_a_log_that_goes_while_a_bookie_runs_is_no_damage() -> None:
    host = await lived()
    for path in files_of(host, ".log"):
        host.disk.unlink(path)
    assert [f for f in check(host)[1] if "gone" in f.what or "No such file" in f.what]
    assert not [f for f in check(host, running=True)[1] if "gone" in f.what or "No such file" in f.what]
