"""Random lives of a bookie that stores damaged and sound copies of the same entries: no damaged one hides a sound one.

Neither from the readers of the running bookie nor from a new index. Random are sizes, files and blocks, the order of
appends, checkpoints, restarts and compaction, and whether a crash ends it.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.space.test_deletion import delete
from tests.unit.storage.support import Batch, Host, add, read_all, reclaim, settings
from tests.unit.storage.tools.rebuild.test_rebuild import Metadata, damage_indexes, metadata_of, rebuild

from bkpy.errors import StorageFailedError
from bkpy.protocol.wire.records import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.storage.engine import LedgerStorage

LEDGERS = (1, 2, 3)
FILLERS = 100  # ledgers that are deleted, so that compaction moves what is beside them: ids from here on
SOUND = (b"data", b"data" * 300)
HEAD_BYTES = 32  # of a record, before its payload


def seeds_of(blocks: int, size: int) -> list[object]:
    return [
        pytest.param((*range(7), 162), id="few"),
        *(
            pytest.param(range(first, first + size), id=f"{first}-{first + size - 1}", marks=pytest.mark.exhaustive)
            for first in range(0, blocks * size, size)
        ),
    ]


class Life:
    """What a seed makes of a bookie, and what it stored."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.host = Host(
            settings=settings(
                journals=rng.choice((1, 1, 2)),
                ledgers=rng.choice((1, 1, 2)),
                journal_max_backups=rng.choice((0, 2)),
                journal_recycled_files_max=rng.choice((0, 1)),
                journal_run_bytes_min=rng.choice((1, 500, 65536)),
                journal_run_share_min=rng.choice((0.0, 0.5)),
                block_bytes=rng.choice((200, 2000, 100_000)),
                entry_log_blocks_max=rng.choice((3, 10, 1000)),
                rebuild_step_blocks=rng.choice((1, 3, 1000)),
            )
        )
        self.stored: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
        self.sound: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
        self.ends = dict.fromkeys(LEDGERS, 0)  # behind the last entry
        self.fillers = FILLERS

    async def go_on(self) -> LedgerStorage:
        storage = await self.host.boot()
        for _ in range(self.rng.randint(5, 25)):
            what = self.rng.random()
            if what < 0.55:
                await self.append(storage)
            elif what < 0.75:
                await storage.checkpoint()
            elif what < 0.85:
                await storage.close()
                storage = await self.host.boot()
            else:
                await self.compact(storage)
        await storage.checkpoint()
        return storage

    async def append(self, storage: LedgerStorage) -> None:
        """Entries behind the last one, or some that are there once more; of every fourth batch one is damaged."""
        rng, ledger_id = self.rng, self.rng.choice(LEDGERS)
        end = self.ends[ledger_id]
        batch = Batch(
            ledger_id,
            end if rng.random() < 0.6 else rng.randint(0, end),
            rng.choice((1, 3, 10, 25)),
            rng.choice((1, 1, 1, 2, 3)),
            payload=rng.choice(SOUND),
        )
        body = bytearray(batch.body())
        offsets = {header.entry_id: header.offset for header in walk(bytes(body))}
        self.stored[ledger_id].update(offsets)
        if rng.random() < 0.25:
            body[offsets.pop(rng.choice(list(offsets))) + HEAD_BYTES + 1] ^= 255
        await storage.states((ledger_id,))
        await add(storage, batch, bodies=[bytes(body)])
        self.sound[ledger_id].update(offsets)
        self.ends[ledger_id] = max(end, batch.ids[-1] + 1)

    async def compact(self, storage: LedgerStorage) -> None:
        await storage.states((self.fillers,))
        await add(storage, Batch(self.fillers, 0, 40, payload=b"data" * 30))
        await storage.checkpoint()
        await delete(storage, self.fillers)
        self.fillers += 1
        await reclaim(storage, 0.95)

    async def check(self, storage: LedgerStorage) -> None:
        for ledger_id, stored in self.stored.items():
            have, unknown = await read_all(storage, ledger_id, 0, self.ends[ledger_id] + 5)
            assert {i for i in self.sound[ledger_id] if have.get(i) not in SOUND} == set(), f"hidden: {ledger_id}"
            assert stored - have.keys() - unknown == set(), f"denied: {ledger_id}"


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", seeds_of(10, 150))
async def test_what_was_sound_is_read_from_a_new_index_too(seeds: Sequence[int]) -> None:
    for seed in seeds:
        try:
            await live(Life(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


async def live(life: Life) -> None:
    storage = await life.go_on()
    await life.check(storage)
    if life.rng.random() < 0.4:
        life.host.disk.crash()
        with contextlib.suppress(StorageFailedError, OSError):
            storage.release()
        life.host.disk.heal()
    else:
        await storage.close()
    if life.rng.random() < 0.5:
        await (await life.host.boot()).close()
    damage_indexes(life.host)
    await rebuild(life.host, Metadata({i: metadata_of(i, None) for i in LEDGERS if life.stored[i]}))
    storage = await life.host.boot()
    await life.check(storage)
    await storage.close()
