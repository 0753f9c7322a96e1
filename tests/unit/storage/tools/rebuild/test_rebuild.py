"""A new index from entry logs and journals: everything acknowledged is found or unknown, never denied."""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from tests.examples import stride
from tests.sim.disk import EntryStatus, SimDisk, SimulatedCrash
from tests.sim.store import SimStores
from tests.unit.storage.acknowledged_writes import (
    IDS,
    AcknowledgedWrites,
    copy_of,
    dropped,
    new_host,
    script,
    whole_life,
)
from tests.unit.storage.entry_log.test_entry_log import Carrying, block
from tests.unit.storage.support import (
    INSTANCE,
    KEY,
    Batch,
    Host,
    Reports,
    add,
    read_all,
    reclaim,
    settings,
    sim_runtime,
)

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, IdentityError, StorageFailedError
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.wire.messages import Status
from bkpy.protocol.wire.records import RecordCodec
from bkpy.storage.entry_log.entry_log import LOG_HEADER_BYTES, BlockReader, BlockWriter
from bkpy.storage.index.index import (
    block_rows,
    decode_block_row,
    initialise,
    ledger_key,
    ledger_of_block,
    load_shard,
    put_shard,
)
from bkpy.storage.journal.format import PAGE_BYTES, RunState, decode_file_header, encode_file_header
from bkpy.storage.journal.reader import JournalReader
from bkpy.storage.losses import Losses
from bkpy.storage.reads.blocks import read_blocks
from bkpy.storage.space.deletion import hide
from bkpy.storage.tools.rebuild.builder import IndexBuilder
from bkpy.storage.tools.rebuild.rebuild import Catalog, Rebuilt, rebuild_index
from bkpy.storage.wipe import Owner, wipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BOOKIE = "bookie-1"
OWNER = Owner(BOOKIE, INSTANCE)
NEWEST = 100  # the highest id that the cluster has given out


def metadata_of(ledger_id: int, last_entry: int | None, *, ensemble: int = 1, key: bytes = KEY) -> LedgerMetadata:
    """Of a ledger that ends with `last_entry`, None for one that is open; this bookie is the first of its ensemble."""
    closed = last_entry is not None
    return LedgerMetadata(
        ledger_id=ledger_id,
        state=LedgerState.CLOSED if closed else LedgerState.OPEN,
        ensemble_size=ensemble,
        write_quorum=1,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=key,
        fragments=(Fragment(0, (BOOKIE, *(f"other-{i}" for i in range(ensemble - 1)))),),
        last_entry=-1 if last_entry is None else last_entry,
    )


@dataclass
class Metadata:
    """What the metadata store has, and was told."""

    ledgers: dict[int, LedgerMetadata] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)

    async def lookup(self, ledger_id: int) -> LedgerMetadata | None:
        self.asked.append(ledger_id)
        return self.ledgers.get(ledger_id)

    async def ids(self) -> AsyncIterator[int]:
        for ledger_id in sorted({*self.ledgers, *self.unreadable}):
            yield ledger_id


ALL_OPEN = {ledger_id: metadata_of(ledger_id, None) for ledger_id in (1, 2, 3, 9)}


async def rebuild(
    host: Host, metadata: Metadata | None = None, directories: tuple[str, ...] = (), reports: Reports | None = None
) -> Rebuilt:
    catalog = None if metadata is None else Catalog(metadata.lookup, metadata.ids, NEWEST)

    async def register(cookie: bytes) -> None:
        host.cookie = cookie

    host.boots += 1
    return await rebuild_index(
        host.settings,
        sim_runtime(host.disk, host.clock, f"rebuild-{host.boots}"),
        instance_id=INSTANCE,
        expected_cookie=host.cookie,
        catalog=catalog,
        register=register,
        observer=reports or Reports(),
        directories=directories,
    )


async def check(host: Host, writes: AcknowledgedWrites, *, whole: bool = True) -> None:
    """After a rebuild: what was acknowledged is there (`whole`) or unknown, and everything found is fenced."""
    storage = await host.boot()
    for ledger_id, sent in writes.sent.items():
        have, unknown = await read_all(storage, ledger_id, 0, IDS)
        acknowledged = writes.acknowledged.get(ledger_id, {})
        assert have.items() <= sent.items(), "a payload is wrong"
        assert acknowledged.keys() <= have.keys() | unknown, "an acknowledged entry is denied"
        assert not whole or acknowledged.keys() <= have.keys()
        assert not acknowledged or storage.untrusted or ledger_id in storage.fenced
    storage.check_invariants()
    storage.release()


@pytest.mark.parametrize("retained", [True, False])
@pytest.mark.parametrize("damaged", ["", "flipped", "unreadable", "no header"])
async def test_batches_that_stayed_in_journal_files_are_found(retained: bool, damaged: str) -> None:
    values = {"journal_run_bytes_min": 1, "journal_run_share_min": 0.0, "journal_max_backups": 0}
    host, writes = Host(settings=settings(**values)), AcknowledgedWrites()
    storage = await host.boot()
    for i in range(9):
        await writes.add(storage, Batch(1, 2 * i, 2, payload=b"%d" % i * 100_000))
        await writes.add(storage, Batch(2, 3 * i, 2, 2, payload=b"two"), Batch(3, i, payload=b"three"))
        if i % 4 == 1:
            await storage.checkpoint()
    await writes.add(storage, Batch(1, 5, 4, payload=b"recovered"))  # in part what is there
    await storage.close()
    directory = host.settings.ledger_directories[0]
    kept = [f"{directory}/{name}" for name in host.disk.listdir(directory) if name.endswith(".txn")]
    assert len(kept) >= 2
    if not retained:
        for path in host.journal_files()[:-1]:  # the last tells of the last run
            host.disk.unlink(path)
    if damaged == "flipped":
        host.disk.flip(kept[0], 300_000)
    elif damaged:
        bad = {"unreadable": range(300_000, 300_001), "no header": range(1)}[damaged]
        host.disk.unreadable.append((kept[0], bad))
    damage_indexes(host)
    done = await rebuild(host, Metadata(dict(ALL_OPEN)))
    assert bool(done.damages) == bool(damaged)
    assert done.trusted is not bool(damaged)
    await check(host, writes, whole=not damaged)
    storage = await host.boot()
    await writes.add(storage, Batch(4, 0, payload=b"new"))
    await storage.close()
    await check(host, writes, whole=not damaged)


def damage_indexes(host: Host) -> None:
    for directory in host.settings.ledger_directories:
        host.disk.replace(f"{directory}/index/data.mdb", b"page 7 is rotten")


@pytest.mark.parametrize("clean", [True, False])
async def test_everything_is_found_again_and_fenced(clean: bool) -> None:
    host, writes = new_host(), AcknowledgedWrites()
    if clean:
        await whole_life(host, writes)
    else:
        await script(await host.boot(), writes)
        host.disk.crash()
    damage_indexes(host)
    with pytest.raises(CorruptDataError, match=r"page 7 is rotten.*rebuild-index"):
        await host.boot()
    done = await rebuild(host, Metadata(dict(ALL_OPEN)))
    assert (done.trusted, done.keyless, done.unknown, done.damages) == (True, 0, 0, [])
    assert done.ledgers == done.limbo == 4
    assert done.kept == [f"{directory}/index.old" for directory in host.settings.ledger_directories]
    storage = await host.boot()
    assert not storage.untrusted
    for ledger_id in (1, 2, 3):
        state = (await storage.states((ledger_id,)))[ledger_id]
        assert state is not None
        assert (state.key, state.fenced, state.limbo) == (KEY, True, True)
        have, unknown = await read_all(storage, ledger_id, 0, IDS)
        assert have.items() >= writes.acknowledged[ledger_id].items()
        assert unknown == set(range(IDS + 1)) - have.keys()
    storage.release()
    await check(host, writes)


async def test_what_is_not_known_is_fenced_up_to_the_newest_id() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    await rebuild(host, Metadata(dict(ALL_OPEN)))
    for start in range(2):  # that lasts
        storage = await host.boot()
        states = await storage.states((50 + start, NEWEST - start, NEWEST + 1 + start))
        assert set(states.values()) == {None}
        for ledger_id, fenced in ((50 + start, True), (NEWEST - start, True), (NEWEST + 1 + start, False)):
            assert (await storage.read(ledger_id, 0, 9, 1000)).unknown == []  # it was never here
            info = storage.create(ledger_id, KEY)
            assert (info.fenced, info.limbo, ledger_id in storage.fenced) == (fenced, False, fenced)
            await storage.force(ledger_id)
        if start:
            await storage.close()
        else:
            host.disk.crash()
    storage = await host.boot()
    assert storage.fenced.isdisjoint((NEWEST + 1, NEWEST + 2))
    assert (await storage.states((NEWEST,)))[NEWEST].fenced  # type: ignore[union-attr]
    # A recovery stores in fenced ledgers, of both kinds.
    await add(storage, Batch(1, 20, payload=b"recovered"))
    assert (await read_all(storage, 1, 20, 20))[0] == {20: b"recovered"}
    storage.release()


@pytest.mark.parametrize("gone", [False, True])
async def test_a_closed_ledger_that_is_all_here_is_in_no_limbo(gone: bool) -> None:
    """Unless something may have been lost, as where the whole index was: then only the ledger's lock may end limbo."""
    host = new_host()
    storage = await host.boot()
    for batch in (
        Batch(1, 0, 10),
        Batch(2, 0, 10, 2),
        Batch(3, 0, 5),
        Batch(3, 6, 4),
        Batch(4, 0, 10),
        Batch(5, 0, 10),
    ):
        await storage.states((batch.ledger_id,))
        await add(storage, batch)
    await storage.checkpoint()
    await storage.states((1, 6))
    await add(storage, Batch(1, 10, 5), Batch(6, 0))  # is in the journal only
    host.disk.crash()
    metadata = Metadata({
        1: metadata_of(1, 14),
        2: metadata_of(2, 19, ensemble=2),
        3: metadata_of(3, 9),  # 5 is missing
        4: metadata_of(4, None),
    })  # fmt: skip
    if gone:
        for path in host.settings.ledger_directories:
            SimStores(host.disk).remove(f"{path}/index")
    done = await rebuild(host, metadata)
    assert done.trusted is not gone
    assert sorted(metadata.asked) == [1, 2, 3, 4, 5, 6]
    assert (done.ledgers, done.limbo, done.unknown, done.keyless) == (6, 6 if gone else 4, 2, 0)
    storage = await host.boot()
    states = await storage.states((1, 2, 3, 4, 5, 6))
    assert {i: state.limbo for i, state in states.items() if state} == {
        1: gone, 2: gone, 3: True, 4: True, 5: True, 6: True
    }  # fmt: skip
    assert all(state and state.fenced for state in states.values())
    assert await read_all(storage, 1, 0, 20) == (dict.fromkeys(range(15), b"data"), {*range(15, 21)} if gone else set())
    assert await read_all(storage, 3, 0, 9) == (dict.fromkeys({*range(10)} - {5}, b"data"), {5})
    storage.release()


async def test_without_metadata_everything_is_in_limbo() -> None:
    host, writes = new_host(journal_max_backups=0, journal_recycled_files_max=0), AcknowledgedWrites()
    await whole_life(host, writes)
    await (await host.boot()).close()  # lets the journals' first files go, which have the keys
    done = await rebuild(host)
    assert not done.trusted
    assert (done.ledgers, done.limbo, done.keyless, done.unknown) == (3, 3, 3, 0)
    storage = await host.boot()
    assert storage.untrusted
    assert (await storage.last_entry(77)).limbo
    assert {state.key for state in (await storage.states((1, 2, 3))).values() if state} == {b""}
    storage.release()
    await check(host, writes)
    # Once there are metadata again, another rebuild gives the ledgers their keys.
    done = await rebuild(host, Metadata(dict(ALL_OPEN)))
    assert (done.trusted, done.keyless) == (True, 0)
    await check(host, writes)


async def test_one_directory_of_two() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    first, second = host.settings.ledger_directories
    host.disk.replace(f"{first}/index/data.mdb", b"rotten")
    with pytest.raises(CorruptDataError, match="rotten"):
        await rebuild(host, Metadata(dict(ALL_OPEN)), (second,))
    await rebuild(host, Metadata(dict(ALL_OPEN)), (first,))
    storage = await host.boot()
    states = await storage.states((1, 2, 3))
    assert {i: (state.fenced, state.limbo) for i, state in states.items() if state} == {
        1: (False, False), 2: (True, True), 3: (False, False)
    }  # fmt: skip
    storage.release()
    await check_acknowledged(host, writes)
    with pytest.raises(ConfigError, match="not one of"):
        await rebuild(host, Metadata(), ("/elsewhere",))


async def check_acknowledged(host: Host, writes: AcknowledgedWrites) -> None:
    storage = await host.boot()
    for ledger_id, sent in writes.acknowledged.items():
        assert (await read_all(storage, ledger_id, 0, IDS))[0].items() >= sent.items()
    storage.release()


@pytest.mark.thorough
async def test_a_crash_at_every_operation() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    await script(await host.boot(), writes)
    host.disk.crash()
    damage_indexes(host)
    whole = copy_of(host)
    before = whole.disk.operations
    await rebuild(whole, Metadata(dict(ALL_OPEN)))
    count = whole.disk.operations - before
    assert count > 20
    for nth in range(1, count + 1, stride()):
        torn = copy_of(host)
        torn.disk.crash_at(nth)
        with pytest.raises(SimulatedCrash):
            await rebuild(torn, Metadata(dict(ALL_OPEN)))
        torn.disk.power_cut()
        old = [f"{d}/{name}/data.mdb" for d in torn.settings.ledger_directories for name in ("index", "index.old")]
        rotten = [path for path in old if torn.disk.exists(path) and torn.disk.contents(path)]
        assert len(rotten) == 2, "an old index is gone"
        try:
            (await torn.boot()).release()
        except (CorruptDataError, IdentityError) as e:
            assert "rebuild-index" in str(e)  # noqa: PT017
            await rebuild(torn, Metadata(dict(ALL_OPEN)))
        await check(torn, writes)


@pytest.mark.thorough
async def test_an_error_at_every_operation() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    whole = copy_of(host)
    before = whole.disk.operations
    await rebuild(whole, Metadata(dict(ALL_OPEN)))
    for nth in range(1, whole.disk.operations - before + 1, 3):
        torn = copy_of(host)
        torn.disk.fail_at(nth, errno.EIO)
        try:
            await rebuild(torn, Metadata(dict(ALL_OPEN)))
        except (OSError, BookKeeperError):
            torn.disk.heal()
            await rebuild(torn, Metadata(dict(ALL_OPEN)))
        await check(torn, writes)


class DamagedLogs:
    """Entry logs that are the only copies of what is in them, and what comes of a flipped byte."""

    def __init__(self, host: Host, writes: AcknowledgedWrites) -> None:
        self._host = host
        self._writes = writes
        self._closed = Metadata({1: metadata_of(1, 8), 2: metadata_of(2, 4), 3: metadata_of(3, 11)})

    @classmethod
    async def written(cls, *, clean: bool) -> DamagedLogs:
        host, writes = new_host(journal_max_backups=0, journal_recycled_files_max=0), AcknowledgedWrites()
        storage = await host.boot()
        await script(storage, writes)
        await storage.checkpoint()
        if clean:
            await storage.close()
        else:
            host.disk.crash()
        return cls(host, writes)

    def places(self) -> list[tuple[str, int]]:
        """(path, offset) of each byte of each log."""
        disk = self._host.disk
        logs = [
            f"{directory}/{name}"
            for directory in self._host.settings.ledger_directories
            for name in disk.listdir(directory)
            if name.endswith(".log")
        ]
        return [(path, offset) for path in logs for offset in range(len(disk.contents(path)))]

    async def check(self, path: str, offset: int, mask: int) -> None:
        """After a rebuild nothing may be denied that only the logs have."""
        torn = copy_of(self._host)
        torn.disk.flip(path, offset, mask)
        await rebuild(torn, self._closed)
        await check(torn, self._writes, whole=False)

    def hides_blocks(self, path: str, offset: int, mask: int) -> bool:
        """Whether blocks can't be found because of it, so that nobody knows whose entries are in them."""
        return self.learned(path, offset, mask)[2]

    def learned(self, path: str, offset: int, mask: int) -> tuple[object, object, bool, object, object]:
        """All that a rebuild and the reads after it learn of the log in which this byte is flipped."""
        self._host.disk.flip(path, offset, mask)
        try:
            return self._learned(path)
        finally:
            self._host.disk.flip(path, offset, mask)

    def _learned(self, path: str) -> tuple[object, object, bool, object, object]:
        files, settings, directory = self._host.disk, self._host.settings, path.rpartition("/")[0]
        store = SimStores(SimDisk()).open("/index", create=True)
        builder = IndexBuilder(files, directory, store, initialise(store, bytes(16), 2), settings)
        while builder.step():
            pass
        reader = BlockReader(files, directory)
        with store.read() as txn:
            rows = tuple(txn.scan(b"\0", b"\xff"))
            reads = tuple(
                str(found)
                if isinstance(found, Exception)
                else (*found.ids.from_rank(0), *found.runs, bytes(found.data))
                for key, value in block_rows(txn)
                for found in read_blocks(
                    reader, ledger_of_block(key), [decode_block_row(key, value)], settings.block_run_bytes
                ).values()
            )
        reader.close()
        return builder.row, tuple(builder.damages), builder.lost, rows, reads


@pytest.mark.thorough
@pytest.mark.parametrize("clean", [True, False])
async def test_damaged_logs_lead_to_unknown_entries(clean: bool) -> None:
    logs, rng = await DamagedLogs.written(clean=clean), random.Random(1)
    some = [(*place, rng.randrange(1, 256)) for place in rng.sample(logs.places(), 400)]
    hiding = [one for one in some if logs.hides_blocks(*one)]
    assert clean or len(hiding) > 20  # what a clean stop leaves has a footer, which names all blocks
    for path, offset, mask in (*hiding[: 20 // stride()], *some[: 40 // stride()]):
        await logs.check(path, offset, mask)


@pytest.mark.exhaustive
@pytest.mark.parametrize("clean", [True, False])
async def test_every_flipped_byte_of_a_log_leads_to_unknown_entries(clean: bool) -> None:
    """Two of which a rebuild learns the same lead to the same index and the same reads: one of them is tried."""
    logs, rng = await DamagedLogs.written(clean=clean), random.Random(2)
    tried: set[object] = set()
    for path, offset in logs.places():
        mask = rng.randrange(1, 256)
        learned = logs.learned(path, offset, mask)
        if learned not in tried:
            tried.add(learned)
            await logs.check(path, offset, mask)
    assert len(tried) > 10


async def test_what_is_not_this_bookies_is_left_alone() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    with pytest.raises(IdentityError, match="no such directory"):
        await rebuild(host, Metadata())
    for directory in (*host.settings.journal_directories, *host.settings.ledger_directories):
        host.disk.make_dirs(directory)
    with pytest.raises(IdentityError, match="no bookie"):
        await rebuild(host, Metadata())
    storage = await whole_life(host, writes)
    storage = await host.boot()
    with pytest.raises(IdentityError, match="another process"):
        await rebuild(host, Metadata())
    storage.release()
    host.cookie = None
    with pytest.raises(IdentityError, match="the cluster doesn't know this bookie id"):
        await rebuild(host, Metadata())


@pytest.mark.thorough
async def test_what_a_run_without_syncs_may_have_lost_is_not_denied() -> None:
    """Neither by a new index of one that can be read and says so, nor where only the settings do."""
    kinds = set()
    for seed in range(24):
        host = Host(settings=settings(journal_sync_data=False))
        host.disk.rng.seed(seed)
        storage = await host.boot()
        await storage.states((1,))
        await add(storage, Batch(1, 0, 10))
        await storage.checkpoint()
        await storage.states((2,))
        await add(storage, Batch(2, 0, 10))
        host.disk.power_cut()
        if seed % 2:
            damage_indexes(host)
        else:
            host.settings = settings()  # what counts is how it ran
        metadata = Metadata({1: metadata_of(1, 9), 2: metadata_of(2, None)})
        for nth in range(1 + seed % 3):  # the second sees only what the first has made
            assert not (await rebuild(host, metadata)).trusted, nth
        storage = await host.boot()
        have, unknown = await read_all(storage, 2, 0, 9)
        assert have.keys() | unknown == set(range(10))
        assert storage.untrusted
        assert (await read_all(storage, 1, 0, 9))[0] == dict.fromkeys(range(10), b"data")
        kinds.add(bool(have))
    assert kinds == {True, False}


async def test_limbo_for_what_was_lost_outlives_an_index() -> None:
    """A rebuild finds nothing damaged any more, since the damaged journal is long gone."""
    host = Host(settings=settings(journal_damage="limbo", journal_max_backups=0, journal_recycled_files_max=0))
    storage = await host.boot()
    await storage.states((1, 2))
    await add(storage, Batch(1, 0, 10))
    await storage.checkpoint()
    await add(storage, Batch(2, 0, 10, payload=b"x" * 9000))
    await add(storage, Batch(1, 10, 1))
    host.disk.crash()
    for path in host.journal_files():
        host.disk.flip(path, host.disk.contents(path).find(b"x" * 9000) + 4500)
    storage = await host.boot()
    assert storage.untrusted
    await storage.close()
    host.settings = settings()
    metadata = Metadata({1: metadata_of(1, 10), 2: metadata_of(2, None)})
    for attempt in (None, metadata, metadata):  # without metadata, too
        assert not (await rebuild(host, attempt)).trusted
        storage = await host.boot()
        assert storage.untrusted
        assert await read_all(storage, 2, 0, 9) == ({}, set(range(10)))
        await storage.close()


@pytest.mark.parametrize("blocks", [1, 2, 3])
async def test_a_copy_that_compaction_made_takes_nothing_over_from_a_later_one_that_is_sound(blocks: int) -> None:
    """Blocks are copied whole, with the record that was replaced, to a log behind that which replaced it.

    However many blocks of the ledger come before in that log.
    """
    host = Host(settings=settings(journal_max_backups=0, journal_recycled_files_max=0))
    storage = await host.boot()
    await storage.states((1, 2))
    first = 10 * (blocks - 1)  # of the last block
    body = bytearray(Batch(1, first, 10).body())
    body[len(body) // 2 + 33] ^= 255  # in its sixth entry, on its way here
    await add(storage, Batch(2, 0, 100))
    for earlier in range(0, first, 10):
        await add(storage, Batch(1, earlier, 10))
        await storage.checkpoint()
    await add(storage, Batch(1, first, 10), bodies=[bytes(body)])
    await storage.close()
    storage = await host.boot()
    await storage.states((1,))
    await add(storage, Batch(1, first + 5))  # by a recovery
    await storage.checkpoint()
    hidden = await hide(storage, 2)
    assert hidden is not None
    assert await hidden.delete()
    await reclaim(storage, 0.9)
    assert host.reports.copied
    last = first + 9
    wanted = dict.fromkeys(range(last + 1), b"data")
    assert await read_all(storage, 1, 0, last) == (wanted, set())
    await storage.close()
    await (await host.boot()).close()
    damage_indexes(host)
    assert (await rebuild(host, Metadata({1: metadata_of(1, last)}))).damages == []
    storage = await host.boot()
    assert await read_all(storage, 1, 0, last) == (wanted, set())
    storage.release()


@pytest.mark.parametrize("kept", [False, True])
async def test_a_block_with_a_damaged_record_takes_over_the_others_that_are_sound(kept: bool) -> None:
    """Each entry for itself, as when they came: a damaged record says nothing of those beside it."""
    run_bytes_min = 1 if kept else 1 << 30
    without = settings(journal_max_backups=0, journal_recycled_files_max=0, journal_run_bytes_min=run_bytes_min)
    host = Host(settings=without)
    storage = await host.boot()
    await storage.states((1,))
    record = len(Batch(1, 0).body())
    for first, count, damaged in ((0, 3, 2), (2, 10, 8), (5, 1, 5), (14, 1, 14), (10, 9, 17), (12, 5, 16)):
        body = bytearray(Batch(1, first, count).body())
        body[(damaged - first) * record + 33] ^= 255
        await add(storage, Batch(1, first, count), bodies=[bytes(body)])
        await storage.checkpoint()
    found = await read_all(storage, 1, 0, 18)
    assert {entry_id for entry_id, payload in found[0].items() if payload != b"data"} == {8, 17}
    await storage.close()
    await (await host.boot()).close()  # which leaves nothing in the journal
    damage_indexes(host)
    await rebuild(host, Metadata({1: metadata_of(1, None)}))
    storage = await host.boot()
    assert await read_all(storage, 1, 0, 18) == found
    storage.release()


@pytest.mark.thorough
@pytest.mark.parametrize("clean", [True, False])
async def test_what_an_interrupted_format_took_is_not_denied_by_a_new_index(clean: bool) -> None:
    """A start then says that the index is gone, and names this command."""
    host, writes = new_host(), AcknowledgedWrites()
    if clean:
        await whole_life(host, writes)
    else:
        await script(await host.boot(), writes)
        host.disk.crash()
    directories = (*host.settings.journal_directories, *host.settings.ledger_directories)
    whole = copy_of(host)
    before = whole.disk.operations
    wipe(whole.disk, directories, OWNER)
    for nth in range(1, whole.disk.operations - before + 1):
        torn = copy_of(host)
        torn.disk.crash_at(nth)
        with pytest.raises(SimulatedCrash):
            wipe(torn.disk, directories, OWNER)
        torn.disk.crash()
        torn.disk.heal()
        try:
            for _ in range(2):
                await rebuild(torn, Metadata(dict(ALL_OPEN)))
        except (CorruptDataError, IdentityError):
            continue  # what is missing was noticed
        await check(torn, writes, whole=False)


async def two_logs(**values: object) -> tuple[Host, AcknowledgedWrites]:
    """Ledgers 1 and 3 in a log of their own each, and nothing left in the journals."""
    host, writes = (
        Host(settings=settings(journal_max_backups=0, journal_recycled_files_max=0, **values)),
        AcknowledgedWrites(),
    )
    for ledger_id in (1, 3):
        storage = await host.boot()
        await writes.add(storage, Batch(ledger_id, 0, 5, payload=b"%d" % ledger_id * 100_000))
        await storage.close()
    await (await host.boot()).close()
    return host, writes


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("closed", [False, True])
async def test_what_was_only_in_a_log_that_is_gone_is_not_denied(kept: bool, closed: bool) -> None:
    """Nothing in the files tells of it: ids of logs have gaps wherever space was given back."""
    host, writes = await two_logs(journal_run_bytes_min=1 if kept else 1 << 30)
    directory = host.settings.ledger_directories[0]
    names = [name for name in host.disk.listdir(directory) if name.endswith(".txn" if kept else ".log")]
    host.disk.unlink(f"{directory}/{max(names)}")
    damage_indexes(host)
    last = 4 if closed else None
    ledgers = {ledger_id: metadata_of(ledger_id, last) for ledger_id in (1, 3)}
    ledgers[5] = metadata_of(5, -1)  # closed without entries: there is nothing to be missed
    ledgers[6] = replace(metadata_of(6, None), fragments=(Fragment(0, ("other-1",)),))
    ledgers[NEWEST] = metadata_of(NEWEST, None)  # made while it was drawn, perhaps
    ledgers[NEWEST + 1] = metadata_of(NEWEST + 1, None)  # made after the newest id was drawn: it was never here
    done = await rebuild(host, Metadata(ledgers))
    assert (done.trusted, done.ledgers, done.missing, done.keyless) == (True, 1, 2, 0)
    await check(host, writes, whole=False)
    storage = await host.boot()
    assert (await read_all(storage, 3, 0, 4))[1] == {0, 1, 2, 3, 4}
    state = (await storage.states((3,)))[3]
    assert state is not None
    assert (state.fenced, state.limbo, state.key) == (True, True, KEY)
    assert set((await storage.states((5, 6, NEWEST + 1))).values()) == {None}
    assert (await read_all(storage, NEWEST, 0, 4))[1] == {0, 1, 2, 3, 4}
    assert not storage.untrusted
    storage.release()


@pytest.mark.parametrize("part", ["footer", "head of a block", "data"])
async def test_a_disk_that_cannot_read_a_part_of_a_log_costs_what_is_there_and_no_more(part: str) -> None:
    host, writes = await two_logs(journal_run_bytes_min=1 << 30)
    directory = host.settings.ledger_directories[0]
    path = f"{directory}/{min(name for name in host.disk.listdir(directory) if name.endswith('.log'))}"
    size = len(host.disk.contents(path))
    at = {"footer": size - 1, "head of a block": LOG_HEADER_BYTES, "data": size // 2}[part]
    host.disk.unreadable.append((path, range(at, at + 1)))
    damage_indexes(host)
    done = await rebuild(host, Metadata({i: metadata_of(i, 4) for i in (1, 3)}))
    assert bool(done.damages) == (part == "footer"), "the footer, if there is one, lists the blocks, whatever they hold"
    await check(host, writes, whole=part == "footer")
    storage = await host.boot()
    assert len((await read_all(storage, 3, 0, 4))[0]) == 5
    storage.release()


@pytest.mark.parametrize(
    "bad", [range(LOG_HEADER_BYTES, LOG_HEADER_BYTES + 1), range(LOG_HEADER_BYTES + 60, LOG_HEADER_BYTES + 61), None]
)
async def test_a_block_with_gaps_between_its_ids_has_to_tell_them(bad: range | None) -> None:
    host = Host(settings=settings(journal_max_backups=0, journal_recycled_files_max=0, journal_run_bytes_min=1 << 30))
    storage = await host.boot()
    await storage.states((1, 2))
    await add(storage, Batch(1, 0, 5, 2), Batch(2, 0, 5))
    await storage.close()
    for ledger_id in (50, 51):  # until the journal has none of it
        storage = await host.boot()
        await storage.states((ledger_id,))
        await add(storage, Batch(ledger_id, 0))
        await storage.close()
    directory = host.settings.ledger_directories[0]
    path = f"{directory}/{min(name for name in host.disk.listdir(directory) if name.endswith('.log'))}"
    if bad is not None:
        host.disk.unreadable.append((path, bad))
    damage_indexes(host)
    lengths = {1: None, 2: 4, 50: 0, 51: 0}
    done = await rebuild(host, Metadata({i: metadata_of(i, last) for i, last in lengths.items()}))
    host.disk.unreadable.clear()
    assert any("doesn't tell its entries" in what for _, what in done.damages) == (bad is not None)
    assert done.trusted == (bad is None)
    storage = await host.boot()
    have, unknown = await read_all(storage, 1, 0, 9)
    assert have.keys() | unknown == set(range(10))
    assert (have.keys() == {0, 2, 4, 6, 8}) == (bad is None)
    assert len((await read_all(storage, 2, 0, 4))[0]) == 5
    storage.release()


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 1, 0)])
async def test_blocks_of_a_log_are_found_in_whatever_order_they_came(order: tuple[int, ...]) -> None:
    host = Host(settings=settings(block_bytes=1, journal_max_backups=0, journal_run_bytes_min=1 << 30))
    storage = await host.boot()
    for turn, entry_id in enumerate(order):
        await storage.states((1,))
        await add(storage, Batch(1, entry_id, payload=b"%d" % turn))
        await storage.checkpoint()
    await storage.close()
    damage_indexes(host)
    await rebuild(host, Metadata({1: metadata_of(1, 2)}))
    storage = await host.boot()
    wanted = {entry_id: b"%d" % turn for turn, entry_id in enumerate(order)}
    assert (await read_all(storage, 1, 0, 2))[0] == wanted
    storage.check_invariants()
    storage.release()


@pytest.mark.parametrize("payload", [b"x", b"another"])
def test_what_may_be_an_image_of_a_block_takes_nothing_over(payload: bytes) -> None:
    """Of a log of earlier software, behind a block with a damaged header: it may be a payload's, with other bytes."""
    log = Carrying(finish=False, tagged=False)
    log.disk.flip(log.path, log.places[1][0])
    before = BlockWriter(log.disk, "/d", 0, bytes(16))
    block(before, 100, payload)
    before.finish()
    store = SimStores(log.disk).open("/d/index", create=True)
    builder = IndexBuilder(log.disk, "/d", store, initialise(store, bytes(16), 1), settings())
    while builder.step():
        pass
    assert builder.lost
    with store.read() as txn:
        rows = [decode_block_row(*row) for row in block_rows(txn)]
    assert {row.ids.first: row.place.log_id for row in rows} == {0: 1, 2: 1, 100: 0, 101: 1}


async def test_directories_that_were_added_are_not_rebuilt() -> None:
    host, _ = await two_logs()
    host.settings = settings(ledgers=2)
    host.disk.make_dirs(host.settings.ledger_directories[1])
    with pytest.raises(IdentityError, match="moved or added since the bookie's last start"):
        await rebuild(host, Metadata())


async def test_an_index_that_stays_has_to_be_the_one_of_the_cookie() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    first, second, *_ = host.settings.ledger_directories
    store = SimStores(host.disk).open(f"{second}/index")
    row = load_shard(store)
    assert row is not None
    put_shard(store, row._replace(uuid=b"another index..."))
    store.close()
    with pytest.raises(
        IdentityError, match="not the one that the cookie names; name this directory as well"
    ) as refused:
        await rebuild(host, Metadata(dict(ALL_OPEN)), (first,))
    assert refused.value.path == f"{second}/index"


async def test_a_bookie_that_the_cluster_does_not_know_is_not_rebuilt() -> None:
    host, _ = await two_logs()
    host.cookie = None
    with pytest.raises(IdentityError, match="doesn't know this bookie id"):
        await rebuild(host, Metadata({i: metadata_of(i, 4) for i in (1, 3)}))


async def test_a_closed_ledger_of_two_fragments_is_compared_fragment_by_fragment() -> None:
    host = Host(settings=settings(block_bytes=1))
    storage = await host.boot()
    for ledger_id in (1, 2):
        await storage.states((ledger_id,))
        await add(storage, *(Batch(ledger_id, i) for i in range(8) if (ledger_id, i) != (2, 6)))
    await storage.close()
    damage_indexes(host)
    fragments = (Fragment(0, (BOOKIE,)), Fragment(5, (BOOKIE,)))
    ledgers = {i: replace(metadata_of(i, 7), fragments=fragments) for i in (1, 2)}
    done = await rebuild(host, Metadata(ledgers))
    assert (done.ledgers, done.limbo) == (2, 1)
    storage = await host.boot()
    assert {i: state.limbo for i, state in (await storage.states((1, 2))).items() if state} == {1: False, 2: True}
    storage.release()


async def test_a_damaged_row_of_a_ledger_in_the_old_index_counts_as_one_in_limbo() -> None:
    host, _ = await two_logs()
    directory = host.settings.ledger_directories[0]
    store = SimStores(host.disk).open(f"{directory}/index")
    with store.write() as txn:
        txn.put(ledger_key(3), b"no row")
    store.close()
    elsewhere = (Fragment(0, ("other-1",)),)  # what the bookie has may be the copies of a move that is about to end
    ledgers = {i: replace(metadata_of(i, 4), fragments=elsewhere) for i in (1, 3)}
    done = await rebuild(host, Metadata(ledgers), (directory,))
    assert done.limbo == 1
    storage = await host.boot()
    assert {i: state.limbo for i, state in (await storage.states((1, 3))).items() if state} == {1: False, 3: True}
    storage.release()


async def test_a_ledger_whose_metadata_cannot_be_read_is_not_denied() -> None:
    host, _ = await two_logs()
    damage_indexes(host)
    metadata = Metadata({i: metadata_of(i, 4) for i in (1, 3)}, unreadable={8})
    done = await rebuild(host, metadata)
    assert (done.missing, done.keyless) == (1, 1)
    storage = await host.boot()
    assert (await read_all(storage, 8, 0, 4))[1] == {0, 1, 2, 3, 4}
    storage.release()


async def test_a_ledger_that_is_in_another_directory_is_not_missing() -> None:
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    first = host.settings.ledger_directories[0]
    host.disk.replace(f"{first}/index/data.mdb", b"rotten")
    ledgers = {i: metadata_of(i, None) for i in (1, 2, 3, 9, 11)}
    done = await rebuild(host, Metadata(ledgers), (first,))
    assert done.missing == 1  # nothing was ever stored of 11, but who could tell?
    storage = await host.boot()
    limbo = {i: state.limbo for i, state in (await storage.states(tuple(ledgers))).items() if state}
    assert limbo == {1: False, 2: True, 3: False, 9: False, 11: True}
    storage.release()


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
async def test_batches_that_stayed_are_found_in_whatever_order_they_came(order: tuple[int, ...]) -> None:
    """As recoveries, copies and what is sent again come; they are nowhere else, and compaction must not lose them."""
    host = Host(settings=settings(journal_max_backups=0, journal_recycled_files_max=0))
    large = b"L" * 100_000
    storage = await host.boot()
    for entry_id in order:
        await storage.states((1,))
        await add(storage, Batch(1, entry_id, payload=large))
    await storage.close()
    for ledger_id in (50, 51):  # until the journal has let its own name go
        storage = await host.boot()
        await storage.states((ledger_id,))
        await add(storage, Batch(ledger_id, 0))
        await storage.close()
    damage_indexes(host)
    done = await rebuild(host, Metadata({1: metadata_of(1, 2), 50: metadata_of(50, 0), 51: metadata_of(51, 0)}))
    assert (done.trusted, done.limbo) == (True, 0)
    storage = await host.boot()
    for ratio in (0.8, 0.0):
        assert await read_all(storage, 1, 0, 3) == (dict.fromkeys(range(3), large), set())
        await reclaim(storage, ratio)
    await storage.close()


async def test_of_two_batches_that_stayed_and_overlap_nothing_is_lost() -> None:
    """They are of two lives; the second one has entries that the first one hasn't."""
    host = Host(settings=settings(journal_max_backups=0, journal_recycled_files_max=0, journal_run_bytes_min=1))
    storage = await host.boot()
    await storage.states((5, 6))
    await add(storage, Batch(5, 2, 2), Batch(6, 0))
    await storage.checkpoint()
    hidden = await hide(storage, 5)
    assert hidden is not None
    assert await hidden.delete()
    await storage.states((5,))
    await add(storage, Batch(5, 0, 6))
    await storage.close()
    damage_indexes(host)
    await rebuild(host, Metadata({5: metadata_of(5, 5), 6: metadata_of(6, 0)}))
    storage = await host.boot()
    assert await read_all(storage, 5, 0, 6) == (dict.fromkeys(range(6), b"data"), set())
    storage.check_invariants()
    await storage.close()


async def lossy_journal(host: Host) -> None:
    """A crash, and a damaged frame with a sound one behind it. Nothing has told the index of it yet."""
    storage = await host.boot()
    for ledger_id in (1, 2, 1):
        await storage.states((ledger_id,))
        await add(storage, Batch(ledger_id, 0, 10, payload=b"%d" % ledger_id * 900))
    host.disk.crash()
    (path,) = host.journal_files()
    host.disk.flip(path, host.disk.contents(path).find(b"2" * 900))


async def test_a_rebuild_that_finds_a_journal_damaged_trusts_nothing() -> None:
    host = Host(settings=settings(journal_damage="limbo"))
    await lossy_journal(host)
    elsewhere = replace(metadata_of(2, None), fragments=(Fragment(0, ("another",)),))  # as of a recovery's target
    done = await rebuild(host, Metadata({1: metadata_of(1, 9), 2: elsewhere}))
    assert not done.trusted
    storage = await host.boot()
    assert storage.untrusted
    assert await read_all(storage, 2, 0, 9) == ({}, set(range(10)))
    storage.release()


@pytest.mark.parametrize("lost", ["journal", "disks", "mode"])
@pytest.mark.parametrize("gone", [False, True])
async def test_a_loss_is_not_forgotten_with_an_index_that_can_not_be_read(lost: str, gone: bool) -> None:
    """Which ledgers were concerned is known to nobody any more: a target of a recovery, say, that is not named yet."""
    values = {"journal_max_backups": 0, "journal_recycled_files_max": 0}
    host = Host(settings=settings(journal_damage="limbo", **values))
    if lost == "journal":
        await lossy_journal(host)
    else:
        host.settings = settings(journal_write_data=lost != "mode", **values)
        storage = await host.boot()
        await storage.states((2,))
        await add(storage, Batch(2, 0, 10))
        if lost == "disks":
            await storage.close()
            wipe(host.disk, [*host.settings.journal_directories, *host.settings.ledger_directories], OWNER)
            await (await host.boot(rebuild=True)).close()
        else:
            host.disk.crash()
    host.settings = settings(journal_damage="limbo", **values)
    if lost != "mode":  # of which no start has heard yet
        for _ in range(3):
            await (await host.boot()).close()
        host.settings = settings(**values)
    for path in host.settings.ledger_directories if gone else ():
        SimStores(host.disk).remove(f"{path}/index")
    if not gone:
        damage_indexes(host)
    elsewhere = replace(metadata_of(2, None), fragments=(Fragment(0, ("another",)),))
    for _ in range(2):
        done = await rebuild(host, Metadata({1: metadata_of(1, 9), 2: elsewhere}))
        assert not done.trusted
        storage = await host.boot()
        assert storage.untrusted
        assert await read_all(storage, 2, 0, 9) == ({}, set(range(10)))
        await storage.close()
        damage_indexes(host)


async def test_journals_of_earlier_software_do_not_tell_of_a_loss() -> None:
    """So an index that can't be read beside them may have known of one."""
    host, writes = new_host(), AcknowledgedWrites()
    await whole_life(host, writes)
    for number in range(2):
        for path in host.journal_files(number):
            page = host.disk.contents(path)
            header = decode_file_header(page[:PAGE_BYTES])
            assert header is not None
            assert header.run == RunState.STATED
            host.disk.replace(path, encode_file_header(header._replace(run=RunState(0))) + page[PAGE_BYTES:])
    damage_indexes(host)
    assert not (await rebuild(host, Metadata(dict(ALL_OPEN)))).trusted
    await check(host, writes)


async def test_a_key_that_entries_were_stored_under_is_not_replaced() -> None:
    """They are no entries of the ledger if its key is another one: it stays shut, and in limbo."""
    host = Host()
    storage = await host.boot()
    await storage.states((1, 2))
    await add(storage, Batch(1, 0, 3), Batch(2, 0, 3))
    await storage.fence(3, KEY)
    await storage.close()
    other = b"o" * 32
    await rebuild(
        host, Metadata({i: metadata_of(i, 2 if i < 3 else -1, key=other if i > 1 else KEY) for i in (1, 2, 3)})
    )
    storage = await host.boot()
    states = {i: (state.key, state.limbo) for i, state in (await storage.states((1, 2, 3))).items() if state}
    assert states == {1: (KEY, False), 2: (KEY, True), 3: (other, False)}
    storage.release()


async def test_what_a_new_index_names_survives_a_power_cut() -> None:
    """A log that compaction had written and not synced when its process died is the later copy of what is in it."""
    values = {"journal_max_backups": 0, "journal_recycled_files_max": 0}
    host = Host(settings=settings(block_bytes=1, journal_run_bytes_min=1 << 30, **values))
    storage = await host.boot()
    await storage.states((1, 2))
    await add(storage, Batch(1, 0, 5, payload=b"one" * 1000), Batch(2, 0, 5, payload=b"two" * 1000))
    await storage.close()
    await (await host.boot()).close()  # the journal has them no more
    storage = await host.boot()
    hidden = await hide(storage, 2)
    assert hidden is not None
    assert await hidden.delete()
    before = set(host.disk.listdir("/b/ledgers0"))
    host.disk.crash_at(2, operation="fdatasync", path="ledgers0/")  # the first is of its header
    with pytest.raises(SimulatedCrash):
        await reclaim(storage, 0.9)
    host.disk.crash()
    assert set(host.disk.listdir("/b/ledgers0")) > before
    assert (await rebuild(host, Metadata({1: metadata_of(1, 4)}))).trusted
    host.disk.power_cut(dropped)
    storage = await host.boot()
    assert await read_all(storage, 1, 0, 4) == (dict.fromkeys(range(5), b"one" * 1000), set())
    await storage.close()


async def test_a_key_that_gave_way_does_not_come_back() -> None:
    """Somebody presented a wrong key for a ledger that was new here; then came its writer."""
    host, wrong = Host(), b"w" * 32
    storage = await host.boot()
    await storage.states((1,))
    storage.create(1, wrong)
    assert await storage.replace_key(1, KEY) == Status.OK
    await add(storage, Batch(1, 0, 3))
    await storage.close()
    for metadata in (None, Metadata({1: metadata_of(1, 2)})):
        done = await rebuild(host, metadata)
        assert done.limbo == (metadata is None)
        storage = await host.boot()
        state = (await storage.states((1,)))[1]
        assert state is not None
        assert state.key == KEY
        storage.release()


@pytest.mark.parametrize("memtable", [1, 1 << 20])  # with a checkpoint behind each frame of a replay, and with none
@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("known", [False, True])
async def test_a_fence_with_a_key_that_gave_way_does_not_come_back(known: bool, entries: bool, memtable: int) -> None:
    """A client without the key would end the ledger's writer by it."""
    host, wrong = Host(settings=settings(memtable_bytes_max=memtable)), b"w" * 32
    storage = await host.boot()
    await storage.states((1, 2))
    await storage.fence(1, wrong)
    await storage.fence(2, wrong)
    for ledger_id in (1, 2):
        assert await storage.replace_key(ledger_id, KEY) == Status.OK
    if entries:
        await add(storage, Batch(1, 0, 3), Batch(2, 0, 3))
    await storage.fence(2, KEY)
    await storage.close()
    await rebuild(host, Metadata({i: metadata_of(i, None) for i in (1, 2)}) if known else None)
    storage = await host.boot()
    await storage.states((1, 2))
    assert storage.fenced >= {1, 2}
    assert [storage.ledgers.is_fenced_by_limbo(i) for i in (1, 2)] == [True, False]
    storage.release()


@pytest.mark.parametrize("last", [2, None])
async def test_what_was_confirmed_with_a_key_that_gave_way_does_not_come_back(last: int | None) -> None:
    """A recovery or a reader with the right key would take it for the writer's."""
    host, wrong = Host(), b"w" * 32
    storage = await host.boot()
    await storage.states((1,))
    storage.create(1, wrong)
    await storage.set_explicit_lac(1, RecordCodec(1).explicit_lac(1000, 1))
    assert await storage.replace_key(1, KEY) == Status.OK
    await add(storage, Batch(1, 0, 3))
    await storage.close()
    await rebuild(host, Metadata({1: metadata_of(1, last)}))
    storage = await host.boot()
    found = await storage.last_entry(1)
    assert (found.lac, found.explicit_lac) == (-1, b"")
    storage.release()


async def test_entries_under_a_wrong_key_do_not_get_into_the_ledger() -> None:
    """They were deleted, and its own copied here; then both are found."""
    host, wrong = Host(), b"w" * 32
    storage = await host.boot()
    await storage.states((1,))
    storage.create(1, wrong)
    await add(storage, Batch(1, 0, 5, payload=b"forged"))
    hidden = await hide(storage, 1)
    assert hidden is not None
    assert await hidden.delete()
    await storage.states((1,))
    await add(storage, Batch(1, 0, 3))
    await storage.close()
    await rebuild(host, Metadata({1: metadata_of(1, 4)}))
    storage = await host.boot()
    state = (await storage.states((1,)))[1]
    assert state is not None
    assert (state.key, state.limbo) == (wrong, True)
    storage.release()


@pytest.mark.parametrize("offset", [20, PAGE_BYTES + 10, PAGE_BYTES + 100, 2 * PAGE_BYTES + 10])
async def test_a_bookie_starts_after_a_rebuild_however_little_of_a_journal_could_be_read(offset: int) -> None:
    """What is damaged in it is known to the new index: its header, its only frame, or that of the clean stop."""
    host = Host()
    storage = await host.boot()
    await storage.states((1,))
    await add(storage, Batch(1, 0, 3))
    await storage.close()
    (path,) = host.journal_files()
    host.disk.flip(path, offset)
    SimStores(host.disk).remove(
        "/b/ledgers0/index"
    )  # so that everything is in limbo anyway, and damage refuses nothing
    assert not (await rebuild(host, Metadata({1: metadata_of(1, 2)}))).trusted
    storage = await host.boot()
    assert storage.untrusted
    assert await read_all(storage, 1, 0, 3) == (dict.fromkeys(range(3), b"data"), {3})
    storage.release()


async def test_a_new_index_is_past_journals_of_which_nothing_is_to_be_stored() -> None:
    """The next start doesn't replay what the rebuild has weighed: a deletion, of a ledger that logs still hold."""
    host = Host()
    await (await host.boot()).close()
    SimStores(host.disk).remove("/b/ledgers0/index")
    await rebuild(host, Metadata({}))
    with contextlib.closing(SimStores(host.disk).open("/b/ledgers0/index")) as store:
        row = load_shard(store)
    assert row is not None
    reader = JournalReader(host.disk, "/b/journal0", 0, row.marks[0])
    assert list(reader) == []
    assert reader.end == row.marks[0]
    assert row.marks[0].offset > PAGE_BYTES, "its one frame says that it was stopped in order"


@pytest.mark.parametrize(
    ("ledgers", "log_is_gone", "kept"),
    [
        ({1: 2, 2: 2}, False, True),
        ({1: 2, 2: None}, False, False),  # an open ledger is in limbo
        ({1: 2, 2: 3}, False, False),  # an entry is not here
        ({1: 2, 2: 2, 7: 1}, False, False),  # and nothing of another ledger
        ({1: 2}, False, False),  # of a ledger without metadata nobody can tell
        ({1: 2, 2: 2}, True, False),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
async def test_an_index_keeps_its_uuid_only_if_nothing_is_missing(
    ledgers: dict[int, int | None], log_is_gone: bool, kept: bool, shards: int
) -> None:
    host = Host(settings=settings(ledgers=shards))
    storage = await host.boot()
    await storage.states({1, 2})
    await add(storage, Batch(1, 0, 3), Batch(2, 0, 3))
    await storage.close()
    assert host.cookie is not None
    before = host.cookie
    if log_is_gone:
        directory = host.settings.ledger_directories[0]
        (log,) = (name for name in host.disk.listdir(directory) if name.endswith(".log"))
        host.disk.unlink(f"{directory}/{log}")
        for path in host.journal_files():
            host.disk.unlink(path)
    metadata = Metadata({ledger_id: metadata_of(ledger_id, last) for ledger_id, last in ledgers.items()})
    for _ in range(2):  # once more, of an index that was made anew
        await rebuild(host, metadata)
        assert (host.cookie == before) is kept
        storage = await host.boot()
        have, unknown = await read_all(storage, 1, 0, 2)
        assert have.keys() | unknown == {0, 1, 2}
        assert log_is_gone or not unknown
        await storage.close()


@pytest.mark.parametrize("named", [False, True])
async def test_a_ledger_stays_in_limbo_of_which_something_was_lost_long_ago(named: bool) -> None:
    """The bookie trusts itself again; but what a copier had stored here may be gone, and nothing tells of it."""
    host = Host(settings=settings(journal_write_data=False))
    storage = await host.boot()
    await storage.states((3,))
    await add(storage, Batch(3, 0))
    await storage.fence(3, KEY)
    host.disk.crash()  # with the entry, which was in memory only
    storage = await host.boot()
    losses = Losses(storage, host.settings, sim_runtime(host.disk), lambda: None)
    await losses.trust_unseen(NEWEST)
    await storage.close()
    ledger = metadata_of(3, -1)
    if not named:
        ledger = replace(metadata_of(3, 0), fragments=(Fragment(0, ("another",)),))
    assert (await rebuild(host, Metadata({3: ledger}))).trusted
    storage = await host.boot()
    assert not storage.untrusted
    assert await read_all(storage, 3, 0, 0) == ({}, {0})
    storage.release()


@pytest.mark.parametrize("everything", [False, True])  # of the ledger was in the log that is gone
@pytest.mark.parametrize("asked", [True, False])  # by a rebuild in between, for the metadata
async def test_a_loss_that_an_index_knows_of_is_known_to_the_next_one(everything: bool, asked: bool) -> None:
    """A log is gone, and only metadata that name the bookie tell; by the next rebuild they don't name it any more."""
    host, writes = await two_logs(journal_run_bytes_min=1 << 30)
    if not everything:
        storage = await host.boot()
        await writes.add(storage, Batch(3, 5, 2))
        await storage.close()
    logs = sorted(name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".log"))
    host.disk.unlink(f"/b/ledgers0/{logs[1]}")
    last = 4 if everything else 6
    ledgers = {1: metadata_of(1, 4), 3: metadata_of(3, last)}
    assert (await rebuild(host, Metadata(ledgers))).trusted
    if not asked:
        assert not (await rebuild(host)).trusted
    ledgers[3] = replace(ledgers[3], fragments=(Fragment(0, ("another",)),))
    done = await rebuild(host, Metadata(ledgers))
    assert done.trusted is asked
    storage = await host.boot()
    assert (await read_all(storage, 3, 0, last))[1] == {0, 1, 2, 3, 4}
    assert await read_all(storage, 1, 0, 4) == (dict.fromkeys(range(5), b"1" * 100_000), set())
    await storage.close()


@pytest.mark.parametrize("error", [0, errno.EIO])
async def test_a_frame_that_was_in_the_page_cache_alone_leaves_no_gap(error: int) -> None:
    """Its process died before it was synced, or the sync failed; the next start found it, and went on behind it."""
    host = Host(settings=settings(journal_max_backups=9))
    storage = await host.boot()
    await storage.states((1,))
    await add(storage, Batch(1, 0, 3))
    if error:
        host.disk.fail_at(1, error, operation="fdatasync", path="journal0/")
    else:
        host.disk.crash_at(1, operation="fdatasync", path="journal0/")
    add(storage, Batch(1, 3, 3, payload=b"x" * 20_000))
    with pytest.raises(StorageFailedError):
        await storage.failed
    storage.release()
    host.disk.crash()
    host.disk.heal()
    await (await host.boot()).close()
    host.disk.power_cut(dropped)
    assert (await rebuild(host, Metadata({1: metadata_of(1, 5)}))).trusted
    storage = await host.boot()
    have, unknown = await read_all(storage, 1, 0, 5)
    assert (set(have), unknown) == (set(range(6)), set())
    await storage.close()


async def test_a_journal_file_that_was_begun_in_the_page_cache_alone_leaves_no_gap() -> None:
    """It has no frame; the next start goes on behind it, and it may become the oldest one that is left."""
    oldest = set()
    for nth in range(1, 4):
        host = Host(settings=settings(journal_max_backups=1, journal_recycled_files_max=0))
        storage = await host.boot()
        await storage.states((1,))
        await add(storage, Batch(1, 0, 3))
        storage.release()
        host.disk.crash_at(nth, operation="fdatasync", path="journal0/")
        with contextlib.suppress(SimulatedCrash):
            (await host.boot()).release()
        host.disk.crash()
        host.disk.heal()
        begun = host.journal_files()[-1]
        for _ in range(3):
            await (await host.boot()).close()
            cut = copy_of(host)
            cut.disk.power_cut(dropped)
            oldest.add(cut.journal_files()[0] == begun)
            assert (await rebuild(cut, Metadata({1: metadata_of(1, 2)}))).trusted
    assert oldest == {True, False}


@pytest.mark.thorough
async def test_a_recycled_file_that_has_its_old_name_back_is_no_damage() -> None:
    """A power cut took back the name, and not the header, of the file that the journal was about to begin."""
    nth = tried = 0
    while True:
        nth += 1
        host, writes = Host(settings=settings(journal_max_backups=0, journal_as_entry_log=False)), AcknowledgedWrites()
        storage = await host.boot()
        host.disk.crash_at(nth, operation="sync_dir", path="journal0")
        with contextlib.suppress(SimulatedCrash, StorageFailedError):
            for i in range(12):
                await writes.add(storage, Batch(1, i, payload=bytes([i]) * 400_000))
                if i % 4 == 3:
                    await storage.checkpoint()
        storage.release()
        if not host.disk.dead:
            break
        host.disk.heal()
        before = host.journal_files()
        host.disk.power_cut(lambda item: EntryStatus.DROPPED if item.kind == "entry" else EntryStatus.KEPT)
        tried += host.journal_files() != before
        done = await rebuild(host, Metadata({1: metadata_of(1, max(writes.acknowledged[1]))}))
        assert (done.damages, done.trusted) == ([], True)
        await check(host, writes)
    assert tried
