"""A bookie that begins anew, or was put into limbo: what it lacks, how limbo ends, and a crash at every operation."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.examples import stride
from tests.sim.disk import SimulatedCrash
from tests.unit.storage.support import KEY, Batch, Host, add, read_all, sim_runtime
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import IdentityError, StorageFailedError
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.integrity import MissingRange
from bkpy.storage import losses as losses_module
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.index import index
from bkpy.storage.losses import Losses
from bkpy.storage.tools.rebuild.standing import standing_of

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

LEDGER = 5
LAST = 19
BEFORE, AFTER = 90, 110  # ledgers of before the loss, and created after it
NEWEST = 100
SPLIT = {"journals": 2, "ledgers": 2}


def metadata(*, closed: bool = True, write_quorum: int = 3, name: str = "bookie-1") -> LedgerMetadata:
    """Of a ledger with the entries 0 to 19, the first ten of which are in a fragment without this bookie."""
    state = LedgerState.CLOSED if closed else LedgerState.OPEN
    fragments = (Fragment(0, ("x", "y", "z")), Fragment(10, ("x", name, "z")))
    last, length = (LAST, 100) if closed else (-1, 0)
    ack_quorum = min(2, write_quorum)
    return LedgerMetadata(LEDGER, state, 3, write_quorum, ack_quorum, "crc32c", KEY, fragments, last, length)


def losses_of(storage: LedgerStorage, host: Host) -> Losses:
    return Losses(storage, host.settings, sim_runtime(host.disk, host.clock), lambda: None)


def lost_host(**values: Any) -> Host:
    """A host whose bookie the cluster knows, and whose disks are empty."""

    async def life() -> None:
        storage = await host.boot()
        await add(storage, Batch(LEDGER, 0, 20))
        await storage.close()

    host = Host(settings=bookie_settings(**values))
    asyncio.run(life())
    return Host(settings=host.settings, cookie=host.cookie, clock=host.clock)


async def stored(storage: LedgerStorage, batch: Batch) -> None:
    """`StorageFailedError` if it never will be."""
    durable = add(storage, batch)
    await asyncio.wait({durable, storage.failed}, return_when=asyncio.FIRST_COMPLETED)
    if not durable.done():
        raise StorageFailedError("it will never be durable")


async def denied(storage: LedgerStorage, ledger_id: int, last: int = LAST) -> set[int]:
    have, unknown = await read_all(storage, ledger_id, 0, last)
    return set(range(last + 1)) - have.keys() - unknown


# --- beginning anew -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, SPLIT])
def test_after_a_new_beginning_everything_is_unknown(values: dict[str, int]) -> None:
    host = lost_host(**values)

    async def main() -> None:
        with pytest.raises(IdentityError, match="has no cookie"):
            await host.boot()
        storage = await host.boot(rebuild=True)
        for ledger_id in (LEDGER, BEFORE, AFTER):
            assert not await denied(storage, ledger_id)
            assert (await storage.last_entry(ledger_id)).limbo
        await storage.close()
        storage = await host.boot()
        assert storage.untrusted
        storage.release()

    asyncio.run(main())


def test_an_index_that_is_left_has_no_other_reason_for_its_limbo() -> None:
    """Were it only that nobody had asked which ledgers there are, the next rebuild of it, which asks, would end it."""
    host = lost_host()
    runtime = sim_runtime(host.disk, host.clock)
    (directory,) = host.settings.ledger_directories
    for path in (*host.settings.journal_directories, directory):
        host.disk.make_dirs(path)
    sizes = {"bytes_max": host.settings.index_bytes_max, "readers_max": host.settings.index_readers_max}
    store = runtime.store.open(f"{directory}/{INDEX_NAME}", create=True, **sizes)
    row = index.initialise(store, bytes(16), len(host.settings.journal_directories))
    index.put_shard(store, row._replace(unknown_in_limbo=True, unasked=True))
    store.close()

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        assert storage.untrusted
        await storage.close()

    asyncio.run(main())
    assert standing_of(runtime, directory, host.settings).limbo


def test_directories_in_which_something_is_left_are_not_begun_anew() -> None:
    host = Host(settings=bookie_settings(**SPLIT))

    async def main() -> None:
        storage = await host.boot()
        await add(storage, Batch(LEDGER, 0, 20))
        await storage.close()
        cookie = host.cookie
        (first, *_) = host.settings.ledger_directories
        for name in host.disk.listdir(first):
            if name == "cookie.json":
                host.disk.unlink(f"{first}/{name}")
        with pytest.raises(IdentityError, match="all directories empty") as refused:
            await host.boot(rebuild=True)
        assert f"no cookie in {first}:" in str(refused.value)
        assert "`bkpy bookie cookie update`" in str(
            refused.value
        )  # nothing has to be deleted where a cookie alone is lost
        assert host.cookie == cookie

    asyncio.run(main())


def test_a_directory_that_is_added_is_not_taken_for_one_that_was_lost() -> None:
    host = Host(settings=bookie_settings(**SPLIT))

    async def main() -> None:
        storage = await host.boot()
        await add(storage, Batch(LEDGER, 0, 20))
        await storage.close()
        more = [*host.settings.ledger_directories, "/data/ledgers/added"]
        host.settings = host.settings.model_copy(update={"ledger_directories": more})
        storage = await host.boot(rebuild=True)
        assert not storage.untrusted
        have, unknown = await read_all(storage, LEDGER, 0, 19)
        assert (have.keys(), unknown) == (set(range(20)), set())
        await storage.close()

    asyncio.run(main())


@pytest.mark.thorough
@pytest.mark.parametrize("values", [{}, SPLIT])
def test_a_crash_at_every_operation_of_a_new_beginning(values: dict[str, int]) -> None:
    async def crash(nth: int) -> bool:
        host = lost_host_now(values)
        host.disk.crash_at(nth)
        crashed = False
        try:
            (await host.boot(rebuild=True)).release()
        except (SimulatedCrash, StorageFailedError):
            crashed = True
        crashed = crashed or host.disk.dead
        host.disk.heal()
        host.disk.rng.seed(nth)
        host.disk.power_cut()
        with contextlib.suppress(IdentityError):  # that it can't be started otherwise is right
            storage = await host.boot()
            assert storage.untrusted
            storage.release()
            host.disk.crash()
        storage = await host.boot(rebuild=True)
        assert storage.untrusted
        assert not await denied(storage, LEDGER)
        await storage.close()
        return crashed

    made = lost_host(**values)

    def lost_host_now(_: dict[str, int]) -> Host:
        return Host(settings=made.settings, cookie=made.cookie)

    nth = 1
    while asyncio.run(asyncio.wait_for(crash(nth), 20)):
        nth += stride()
    assert nth > 10


# --- what lacks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_quorum", [1, 2, 3])
def test_what_lacks_is_exactly_what_is_not_in_the_index(write_quorum: int) -> None:
    host = lost_host()
    wanted = [i for i in range(10, LAST + 1) if 1 in write_set(i, 3, write_quorum)]
    described = metadata(write_quorum=write_quorum)

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        losses = losses_of(storage, host)
        assert await losses.missing_ranges(described) == [MissingRange(1, 1, 10, 19)]
        await losses.make_known(described)
        assert await losses.missing_ranges(described) == [MissingRange(1, 1, wanted[0], wanted[-1])]
        for entry_id in wanted[1:-1]:
            await add(storage, Batch(LEDGER, entry_id))
        assert await losses.missing_ranges(described) == [MissingRange(1, 1, wanted[0], wanted[-1])], (
            "that is only in memory"
        )
        await losses.flush()
        (missing,) = await losses.missing_ranges(described)
        assert (missing.first, missing.last) == (wanted[0], wanted[-1])
        await add(storage, Batch(LEDGER, wanted[0]))
        await losses.flush()
        assert await losses.missing_ranges(described) == [MissingRange(1, 1, wanted[-1], wanted[-1])]
        assert not await losses.end(described)
        assert not await denied(storage, LEDGER)
        await add(storage, Batch(LEDGER, wanted[-1]))
        assert not await losses.end(described), "it is not flushed"
        await losses.flush()
        assert await losses.missing_ranges(described) == []
        assert await losses.in_limbo() == {LEDGER}
        assert await losses.end(described)
        assert await losses.in_limbo() == set()
        assert await denied(storage, LEDGER) == set(range(LAST + 1)) - set(wanted)
        await storage.close()

    asyncio.run(main())


def test_who_is_cancelled_leaves_a_sound_index() -> None:
    host = lost_host()

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        losses = losses_of(storage, host)
        await losses.make_known(metadata())
        await add(storage, Batch(LEDGER, 10, 10))
        await losses.flush()
        for change in (losses.end(metadata()), losses.trust_unseen(NEWEST)):
            task = asyncio.ensure_future(change)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            await add(storage, Batch(LEDGER, 10))
            await storage.checkpoint()
        await storage.close()
        storage = await host.boot()
        assert not host.reports.damages
        await storage.close()

    asyncio.run(main())


def test_a_ledger_that_is_not_closed_or_does_not_name_the_bookie_stays_in_limbo() -> None:
    host = lost_host()

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        losses = losses_of(storage, host)
        await losses.make_known(metadata())
        await add(storage, Batch(LEDGER, 0, 20))
        await losses.flush()
        assert not await losses.end(metadata(closed=False))
        assert not await losses.end(metadata(name="somebody"))
        assert not await denied(storage, LEDGER, 30)
        assert await losses.end(metadata())
        assert await denied(storage, LEDGER, 30) == set(range(20, 31))
        await storage.close()

    asyncio.run(main())


def test_ledgers_never_seen_are_denied_only_above_the_id() -> None:
    host = lost_host(**SPLIT)
    told: list[bool] = []

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        runtime = sim_runtime(host.disk, host.clock)
        await Losses(storage, host.settings, runtime, lambda: told.append(storage.untrusted)).trust_unseen(NEWEST)
        assert told == [False]
        for _ in range(2):
            for ledger_id in (LEDGER, BEFORE, NEWEST):
                assert not await denied(storage, ledger_id)
            assert await denied(storage, AFTER)
            assert not storage.untrusted
            await storage.close()
            storage = await host.boot()
        await add(storage, Batch(BEFORE, 0), Batch(AFTER, 0))
        states = await storage.states((BEFORE, AFTER))
        assert [(s.limbo, s.fenced) for s in states.values() if s is not None] == [(True, True), (False, False)]
        await storage.close()

    asyncio.run(main())


@pytest.mark.thorough
@pytest.mark.parametrize("values", [{}, SPLIT])
def test_a_crash_at_every_operation_while_limbo_ends(values: dict[str, int]) -> None:
    """At no moment is anything denied that isn't certainly here, or was never here."""
    made = lost_host(**values)

    async def life(host: Host) -> None:
        storage = await host.boot(rebuild=True)
        losses = losses_of(storage, host)
        await losses.make_known(metadata())
        await stored(storage, Batch(LEDGER, 10, 10))
        await losses.flush()
        assert await losses.end(metadata())
        await losses.trust_unseen(NEWEST)
        await storage.close()

    async def crash(nth: int) -> bool:
        host = Host(settings=made.settings, cookie=made.cookie)
        host.disk.crash_at(nth)
        with contextlib.suppress(SimulatedCrash, StorageFailedError):
            await life(host)
        crashed = host.disk.dead
        host.disk.heal()
        host.disk.rng.seed(nth)
        host.disk.power_cut()
        storage = await host.boot(rebuild=True)
        assert not await denied(storage, LEDGER) & set(range(10, 20))
        assert not await denied(storage, BEFORE)
        await storage.close()
        return crashed

    nth = 1
    while asyncio.run(asyncio.wait_for(crash(nth), 20)):
        nth += stride()
    assert nth > 20


@pytest.mark.parametrize("missing", [-1, 0, 1, 15, 16, 31, 32, 47])
def test_what_lacks_is_found_wherever_blocks_and_steps_begin(missing: int) -> None:
    """A look goes over as many ids at a time as a block may span; blocks begin before it, and end behind it."""
    span, last = 16, 47
    host = Host(settings=bookie_settings(block_bytes=1))

    async def main() -> None:
        storage = await host.boot()
        losses = losses_of(storage, host)
        for ledger_id in range(1, span + 1):
            starts = [0, *range(ledger_id, last + 1, span)]
            for first, following in zip(starts, [*starts[1:], last + 1], strict=True):
                parts = (
                    [(first, missing), (missing + 1, following)]
                    if first <= missing < following
                    else [(first, following)]
                )
                for begin, end in parts:
                    if begin < end:
                        await add(storage, Batch(ledger_id, begin, end - begin))
        await losses.flush()
        for ledger_id in range(1, span + 1):
            found = LedgerMetadata(
                ledger_id, LedgerState.CLOSED, 1, 1, 1, "crc32c", KEY, (Fragment(0, ("bookie-1",)),), last, 100
            )
            wanted = [MissingRange(0, 0, missing, missing)] if missing >= 0 else []
            assert await losses.missing_ranges(found) == wanted, ledger_id
        storage.release()

    with patch.object(losses_module, "SPAN_MAX", span):
        asyncio.run(main())


def test_what_lacks_across_steps_of_the_look_is_one_range_unless_something_is_between() -> None:
    """A look in small steps finds the same ranges as one in a single step."""
    span, last = 4, 30
    ensemble = tuple(f"bookie-{i}" for i in range(1, 8))
    host = Host(settings=bookie_settings(block_bytes=1))
    found = LedgerMetadata(LEDGER, LedgerState.CLOSED, 7, 1, 1, "crc32c", KEY, (Fragment(0, ensemble),), last, 100)

    async def main() -> None:
        storage = await host.boot()
        losses = losses_of(storage, host)
        await losses.make_known(found)
        await losses.flush()
        share = [0, 7, 14, 21, 28]  # of the first bookie: in most steps there is none
        assert await losses.missing_ranges(found) == [MissingRange(0, 0, 0, 28)]
        await add(storage, Batch(LEDGER, share[2]))
        await losses.flush()
        assert await losses.missing_ranges(found) == [MissingRange(0, 0, 0, 7), MissingRange(0, 0, 21, 28)]
        for entry_id in (*share[:2], *share[3:]):
            await add(storage, Batch(LEDGER, entry_id))
        await losses.flush()
        assert await losses.missing_ranges(found) == []
        never = dataclasses.replace(found, ledger_id=77)
        assert not await losses.end(never), "it was never here"
        await losses.make_known(never)
        assert not await losses.end(never), "its row isn't in the index"
        storage.release()

    with patch.object(losses_module, "SPAN_MAX", span):
        asyncio.run(main())


def test_what_a_damaged_row_has_lacks_and_holds_up_the_end_of_limbo() -> None:
    host = lost_host()
    described = metadata()

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        losses = losses_of(storage, host)
        await losses.make_known(described)
        await add(storage, Batch(LEDGER, 10, 5), Batch(AFTER, 0))
        await losses.flush()
        await add(storage, Batch(LEDGER, 15, 5))
        await losses.flush()
        store = storage.shards[0].store
        with store.write() as txn:
            sound = txn.get(index.block_key(LEDGER, 15))
            assert sound is not None
            txn.put(index.block_key(LEDGER, 15), b"no row" + sound[6:])
        assert await losses.missing_ranges(described) == [MissingRange(1, 1, 15, 19)]
        assert not await losses.end(described)
        assert LEDGER in await losses.in_limbo()
        with store.write() as txn:
            txn.put(index.block_key(LEDGER, 15), sound)
            other = txn.get(index.ledger_key(AFTER))
            assert other is not None
            txn.put(index.ledger_key(AFTER), b"no row" + other[6:])
        assert await losses.in_limbo() == {LEDGER}, "the next start makes the damaged row anew"
        assert await losses.end(described)
        storage.release()

    asyncio.run(main())


# --- fences -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_what_a_fence_comes_from_survives_a_power_cut(asked: bool, checkpointed: bool) -> None:
    host = lost_host()

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        await storage.states((LEDGER,))
        storage.create(LEDGER, KEY)
        assert storage.ledgers.is_fenced_by_limbo(LEDGER)
        await stored(storage, Batch(LEDGER, 0, 1))
        if asked:
            assert await storage.fence(LEDGER, KEY)  # durable from here on
        if checkpointed:
            await storage.checkpoint()
        host.disk.power_cut()
        for _ in range(2):
            storage = await host.boot()
            state = (await storage.states((LEDGER,)))[LEDGER]
            assert state is not None
            assert (state.fenced, state.limbo, state.fence_of_limbo) == (True, True, not asked)
            await storage.close()

    asyncio.run(main())


def test_a_fence_of_before_the_loss_is_no_fence_of_limbo() -> None:
    """Everything is put in limbo after an unclean stop without a journal; one that was fenced before stays so."""
    host = Host(settings=bookie_settings(journal_write_data=False))

    async def main() -> None:
        storage = await host.boot()
        for ledger_id in (LEDGER, LEDGER + 1):
            await storage.states((ledger_id,))
            storage.create(ledger_id, KEY)
        assert await storage.fence(LEDGER, KEY)
        await storage.checkpoint()
        add(storage, Batch(LEDGER + 1, 0, 1))
        host.disk.power_cut()
        storage = await host.boot()
        assert storage.untrusted
        states = await storage.states((LEDGER, LEDGER + 1))
        found = [(state.fenced, state.limbo, state.fence_of_limbo) for state in states.values() if state is not None]
        assert found == [(True, True, False), (True, True, True)]

    asyncio.run(main())


@pytest.mark.parametrize("entries", [0, 3])
def test_a_row_without_a_key_gets_that_of_the_metadata_unless_it_has_entries(entries: int) -> None:
    """A replay makes it of an ended life, whose key it doesn't know: nothing could ever be copied here."""
    host = lost_host()

    async def main() -> None:
        storage = await host.boot(rebuild=True)
        assert (await storage.states((LEDGER,)))[LEDGER] is None
        storage.create(LEDGER, b"")
        if entries:
            await stored(storage, Batch(LEDGER, 10, entries))
        await losses_of(storage, host).make_known(metadata())
        for _ in range(2):
            info = (await storage.states((LEDGER,)))[LEDGER]
            assert info is not None
            assert (info.key, info.limbo, info.fenced) == (b"" if entries else KEY, True, True)
            await storage.close()
            storage = await host.boot()
        storage.release()

    asyncio.run(main())
