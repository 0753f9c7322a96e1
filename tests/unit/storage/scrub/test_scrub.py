"""The scrub: it finds damage wherever it is, tells it once, harms nobody, and goes on where it was."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.runtime import EPOCH_S, SimClock, sim_runtime
from tests.unit.storage.space.test_deletion import delete, logs, put
from tests.unit.storage.support import INSTANCE, Batch, Reports, read_all, reclaim
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import eventually

from bkpy.config.reloading import take_over
from bkpy.storage.index.index import block_rows, decode_block_row, ledger_key, ledger_of_block
from bkpy.storage.open import open_storage
from bkpy.storage.sealed_json import seal_json

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.index.index import BlockRow
    from bkpy.storage.scrub.scrub import Damages

T = TypeVar("T")

DIRECTORY = "/b/ledgers0"
WEEK_S = 604_800.0
ENTRY = b"x" * 1000
LEDGERS, ENTRIES = range(4), 12


class Host:
    """A bookie's storage in virtual time, across restarts; `run` may be called once."""

    def __init__(self, **values: Any) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk()
        self.clock = SimClock(self.loop)
        self.settings: BookieSettings = bookie_settings(**{"block_bytes": 3000, **values})
        self.reports = Reports()
        self.cookie: bytes | None = None
        self.boots = 0

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        try:
            result = self.loop.run_until_complete(main)
            assert not self.loop.errors
            return result
        finally:
            self.loop.close()

    def set(self, **values: Any) -> None:
        """Other settings from the next start on."""
        self.settings = self.settings.model_copy(update=values)

    async def boot(self) -> LedgerStorage:
        self.boots += 1
        self.reports = Reports()
        runtime = sim_runtime(self.loop, self.disk, self.boots, clock=self.clock)
        storage = await open_storage(
            self.settings, runtime, instance_id=INSTANCE, expected_cookie=self.cookie, observer=self.reports
        )
        self.cookie = storage.cookie
        return storage

    async def filled(self) -> LedgerStorage:
        """With a few logs and, where the settings have it so, kept journal files."""
        storage = await self.boot()
        for first in range(0, ENTRIES, 4):
            for ledger_id in LEDGERS:
                await put(storage, Batch(ledger_id, first, 4, payload=b"%d" % ledger_id + ENTRY))
            await storage.checkpoint()
        return storage

    def path_of(self, row: BlockRow) -> str:
        from bkpy.storage.entry_log.entry_log import log_name

        return f"{DIRECTORY}/{log_name(row.place.log_id)}"


KEEPING = {"journal_as_entry_log": True, "journal_run_bytes_min": 1, "journal_run_share_min": 0.0}
COPYING = {"journal_as_entry_log": False}


def rows_of(storage: LedgerStorage) -> list[tuple[int, BlockRow]]:
    with storage.shards[0].store.read() as txn:
        return [(ledger_of_block(key), decode_block_row(key, value)) for key, value in block_rows(txn)]


async def round_of(storage: LedgerStorage) -> Damages:
    """Begin a round, wait until it has ended, and say what is known to be damaged then."""
    (before,) = storage.scrub.statuses
    assert storage.scrub.begin()
    await ended(storage, before.rounds + 1)
    return await storage.scrub.damages()


async def ended(storage: LedgerStorage, rounds: int) -> None:
    await eventually(lambda: storage.scrub.statuses[0].rounds >= rounds, "the round ends", pause_s=0.01, deadline_s=1e6)


async def check_all_is_there(storage: LedgerStorage) -> None:
    for ledger_id in LEDGERS:
        have = dict.fromkeys(range(ENTRIES), b"%d" % ledger_id + ENTRY)
        assert await read_all(storage, ledger_id, 0, 40) == (have, set())


# --- what it finds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [KEEPING, COPYING])
def test_what_is_sound_is_read_whole_and_nothing_is_told(values: dict[str, Any]) -> None:
    host = Host(**values)

    async def main() -> None:
        storage = await host.filled()
        assert await round_of(storage) == ([], 0)
        assert host.reports.scrubbed_bytes == sum(row.place.length for _, row in rows_of(storage)) > 48_000
        (status,) = storage.scrub.statuses
        assert (status.running, status.done_bytes, status.rounds) == (False, host.reports.scrubbed_bytes, 1)
        assert storage.scrub.last_round_ended_s == status.ended_s == pytest.approx(host.clock.time(), abs=1)
        assert not host.reports.damages
        await storage.close()

    host.run(main())


@pytest.mark.parametrize("values", [KEEPING, COPYING])
def test_damage_in_any_block_is_found_told_once_and_forgotten(values: dict[str, Any]) -> None:
    host = Host(**values)

    async def main() -> None:
        storage = await host.filled()
        rows = rows_of(storage)
        assert len(rows) >= 12
        for number, (ledger_id, row) in enumerate(rows):
            path = host.path_of(row)
            at = row.place.offset + number * 97 % row.place.length
            host.disk.flip(path, at)
            for _ in range(2):
                found, left_out = await round_of(storage)
                (damage,) = found
                assert (damage.ledger_id, damage.first, damage.last) == (ledger_id, row.ids.first, row.ids.last)
                assert (damage.path, damage.offset, left_out) == (path, row.place.offset, 0)
                assert storage.scrub.damage_count == 1
            host.disk.flip(path, at)
            assert await round_of(storage) == ([], 0)
        assert len(host.reports.damages) == len(rows), "each is told once"
        for (what, path), (ledger_id, row) in zip(host.reports.damages, rows, strict=True):
            assert path == host.path_of(row)
            place = f"ledger {ledger_id}, entries {row.ids.first} to {row.ids.last}, at offset {row.place.offset}: "
            assert what.startswith(place)
            assert "the ledger's other bookies" in what
        await check_all_is_there(storage)
        await storage.close()

    host.run(main())


def test_an_unreadable_sector_and_a_log_that_is_gone_are_damage() -> None:
    host = Host(**COPYING)

    async def main() -> None:
        storage = await host.filled()
        host.disk.fail_at(1, errno.EIO, operation="pread", path=".log")
        (one,) = (await round_of(storage)).found
        assert "Input/output error" in one.what
        assert (await round_of(storage)).found == []
        (name, *_) = logs(host)  # type: ignore[arg-type]
        await storage.close()
        storage = await host.boot()
        host.disk.unlink(f"{DIRECTORY}/{name}")
        found = (await round_of(storage)).found
        assert found
        assert {(one.path, one.what) for one in found} == {
            (f"{DIRECTORY}/{name}", "the log is gone, and the index needs it")
        }
        await storage.close()

    host.run(main())


def test_rows_that_are_damaged_or_missing_are_told_with_their_ledger() -> None:
    host = Host(**COPYING)

    async def main() -> None:
        storage = await host.filled()
        store = storage.shards[0].store
        with store.read() as txn:
            rows = list(block_rows(txn))
        (key, value), (missing, missing_value) = rows[0], rows[-1]
        ledger = ledger_key(1)
        with store.write() as txn:
            row_of_ledger = txn.get(ledger)
            assert row_of_ledger is not None
            txn.put(key, bytes((value[0] ^ 1,)) + value[1:])
            txn.delete(missing)
            txn.put(ledger, row_of_ledger[:-1] + bytes((row_of_ledger[-1] ^ 1,)))
        found = (await round_of(storage)).found
        assert {damage.path for damage in found} == {f"{DIRECTORY}/index"}
        told = sorted((damage.ledger_id, damage.what.partition(":")[0]) for damage in found)
        missed = "rows of its blocks are missing, or are not the stored ones"
        assert told == [(0, "a row of its blocks"), (1, "the ledger's row"), (3, missed)]
        with store.write() as txn:
            txn.delete(ledger)
        assert "rows of blocks are of a ledger that has no row" in [d.what for d in (await round_of(storage)).found]
        with store.write() as txn:
            txn.put(key, value)
            txn.put(missing, missing_value)
            txn.put(ledger, row_of_ledger)
        assert await round_of(storage) == ([], 0)
        await storage.close()

    host.run(main())


def test_more_damages_than_there_is_room_for_are_counted() -> None:
    host = Host(scrub_damages_max=3, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        rows = rows_of(storage)
        for _, row in rows:
            host.disk.flip(host.path_of(row), row.place.offset + 60)
        for _ in range(2):
            found, left_out = await round_of(storage)
            assert (len(found), left_out) == (3, len(rows) - 3)
            assert storage.scrub.damage_count == len(rows)
        assert len(host.reports.damages) == 3
        await storage.close()
        host.set(scrub_damages_max=1)
        storage = await host.boot()
        found, left_out = await storage.scrub.damages()
        assert (len(found), left_out) == (1, len(rows) - 1)
        await storage.close()

    host.run(main())


# --- beside others ----------------------------------------------------------------------------------------------------


def test_a_damage_is_forgotten_when_its_entries_are_stored_again_or_deleted() -> None:
    host = Host(**COPYING)

    async def main() -> None:
        storage = await host.filled()
        for ledger_id, row in rows_of(storage):
            if ledger_id < 2 and row.ids.first == 0:
                host.disk.flip(host.path_of(row), row.place.offset + 60)
        one, two = (await round_of(storage)).found
        assert (one.ledger_id, two.ledger_id, two.first) == (0, 1, 0)
        assert one.last is not None
        await put(storage, Batch(0, 0, 1, payload=b"anew"))
        await storage.checkpoint()
        assert (await storage.scrub.damages()).found == [one._replace(first=1), two]
        await put(storage, Batch(0, 1, one.last, payload=b"anew"))
        await storage.checkpoint()
        assert (await storage.scrub.damages()).found == [two]
        await delete(storage, 1)
        await reclaim(storage)
        assert (await storage.scrub.damages()).found == []
        assert await round_of(storage) == ([], 0)
        await storage.close()

    host.run(main())


@pytest.mark.parametrize("values", [KEEPING, COPYING])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 11])
def test_compaction_and_deletion_between_any_two_steps_are_no_damage(values: dict[str, Any], step: int) -> None:
    """All of it happens when a step has the rows, and hasn't read their blocks."""
    host = Host(scrub_step_bytes=1, index_step_rows=1, **values)

    async def main() -> None:
        storage = await host.filled()
        await storage.close()
        storage = await host.boot()
        shard, steps = storage.shards[0], 0
        on_index = shard.on_index

        async def interfere() -> None:
            await put(storage, Batch(2, 1, 2, payload=b"later"))
            for ledger_id in (0, 3):
                await delete(storage, ledger_id)
                await storage.checkpoint()
                await reclaim(storage, 0.99)

        async def watched(function: Any, *args: Any) -> Any:
            nonlocal steps
            result = await on_index(function, *args)
            if getattr(function, "__name__", "") == "gather":
                steps += 1
                if steps == step:
                    await interfere()
            return result

        shard.on_index = watched  # type: ignore[method-assign, assignment]
        assert storage.scrub.begin()
        await ended(storage, 1)
        assert steps > step
        assert await storage.scrub.damages() == ([], 0)
        assert await round_of(storage) == ([], 0)
        assert not host.reports.damages
        assert host.reports.removed
        await storage.close()

    host.run(main())


def test_no_log_stays_open() -> None:
    host = Host(**COPYING)

    async def main() -> None:
        storage = await host.filled()
        opened: list[str] = []
        closed: list[str] = []
        open_file = host.disk.open

        def watched(path: str, **how: Any) -> Any:
            file = open_file(path, **how)
            if path.endswith(".log"):
                close = file.close
                opened.append(path)
                file.close = lambda: (closed.append(path), close())  # type: ignore[func-returns-value, method-assign, assignment]
            return file

        host.disk.open = watched  # type: ignore[method-assign]
        await round_of(storage)
        assert opened
        assert sorted(opened) == sorted(closed)
        await storage.close()

    host.run(main())


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "nth"), [*((None, nth) for nth in range(1, 9)), *(("pread", nth) for nth in (1, 2, 7, 12))]
)
def test_an_error_at_any_operation_ends_nothing(operation: str | None, nth: int) -> None:
    host = Host(scrub_interval_s=100.0, scrub_save_interval_s=0.001, index_step_rows=2, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        await storage.close()
        storage = await host.boot()
        rounds = storage.scrub.statuses[0].rounds
        storage.scrub.begin()
        host.disk.fail_at(nth, errno.EIO, operation=operation)
        await ended(storage, rounds + 1)
        assert not storage.failed.done()
        assert len((await storage.scrub.damages()).found) <= 1
        host.disk.heal()
        assert await round_of(storage) == ([], 0)
        await put(storage, Batch(0, ENTRIES, payload=b"after"))
        await storage.close()

    host.run(main())


def test_an_index_that_cannot_be_read_puts_it_off(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(scrub_save_interval_s=0.1, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        store = storage.shards[0].store
        read, failures = store.read, 2

        def failing() -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise OSError(errno.EIO, "no luck")
            return read()

        store.read = failing  # type: ignore[method-assign]
        assert await round_of(storage) == ([], 0)
        assert failures < 0
        await storage.close()

    with caplog.at_level(logging.WARNING):
        host.run(main())
    assert f"the scrub of {DIRECTORY} failed to read its index, retrying in" in caplog.text


def test_an_unexpected_error_puts_it_off_and_does_not_end_the_bookie(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(scrub_save_interval_s=0.1, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        failing = iter([ValueError("a defect")])

        def scrubbed(bytes_: int) -> None:
            for error in failing:
                raise error

        host.reports.scrubbed = scrubbed  # type: ignore[method-assign]
        assert await round_of(storage) == ([], 0)
        assert not storage.failed.done()
        await storage.close()

    with caplog.at_level(logging.ERROR):
        host.run(main())
    assert f"the scrub of {DIRECTORY} failed, retrying in 0.1 s" in caplog.text
    assert "a defect" in caplog.text


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_in_the_middle_goes_on_from_where_it_was(crash: bool) -> None:
    host = Host(
        scrub_interval_s=WEEK_S, scrub_save_interval_s=1.0, scrub_step_bytes=1, scrub_bytes_per_s=1000, **COPYING
    )

    async def main() -> None:
        storage = await host.filled()
        rows = rows_of(storage)
        total = sum(row.place.length for _, row in rows)
        ledger_id, damaged = rows[0]
        host.disk.flip(host.path_of(damaged), damaged.place.offset + 60)
        storage.scrub.begin()
        began_s = storage.scrub.statuses[0].began_s
        restarts = read = 0
        while not storage.scrub.statuses[0].rounds:
            await asyncio.sleep(total / 1000 / 3.5)
            if storage.scrub.statuses[0].rounds:
                break
            assert [one.ledger_id for one in (await storage.scrub.damages()).found] == [ledger_id]
            read += host.reports.scrubbed_bytes
            if crash:
                await asyncio.sleep(2.9)  # until it is stored
                storage.release()
                host.disk.crash()
            else:
                await storage.close()
            restarts += 1
            assert restarts < 10, "it doesn't get on"
            storage = await host.boot()
            (status,) = storage.scrub.statuses
            assert (status.running, status.began_s) == (True, began_s)
            assert [one.ledger_id for one in (await storage.scrub.damages()).found] == [ledger_id]
            assert not host.reports.damages, "it was told before"
        assert restarts >= 2
        (status,) = storage.scrub.statuses
        assert status.done_bytes == total
        assert [one.ledger_id for one in (await storage.scrub.damages()).found] == [ledger_id]
        assert storage.scrub.statuses[0].next_s == pytest.approx(host.clock.time() + WEEK_S, rel=1e-6)
        await storage.close()

    host.run(main())


def test_the_interval_counts_from_the_last_full_round_whatever_restarts_there_are() -> None:
    host = Host(scrub_interval_s=WEEK_S, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        (status,) = storage.scrub.statuses
        assert status.next_s is not None
        assert 0 <= status.next_s - host.clock.time() <= WEEK_S, "at some time in the first week"
        due_s = status.next_s
        for _ in range(3):
            await storage.close()
            storage = await host.boot()
            assert storage.scrub.statuses[0].next_s == due_s
        await asyncio.sleep(due_s - host.clock.time() - 1)
        assert storage.scrub.statuses[0].rounds == 0
        assert storage.scrub.last_round_ended_s is None
        await asyncio.sleep(10)
        assert storage.scrub.statuses[0].rounds == 1
        for rounds in (1, 2, 3):
            await asyncio.sleep(0.5 * WEEK_S)
            assert storage.scrub.statuses[0].rounds == rounds
            await storage.close()
            storage = await host.boot()
            await asyncio.sleep(0.51 * WEEK_S)
            assert storage.scrub.statuses[0].rounds == rounds + 1
        host.clock.skew_s -= 10 * WEEK_S  # a clock that is set back doesn't stop it
        await storage.close()
        storage = await host.boot()
        await asyncio.sleep(1.01 * WEEK_S)
        assert storage.scrub.statuses[0].rounds == 5
        await storage.close()

    host.run(main())


def test_without_an_interval_it_scrubs_only_when_it_is_asked_to() -> None:
    host = Host(scrub_bytes_per_s=1000, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        await asyncio.sleep(10 * WEEK_S)
        (status,) = storage.scrub.statuses
        assert (status.running, status.rounds, status.next_s) == (False, 0, None)
        assert not host.disk.exists(f"{DIRECTORY}/scrub.json")
        storage.scrub.begin()
        assert not storage.scrub.begin()
        await asyncio.sleep(5)
        assert 0 < storage.scrub.progress < 1
        await storage.close()
        storage = await host.boot()
        assert not storage.scrub.statuses[0].running
        assert storage.scrub.progress == 1
        await storage.close()

    host.run(main())


def test_an_interval_may_come_shrink_and_go_while_it_waits() -> None:
    host = Host(**COPYING)

    async def main() -> None:
        storage = await host.filled()
        settings = host.settings

        def every(interval_s: float) -> None:
            take_over(settings, settings.model_copy(update={"scrub_interval_s": interval_s}), ["scrub_interval_s"])
            storage.scrub.settings_changed()

        async def rounds_after(seconds: float) -> int:
            await asyncio.sleep(seconds)
            return storage.scrub.statuses[0].rounds

        assert await rounds_after(10 * WEEK_S) == 0
        every(WEEK_S)
        await asyncio.sleep(0)
        due_s = storage.scrub.statuses[0].next_s
        assert due_s is not None
        assert 0 <= due_s - host.clock.time() <= WEEK_S, "at some time in the first week"
        assert await rounds_after(WEEK_S + 10) == 1
        every(100.0)
        assert await rounds_after(110) in (2, 3)
        before = storage.scrub.statuses[0].rounds
        every(0.0)
        assert await rounds_after(WEEK_S) == before
        await storage.close()

    host.run(main())


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"version": 1}', b"\xff" * 100, seal_json({"version": 9})])
def test_a_file_that_says_nonsense_costs_a_round_and_no_more(damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(scrub_interval_s=100.0, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        await round_of(storage)
        await storage.close()
        host.disk.replace(f"{DIRECTORY}/scrub.json", damage)
        storage = await host.boot()
        assert storage.scrub.statuses[0].rounds == 0
        await asyncio.sleep(110)
        assert storage.scrub.statuses[0].rounds == 1
        await storage.close()

    with caplog.at_level(logging.WARNING):
        host.run(main())
    assert f"failed to read the state of the scrub of {DIRECTORY}, restarting it" in caplog.text


# --- its rate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 10_000])
def test_it_keeps_to_its_rate(step: int) -> None:
    rate = 5000
    host = Host(scrub_bytes_per_s=rate, scrub_step_bytes=step, **COPYING)

    async def main() -> None:
        storage = await host.filled()
        before = host.clock.time()
        storage.scrub.begin()
        while storage.scrub.statuses[0].running:
            await asyncio.sleep(1)
            passed = host.clock.time() - before
            assert host.reports.scrubbed_bytes <= rate * passed + step + 4200, (
                "a step and a block before it is waited for"
            )
        assert passed == pytest.approx(host.reports.scrubbed_bytes / rate, abs=3)
        assert host.clock.time() < EPOCH_S + WEEK_S
        await storage.close()

    host.run(main())
