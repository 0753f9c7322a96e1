"""Bytes of a journal that rotted: the bookie refuses to start and says why, or puts everything in limbo."""

from __future__ import annotations

import asyncio

import pytest
from tests.hooks import journal_worker
from tests.unit.storage.acknowledged_writes import IDS, AcknowledgedWrites, copy_of, durable, new_host, script
from tests.unit.storage.support import KEY, Batch, Host, Stall, add, read_all
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import CorruptDataError, StorageFailedError
from bkpy.storage.journal.format import PAGE_BYTES, decode_file_header, decode_frame_header


def worn() -> tuple[Host, AcknowledgedWrites, list[tuple[str, int, int]]]:
    """A host that crashed with a journal to replay, and (file, start, end) of what was acknowledged before its end.

    Of each journal the last frame is not in it: damaged, it looks torn.
    """
    host, writes = new_host(), AcknowledgedWrites()

    async def life() -> None:
        storage = await host.boot()
        await script(storage, writes)
        for ledger_id in (1, 2):  # the last frames: what is in them is not looked at below
            await durable(storage, add(storage, Batch(ledger_id, IDS + 1)))
        host.disk.crash()

    asyncio.run(life())
    ranges = []
    for number in range(len(host.settings.journal_directories)):
        path = host.journal_files(number)[-1]
        data = host.disk.contents(path)
        header = decode_file_header(data[:PAGE_BYTES])
        assert header is not None
        offset = last = PAGE_BYTES
        while (frame := decode_frame_header(data, offset, header.nonce)) is not None:
            last, offset = offset, offset + frame.frame_bytes
        ranges.append((path, 0, last))
    return host, writes, ranges


async def flip_and_check(host: Host, writes: AcknowledgedWrites, path: str, offset: int) -> str:
    """What happened with one byte inverted: "sound", "refused" (and limbo as the other setting)."""
    where = f"byte {offset} of {path}"
    refusing = copy_of(host)
    refusing.disk.flip(path, offset, 0xFF)
    try:
        storage = await refusing.boot()
    except CorruptDataError as e:
        refusal = str(e)
    else:
        await writes.check(storage)
        return "sound"
    assert path in refusal, where
    limbo = copy_of(host)
    limbo.settings = new_host(journal_damage="limbo").settings
    limbo.disk.flip(path, offset, 0xFF)
    for _ in range(2):  # what was found stays known after the journal has gone
        storage = await limbo.boot()
        assert storage.untrusted
        for ledger_id, entries in writes.acknowledged.items():
            have, unknown = await read_all(storage, ledger_id, 0, IDS)
            denied = entries.keys() - have.keys() - unknown
            assert not denied, f"{where}: entries {sorted(denied)} of ledger {ledger_id} are denied"
            assert all(have[i] == writes.sent[ledger_id][i] for i in have), where
            state = (await storage.states((ledger_id,)))[ledger_id]
            assert state is None or state.fenced
            assert (await storage.last_entry(ledger_id)).limbo
        assert (await storage.read(1234, 0, 5, 100)).unknown == [(0, 5)], "a ledger never seen may have been lost"
        assert (await storage.last_entry(1234)).known
        limbo.disk.power_cut()
    return "refused"


async def test_damage_in_a_frame_that_is_longer_than_what_is_read_at_once_is_not_taken_for_a_torn_end() -> None:
    host = Host(settings=bookie_settings(journal_read_bytes=4096))
    storage = await host.boot()
    await storage.states((1, 2))
    await add(storage, Batch(1, 0, payload=b"x" * 50_000))
    await add(storage, Batch(2, 0))  # the frame that shows that the first is no end
    host.disk.crash()
    path = host.journal_files()[-1]
    host.disk.flip(path, host.disk.contents(path).index(b"x" * 1000) + 2000)
    before = host.disk.contents(path)
    with pytest.raises(CorruptDataError, match="although a later one is at offset"):
        await host.boot()
    assert host.disk.contents(path) == before, "nothing is cut off"


@pytest.mark.parametrize("backups", [0, 2])
async def test_of_what_starts_cut_off_only_the_newest_copies_stay(backups: int) -> None:
    host = Host(settings=bookie_settings(journal_max_backups=backups, journal_recycled_files_max=0))
    for turn in range(5):
        storage = await host.boot()
        await storage.states((1,))
        await add(storage, Batch(1, turn, payload=b"the last frame"))
        host.disk.crash()
        path = host.journal_files()[-1]
        host.disk.flip(path, host.disk.contents(path).index(b"the last frame"))  # as if it were torn
    await host.boot()
    assert all("never acknowledged, was cut" in what for what, _ in host.reports.cuts)
    assert (len(host.reports.cuts), host.reports.damages) == (1, [])
    directory = host.settings.journal_directories[0]
    copies = [name for name in host.disk.listdir(directory) if name.endswith(".broken")]
    assert len(copies) == max(1, backups)


async def test_a_torn_frame_that_a_checkpoint_has_seen_was_perhaps_acknowledged() -> None:
    """Another ledger directory's checkpoint has moved its mark behind the frame: somebody has synced it."""
    host = Host(settings=bookie_settings(ledgers=2, journal_damage="limbo"))
    storage = await host.boot()
    await add(storage, Batch(0, 0), Batch(1, 0, payload=b"the last frame"))
    await storage.checkpoint_shard(storage.shards[0])
    host.disk.crash()
    path = host.journal_files()[-1]
    host.disk.flip(path, host.disk.contents(path).index(b"the last frame"))
    storage = await host.boot()
    assert host.reports.cuts == []
    assert [what.split(" the journal")[-1] for what, _ in host.reports.damages] == [
        " are gone: a checkpoint had seen them",
        f"a torn frame at offset {PAGE_BYTES}, perhaps acknowledged, was cut; a copy is in {path}.broken",
    ]
    assert await read_all(storage, 1, 0, 0) == ({}, {0})


async def test_nothing_is_said_to_be_cut_before_it_is() -> None:
    """Frames are torn where a disk is full: then there may be no space for the copy either."""
    host = Host(settings=bookie_settings())
    storage = await host.boot()
    await add(storage, Batch(1, 0, payload=b"the last frame"))
    host.disk.crash()
    path = host.journal_files()[-1]
    host.disk.flip(path, host.disk.contents(path).index(b"the last frame"))
    before, capacity = host.disk.contents(path), host.disk.capacity_bytes
    host.disk.capacity_bytes = host.disk.used_bytes()
    with pytest.raises(StorageFailedError, match="No space left"):
        await host.boot()
    assert (host.reports.cuts, host.disk.contents(path)) == ([], before)
    host.disk.crash()
    host.disk.capacity_bytes = capacity
    await host.boot()
    assert len(host.reports.cuts) == 1


@pytest.mark.thorough
@pytest.mark.scenario(44)
@pytest.mark.parametrize("stride", [1999, pytest.param(157, marks=pytest.mark.exhaustive)])
def test_a_flipped_byte_is_refused_or_puts_everything_in_limbo(stride: int) -> None:
    host, writes, ranges = worn()
    seen: set[str] = set()

    async def sweep() -> None:
        for path, start, end in ranges:
            heads = {page + i for page in range(start, end, PAGE_BYTES) for i in (9, 49)}
            for offset in sorted({*range(start, end, stride), *heads}):
                seen.add(await flip_and_check(host, writes, path, offset))

    asyncio.run(sweep())
    assert seen == {"sound", "refused"}


def test_damage_is_reported_with_file_offset_and_ledgers() -> None:
    host, _, ranges = worn()
    path = ranges[1][0]
    host.disk.flip(path, host.disk.contents(path).index(b"three"))  # the records' heads are still readable
    with pytest.raises(CorruptDataError, match=r"ledgers concerned: .*3") as caught:
        asyncio.run(host.boot())
    assert path in str(caught.value)
    assert "journal_damage" in str(caught.value)


def test_limbo_takes_new_ledgers_and_fences_them() -> None:
    host, writes, ranges = worn()
    host.settings = new_host(journal_damage="limbo").settings
    path = ranges[1][0]
    host.disk.flip(path, host.disk.contents(path).index(b"three"))

    async def life() -> None:
        storage = await host.boot()
        assert host.reports.damages
        await writes.add(storage, Batch(77, 0, 3))
        assert 77 in storage.fenced, "a fence of it may be among what was lost"
        assert await read_all(storage, 77, 0, 4) == ({0: b"data", 1: b"data", 2: b"data"}, {3, 4})
        host.disk.power_cut()
        storage = await host.boot()
        assert (await storage.states((77,)))[77] is not None
        assert 77 in storage.fenced

    asyncio.run(life())


async def test_a_fence_of_a_new_ledger_is_durable_before_the_answer_where_data_were_lost() -> None:
    """There a new ledger is fenced from the start; whoever fences it waits for that all the same."""
    storage = await Host().boot()
    storage.ledgers.distrust_everything()
    assert (await storage.states((7,)))[7] is None
    stall = Stall(journal_worker(storage.journals[0]))
    stall.begin()
    storage.create(7, KEY)
    fence = asyncio.ensure_future(storage.fence(7, KEY))
    await turns()
    assert not fence.done()
    stall.end()
    await fence
    await storage.close()


@pytest.mark.scenario(47)
@pytest.mark.parametrize("torn", [False, True])
async def test_a_journal_that_ends_before_a_mark_is_damaged(torn: bool) -> None:
    """One ledger directory has checkpointed what is gone; the other hasn't, and must not deny it, then or later."""
    host, writes = Host(settings=bookie_settings(ledgers=2)), AcknowledgedWrites()
    storage = await host.boot()
    path = host.journal_files()[-1]
    for i in range(4):
        await writes.add(storage, Batch(2, i), Batch(3, i))
    await storage.checkpoint_shard(storage.shards[0])
    host.disk.crash()
    frames = host.disk.contents(path)
    at = 4096 * 3 + (60 if torn else 0)
    host.disk.replace(path, frames[:at] + bytes(len(frames) - at))
    with pytest.raises(CorruptDataError, match=f"damaged at offset {4096 * 3}: .* are gone: a checkpoint had seen"):
        await host.boot()
    host.disk.crash()
    host.settings = bookie_settings(ledgers=2, journal_damage="limbo")
    storage = await host.boot()
    assert storage.untrusted
    assert set((await read_all(storage, 2, 0, 9))[0]) == {0, 1, 2, 3}
    _, unknown = await read_all(storage, 3, 0, 9)
    assert {2, 3} <= unknown
    await writes.add(storage, Batch(2, 10), Batch(3, 10))
    host.disk.power_cut()
    storage = await host.boot()
    assert 10 in (await read_all(storage, 2, 0, 10))[0]
    assert 10 in (await read_all(storage, 3, 0, 10))[0]
