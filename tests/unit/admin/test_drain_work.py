"""A bookie leaves its cluster while it serves: all that it has goes elsewhere, and only then it is taken out of it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, pool_of
from tests.in_process import DEADLINE_S, ROOT, InProcess, add, contents, rewrite, runtime_here
from tests.stepping import naming as naming_step
from tests.stepping import run_to
from tests.unit.client.support import payload
from tests.unit.replication.repairing import hanging_copies, locked, whole
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.unit.replication.worker.test_worker import healer
from tests.waiting import eventually

from bkpy.admin.decommission import Decommission
from bkpy.admin.drain import BookieDrain, DrainProgress
from bkpy.bookie.drain_watch import DrainWatch
from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, ConfigError, MetadataConflictError, MetadataUnavailableError
from bkpy.metadata.bookies.cookies import read_cookie
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.bookies.naming import NamingScan
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import LossReason
from bkpy.metadata.store.memory import MemorySession
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.draining import Tenure
from bkpy.protocol.wire.messages import Flags, Status
from bkpy.protocol.wire.records import RecordCodec
from bkpy.replication.worker.fragment_copy import FragmentCopy

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.bookies.naming import ReferencingLedgers

QUICK: dict[str, Any] = {
    "drain_look_interval_s": 0.02,
    "decommission_patience_s": 0.2,
    "repair_pause_min_s": 0.02,
    "repair_pause_max_s": 0.1,
    "open_ledger_grace_s": 0.3,
}


def settings(**given: Any) -> RecoverySettings:
    return RecoverySettings(**{**QUICK, **given})


def drains(client: Client) -> Drains:
    cluster = cluster_of(client)
    return Drains(cluster.store, cluster.root, cluster.store.runtime)


async def drain(client: Client, bookie_id: str, **given: Any) -> DrainProgress:
    one = BookieDrain(replication_context(client), bookie_id, settings(**given))
    await one.begin()
    async with asyncio.timeout(DEADLINE_S):
        return await one.run(lambda progress: None)


async def refuses(client: Client, bookie_id: str) -> None:
    """Return when the bookie has said so."""
    async with asyncio.timeout(DEADLINE_S):
        while (found := await drains(client).read(bookie_id)) is None or not found.refuses:
            await asyncio.sleep(0.005)


async def decommission(client: Client, bookie_id: str, *, lost: bool = False) -> ReferencingLedgers:
    async with asyncio.timeout(DEADLINE_S):
        return await Decommission(replication_context(client), bookie_id, settings(), lost=lost).run(
            lambda looked: None
        )


async def known(cluster: InProcess, bookie_id: str) -> bool:
    return await read_cookie(cluster.tree.session(), ROOT, bookie_id) is not None


def reason(cluster: InProcess, bookie_id: str) -> str:
    """Why the bookie is read-only, as it says to others."""
    path = f"{ROOT}/available/readonly/{bookie_id}"
    found = json.loads(cluster.tree.node(path).data)["read_only_reason"] if path in cluster.tree.paths else ""
    return str(found)


async def stored(client: Client, bookie_id: str, ledger_id: int, *, recovery: bool) -> int | list[int]:
    """What a bookie answers to one entry, sent behind everybody's back."""
    metadata = await client.ledger_metadata(ledger_id)
    pool = pool_of(client)
    pool.add_key(ledger_id, metadata.ledger_key)
    parts: list[Any] = []
    RecordCodec(ledger_id).encode(parts, [b"x"], 1000, 1, -1, [1])
    record = b"".join(parts)
    columns = [int(Flags.RECOVERY) if recovery else 0, [ledger_id], [1000], [1], 1, [len(record)]]
    return await add(pool.channel(bookie_id), columns, record, pool)


@pytest.mark.thorough
@pytest.mark.scenario(60)
async def test_all_goes_elsewhere_under_load_and_then_the_bookie_does(five: InProcess) -> None:
    client = await five.client()
    writers = [await closed(client, 20) for _ in range(8)]
    victim = writers[0].ensemble[1]
    idle = [await client.create_ledger() for _ in range(6)]
    for writer in idle:
        await writer.append(payload(0))
    busy = await client.create_ledger()
    over = asyncio.Event()

    async def load() -> int:
        count = 0
        while not over.is_set():
            assert await busy.append(payload(count)) == count
            count += 1
        return count

    loading = asyncio.create_task(load())
    progress = await drain(await five.client(), victim)
    assert (progress.draining, progress.refuses, progress.ledgers, progress.blocked) == (True, True, 0, {})
    assert victim not in client.bookies
    for writer in (*idle, busy):
        assert writer.usable
        assert victim not in writer.ensemble
    other = await closed(client, 3)
    assert victim not in other.ensemble
    # It still answers, and takes nothing from anybody.
    service = five.service(victim)
    assert (service.leaves, service.read_only) == (True, True)
    for recovery in (False, True):
        assert await stored(client, victim, writers[0].ledger_id, recovery=recovery) == Status.READ_ONLY
    looked = await decommission(client, victim)
    assert looked.scan.clear
    assert not await known(five, victim)
    assert victim not in await drains(client).bookies()
    await eventually(lambda: reason(five, victim) == "decommissioned")
    assert await stored(client, victim, writers[0].ledger_id, recovery=True) == Status.READ_ONLY
    over.set()
    count = await loading
    for writer in (*idle, busy):
        await writer.close()
    for writer in (*writers, *idle, busy, other):
        metadata = await whole(client, writer.ledger_id)
        assert not any(victim in fragment.bookies for fragment in metadata.fragments)
    assert await contents(client, busy.ledger_id) == [payload(i) for i in range(count)]


@pytest.mark.scenario(60)
async def test_it_is_refused_while_ledgers_name_the_bookie_and_says_how_many(five: InProcess) -> None:
    client = await five.client()
    writers = [await closed(client, 3) for _ in range(5)]
    victim = writers[0].ensemble[0]
    with pytest.raises(ConfigError, match="isn't draining"):
        await decommission(client, victim)
    with pytest.raises(BookieUnavailableError, match="no such bookie"):
        await decommission(client, "unheard-of")
    with pytest.raises(ConfigError, match="it isn't lost"):
        await decommission(client, victim, lost=True)
    await BookieDrain(replication_context(client), victim, settings()).begin()
    await refuses(client, victim)
    looked = await decommission(client, victim)
    named = sum(victim in writer.ensemble for writer in writers)
    assert (looked.scan.named, looked.scan.unsettled, looked.ledgers) == (named, 0, 5)
    assert await known(five, victim)


async def test_it_stays_when_that_is_cancelled(five: InProcess) -> None:
    client = await five.client()
    writers = [await closed(client, 3) for _ in range(4)]
    victim = writers[0].ensemble[0]
    one = BookieDrain(replication_context(client), victim, settings())
    assert await one.cancel() is False
    await one.begin()
    await refuses(client, victim)
    async with healer(five) as worker:
        named = [writer.ledger_id for writer in writers if victim in writer.ensemble]
        for ledger_id in named:
            await worker.mark(ledger_id, victim, reason=LossReason.DRAINING)
        assert await one.cancel() is True
        await eventually(lambda: victim in client.bookies)
        worker.start()
        await worker.unmarked()
        assert worker.worker.count.fragments == 0
    for ledger_id in named:
        assert victim in (await client.ledger_metadata(ledger_id)).fragments[0].bookies
    assert await stored(client, victim, named[0], recovery=True) == Status.OK
    assert not five.service(victim).read_only


@pytest.mark.parametrize("reason", [LossReason.CHECK, LossReason.REBUILDING])
async def test_what_it_lacks_is_copied_though_draining_it_was_cancelled(five: InProcess, reason: LossReason) -> None:
    """It was found to lack something before it was to leave: that is so when it stays after all."""
    client = await five.client()
    writer = await closed(client, 20)
    victim = writer.ensemble[0]
    one = BookieDrain(replication_context(client), victim, settings())
    async with healer(five) as worker:
        await worker.mark(writer.ledger_id, victim, reason=reason)
        await one.begin()
        await refuses(client, victim)
        await worker.mark(writer.ledger_id, victim, reason=LossReason.DRAINING)
        assert await one.cancel() is True
        await eventually(lambda: victim in client.bookies)
        worker.start()
        await worker.unmarked()
    assert victim not in (await whole(client, writer.ledger_id)).fragments[0].bookies


async def test_a_lost_bookie_that_can_not_be_decommissioned_is_not_left_to_drain(five: InProcess) -> None:
    """Nothing was changed, as it is said: should it come back, it takes entries as before."""
    client = await five.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    await lose(five, client, victim)
    assert (await decommission(client, victim, lost=True)).named == (writer.ledger_id,)
    assert await drains(client).read(victim) is None
    await drain(client, victim)
    assert (await decommission(client, victim, lost=True)).scan.clear


async def test_a_decommissioning_that_is_cancelled_at_any_step_leaves_no_draining(five: InProcess) -> None:
    """A bookie that is said to be lost, and comes back all the same, takes entries as before."""
    client = await five.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    await lose(five, client, victim)
    context = replication_context(client)
    for late in (False, True):
        for at in itertools.count():
            with naming_step("decommission", at, late):
                one = Decommission(context, victim, settings(), lost=True)
                reached = await run_to(one.run(lambda looked: None), at, late, None)
                assert await drains(client).read(victim) is None
            if not reached:
                break


async def test_a_ledger_whose_metadata_can_not_be_read_counts_as_naming_the_bookie(five: InProcess) -> None:
    """Its decommissioning would be refused: the draining has not ended, and says why."""
    client = await five.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    cluster = cluster_of(client)
    path = cluster.catalog.path_of(writer.ledger_id)
    sound, version = await cluster.store.get(path)
    version = await cluster.store.put(path, b"garbage", version)
    told: list[DrainProgress] = []
    one = BookieDrain(replication_context(await five.client()), victim, settings())
    await one.begin()
    running = asyncio.create_task(one.run(told.append))
    await refuses(client, victim)
    await asyncio.sleep(1.0)
    assert not running.done()
    assert (told[-1].ledgers, told[-1].blocked.keys()) == (1, {writer.ledger_id})
    assert "count as naming the bookie" in told[-1].missing["unreadable"]
    await cluster.store.put(path, sound, version)
    async with asyncio.timeout(DEADLINE_S):
        done = await running
    assert (done.ledgers, done.missing) == (0, {})
    assert victim not in (await whole(client, writer.ledger_id)).fragments[0].bookies
    assert (await decommission(client, victim)).scan.clear


async def test_the_mark_of_one_that_went_away_meanwhile_is_kept(five: InProcess) -> None:
    """Draining is cancelled while the bookie is away: perhaps that mark alone says that it is lost."""
    client = await five.client()
    writer = await closed(client, 20)
    victim = writer.ensemble[0]
    async with healer(five) as worker:
        await worker.mark(writer.ledger_id, victim, reason=LossReason.DRAINING)
        await lose(five, client, victim)
        await eventually(lambda: victim not in worker.bookies())
        worker.start()
        await worker.unmarked()
    assert victim not in (await whole(client, writer.ledger_id)).fragments[0].bookies


async def test_it_is_draining_after_a_restart_before_it_serves_anybody(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await five.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    await BookieDrain(replication_context(client), victim, settings()).begin()
    await refuses(client, victim)
    monkeypatch.setattr("bkpy.bookie.drain_watch.DrainWatch.run", lambda watch: asyncio.sleep(0))
    await five.restart(victim)
    assert five.service(victim).leaves
    await pool_of(client).channel(victim).connect(again=True)
    assert await stored(client, victim, writer.ledger_id, recovery=True) == Status.READ_ONLY


async def naming(client: Client, bookie_id: str) -> LedgerWriter:
    """The writer of a ledger without entries that names the bookie."""
    while True:
        writer = await client.create_ledger()
        if bookie_id in writer.ensemble:
            return writer


@pytest.mark.scenario(60)
@pytest.mark.parametrize("alive", [True, False])
async def test_open_ledgers_of_several_fragments_and_empty_ones_let_it_go(five: InProcess, alive: bool) -> None:
    """Their writers leave it; those of writers that are gone are closed."""
    client = await five.client()
    several = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    victim, other = several.ensemble
    await several.append(payload(0))
    await lose(five, client, other)
    await several.append(payload(1))
    await five.start_node(other)
    assert [victim in fragment.bookies for fragment in several.metadata.fragments] == [True, True]
    opened, none = await naming(client, victim), await naming(client, victim)
    await none.close()
    if not alive:
        for writer in (several, opened):
            writer.abandon()
    progress = await drain(await five.client(), victim)
    assert (progress.ledgers, progress.blocked) == (0, {})
    assert (await decommission(client, victim)).scan.clear
    await five.node(victim).stop()
    for writer in (several, opened):
        state = (await client.ledger_metadata(writer.ledger_id)).state
        assert state is (LedgerState.OPEN if alive else LedgerState.CLOSED)
        if alive:
            await writer.append(payload(writer.last_add_confirmed + 1))
            await writer.close()
    for writer, count in ((several, 2 + alive), (opened, int(alive)), (none, 0)):
        metadata = await whole(client, writer.ledger_id)
        assert not any(victim in fragment.bookies for fragment in metadata.fragments)
        assert await contents(client, writer.ledger_id) == [payload(i) for i in range(count)]


@pytest.mark.scenario(60)
async def test_ledgers_in_recovery_are_settled_first(five: InProcess) -> None:
    """A recovery that has written back to the bookie would name it, when it closes its ledger."""
    client = await five.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    writer.abandon()
    (victim,) = sorted(set("abcde") - set(writer.ensemble))[:1]
    await rewrite(client, writer.ledger_id, state=LedgerState.IN_RECOVERY)
    await BookieDrain(replication_context(client), victim, settings()).begin()
    await refuses(client, victim)
    assert (await decommission(client, victim)).scan.clear
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED


async def test_what_can_not_be_settled_is_counted(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    writer.abandon()
    (victim, *_) = sorted(set("abcde") - set(writer.ensemble))
    await rewrite(client, writer.ledger_id, state=LedgerState.IN_RECOVERY)
    await BookieDrain(replication_context(client), victim, settings()).begin()
    await refuses(client, victim)
    await lose(five, client, *writer.ensemble[:2])
    looked = await decommission(client, victim)
    assert (looked.scan.named, looked.scan.unsettled) == (0, 1)
    assert looked.unsettled == (writer.ledger_id,)
    assert await known(five, victim)


async def test_who_moves_copies_meanwhile_is_waited_for(five: InProcess) -> None:
    client = await five.client()
    cluster = cluster_of(client)
    locks = LedgerLocks(cluster.store, cluster.root, "mover", cluster.store.runtime)
    lock = await locks.take(7)
    assert isinstance(lock, LedgerLock)
    await BookieDrain(replication_context(client), "a", settings()).begin()
    await refuses(client, "a")
    with pytest.raises(MetadataConflictError, match="1 ledgers for too long"):
        await decommission(client, "a")
    leaving = asyncio.create_task(decommission(client, "a"))
    await asyncio.sleep(0.05)
    another = await locks.take(8)  # by somebody who finds that the bookie refuses
    await locks.release(lock)
    assert (await leaving).scan.clear
    assert isinstance(another, LedgerLock)


async def test_one_that_never_comes_back_goes_when_nothing_names_it(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    await lose(five, client, victim)
    await BookieDrain(replication_context(client), victim, settings()).begin()
    with pytest.raises(ConfigError, match="isn't known to refuse entries yet"):
        await decommission(client, victim)
    looked = await decommission(client, victim, lost=True)
    assert looked.named == (writer.ledger_id,)
    await drain(client, victim)
    assert (await decommission(client, victim, lost=True)).scan.clear
    assert not await known(five, victim)


async def test_without_other_bookies_nothing_fails_and_it_is_said_what_is_in_the_way(cluster: InProcess) -> None:
    client = await cluster.client(leave_look_interval_s=0.02, no_bookies_timeout_s=0.0)
    idle = await client.create_ledger()
    await idle.append(payload(0))
    done = await closed(client, 3)
    draining = asyncio.create_task(drain(await cluster.client(), "b"))
    await refuses(client, "b")
    await asyncio.sleep(1.0)  # longer than the grace period: its writer has nowhere to go, and isn't ended for nothing
    progress = await BookieDrain(replication_context(client), "b", settings()).look()
    assert progress.ledgers == 2
    assert all("no writable bookie" in why for why in progress.blocked.values())
    assert progress.blocked.keys() == {idle.ledger_id, done.ledger_id}
    assert "b" in idle.ensemble
    await idle.append(payload(1))
    await cluster.start_node("d")
    async with asyncio.timeout(DEADLINE_S):
        await draining
    assert idle.usable
    assert "b" not in idle.ensemble
    await idle.append(payload(2))
    await idle.close()
    assert await contents(client, idle.ledger_id) == [payload(i) for i in range(3)]


async def test_what_is_missing_is_said_at_once_with_ways_out_and_exact_bytes(cluster: InProcess) -> None:
    client = await cluster.client()
    writers = [await closed(client, 10) for _ in range(3)]
    size = sum([(await client.ledger_metadata(writer.ledger_id)).length for writer in writers])
    assert size > 0
    told: list[DrainProgress] = []
    tool = await cluster.client()
    one = BookieDrain(replication_context(tool), "b", settings())
    await one.begin()
    running = asyncio.create_task(one.run(told.append))
    await eventually(lambda: bool(told))
    first = told[0]
    assert "Add a bookie" in first.missing["bookies"]
    assert "bkpy bookie drain b --cancel" in first.missing["bookies"]
    await eventually(lambda: len(told) > 1)
    assert (told[1].bytes, told[1].bytes_exact, told[1].entries) == (size, True, 30)
    assert told[1].missing.keys() >= {"bookies"}
    await cluster.start_node("d")
    async with asyncio.timeout(DEADLINE_S):
        done = await running
    assert (done.missing, done.ledgers, done.bytes) == ({}, 0, 0)


async def test_that_the_bookie_does_not_run_is_said(five: InProcess) -> None:
    client = await five.client()
    await closed(client, 3)
    await lose(five, client, "e")
    one = BookieDrain(replication_context(client), "e", settings())
    await one.begin()
    assert "start it" in (await one.look()).missing["bookie"]


async def test_what_comes_to_name_the_bookie_while_it_drains_goes_as_well(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose list of bookies is old; nothing is stored on the bookie, but it is named."""
    client = await five.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    later: list[int] = []
    tool = await five.client()
    one = BookieDrain(replication_context(tool), victim, settings())
    await one.begin()

    look_again = BookieDrain.look

    async def look(drain: BookieDrain, *args: Any, **more: Any) -> DrainProgress:
        found = await look_again(drain, *args, **more)
        if not later:
            new = await closed(client, 3)
            later.append(new.ledger_id)
            metadata = await client.ledger_metadata(new.ledger_id)
            if victim not in metadata.fragments[0].bookies:
                first = metadata.fragments[0]
                fragment = dataclasses.replace(first, bookies=(victim, *first.bookies[1:]))
                await rewrite(client, new.ledger_id, fragments=(fragment,))
        return found

    monkeypatch.setattr(BookieDrain, "look", look)
    async with asyncio.timeout(DEADLINE_S):
        done = await one.run(lambda progress: None)
    assert done.ledgers == 0
    for ledger_id in (writer.ledger_id, *later):
        metadata = await client.ledger_metadata(ledger_id)
        assert not [fragment for fragment in metadata.fragments if victim in fragment.bookies]


async def test_an_interrupted_drain_is_taken_up_again(five: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await five.client()
    writers = [await closed(client, 20) for _ in range(6)]
    victim = writers[0].ensemble[0]
    run = FragmentCopy.run
    copied = asyncio.Event()

    async def slowly(copy: FragmentCopy) -> Any:
        try:
            return await run(copy)
        finally:
            copied.set()

    monkeypatch.setattr(FragmentCopy, "run", slowly)
    other = await five.client()
    first = asyncio.create_task(drain(other, victim, copies_at_once=1))
    await copied.wait()
    first.cancel()
    await asyncio.wait([first])
    await other.close()
    await cluster_of(other).store.close()  # and its locks with it
    assert (await drain(await five.client(), victim)).ledgers == 0
    assert (await decommission(client, victim)).scan.clear
    for writer in writers:
        assert victim not in (await whole(client, writer.ledger_id)).fragments[0].bookies


@pytest.mark.parametrize("by_another_client", [False, True])
async def test_a_drain_that_ends_inside_of_a_ledger_leaves_it_to_others(
    five: InProcess, monkeypatch: pytest.MonkeyPatch, by_another_client: bool
) -> None:
    """The client that has drained goes on, and with it the session that holds its locks."""
    client = await five.client()
    writer = await closed(client, 20)
    victim = writer.ensemble[0]
    with hanging_copies(monkeypatch) as hangs:
        draining = asyncio.create_task(drain(client, victim))
        await hangs.wait()
        assert locked(five) == [writer.ledger_id]
        if by_another_client:
            await BookieDrain(replication_context(await five.client()), victim, settings()).cancel()
        else:
            draining.cancel()
        await asyncio.wait([draining])
    await eventually(lambda: not locked(five))
    assert (await drain(await five.client(), victim)).ledgers == 0
    assert victim not in (await whole(client, writer.ledger_id)).fragments[0].bookies


async def test_a_drain_that_was_cancelled_and_begun_again_is_another_one(five: InProcess) -> None:
    """What the bookie has said in the one time isn't said in the other, whatever happens in between."""
    client = await five.client()
    one = drains(client)
    await BookieDrain(replication_context(client), "a", settings()).begin()
    await refuses(client, "a")
    old = await one.read("a")
    assert old is not None
    await one.cancel(old)
    await BookieDrain(replication_context(client), "a", settings()).begin()
    await refuses(client, "a")
    new = await one.read("a")
    assert new is not None
    assert (old.token != new.token, old.node_version) == (True, new.node_version)
    cookie = await read_cookie(cluster_of(client).store, ROOT, "a")
    assert cookie is not None
    await one.retire(old, cookie[1])
    assert await known(five, "a")
    assert (await one.read("a")) == dataclasses.replace(new)


async def test_a_scan_that_outlives_its_session_counts_for_nothing(five: InProcess) -> None:
    """Another session may have got another server, which lags behind."""
    client = await five.client()
    writer = await closed(client, 3)
    (victim, *_) = sorted(set("abcde") - set(writer.ensemble))
    await BookieDrain(replication_context(client), victim, settings()).begin()
    await refuses(client, victim)
    store = cluster_of(client).store
    assert isinstance(store, MemorySession)
    session = store

    def expire(count: int) -> None:
        session.expire()

    agreed: list[ReferencingLedgers] = []
    with pytest.raises(MetadataUnavailableError, match="has ended during the scan"):
        await Decommission(replication_context(client), victim, settings(), lost=False).run(agreed.append, expire)
    assert not agreed
    assert await known(five, victim)


async def test_a_lost_bookie_that_is_back_before_it_goes_stays(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back when all ledgers have been looked at, and takes entries."""
    client = await five.client()
    writer = await closed(client, 3)
    (victim, *_) = sorted(set("abcde") - set(writer.ensemble))
    await lose(five, client, victim)
    look = NamingScan.look

    async def look_and_come_back(scan: NamingScan, *args: Any, **options: Any) -> ReferencingLedgers:
        found = await look(scan, *args, **options)
        await five.start_node(victim)
        return found

    monkeypatch.setattr(NamingScan, "look", look_and_come_back)
    with pytest.raises(ConfigError, match="it isn't lost"):
        await decommission(client, victim, lost=True)
    assert await known(five, victim)
    await eventually(lambda: victim in client.bookies)


async def test_a_bookie_says_that_it_refuses_only_when_it_does(five: InProcess) -> None:
    """Whoever decommissions it relies on that."""
    client = await five.client()
    await lose(five, client, "a")
    await BookieDrain(replication_context(client), "a", settings()).begin()
    asked, go = asyncio.Event(), asyncio.Event()

    async def stand(tenure: Tenure) -> None:
        assert tenure is Tenure.LEAVES
        asked.set()
        await go.wait()

    watch = DrainWatch(five.node("a").settings, five.tree.session(), ROOT, runtime_here(), stand)
    watching = asyncio.create_task(watch.run())
    await asked.wait()
    found = await drains(client).read("a")
    assert found is not None
    assert not found.refuses
    go.set()
    await refuses(client, "a")
    watching.cancel()
    await asyncio.wait([watching])
