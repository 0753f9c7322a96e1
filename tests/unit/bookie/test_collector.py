"""Collection by real bookies: what goes, what stays, and what whoever asks for it is told, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import aiohttp
import pytest
from tests.examples import stride
from tests.hooks import cluster_of, collector_of, pool_of, reload_with
from tests.in_process import DEADLINE_S, ROOT, InProcess, rewrite, runtime_here, stored
from tests.unit.metadata.store.troubled import AWAY, Troubled
from tests.waiting import eventually

from bkpy.bookie.collector import CHANGED, DAMAGED, LOCK_LOST, LOCKED, STORED_TO, phase
from bkpy.config.reloading import take_over
from bkpy.errors import LedgerFencedError, MetadataUnavailableError, StorageFailedError, UnauthorizedError
from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.store.store import Delete, Put
from bkpy.protocol.ledger.ledger_metadata import Fragment
from bkpy.protocol.repair.garbage_collection import ProbeState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import walk
from bkpy.runtime.http_hosts import is_local
from bkpy.storage.index.index import ledger_key
from bkpy.storage.space.deletion import HiddenLedger, hide

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bkpy.bookie.collector import CollectionRun, Collector
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.ledgers.metadata_probe import ProbeResult
    from bkpy.metadata.store.memory import MemoryStore
    from bkpy.storage.engine import LedgerStorage

PAYLOADS = [b"one", b"two", b"three"]


class Collecting(InProcess):
    """Bookies that collect when they are told to. The session of `a` goes wrong as its script says."""

    async def start_all(self, names: str = "abcd", **settings: Any) -> None:
        await self.start("", **{"gc_interval_s": 0.0, "metadata_retry_pause_s": 0.001, "metrics_port": 0, **settings})
        for name in names:
            await self.start_node(name)

    async def start_node(self, name: str) -> Any:
        session = self.tree.session
        if name == "a":
            self.session = Troubled(self.tree)
            self.tree.session = lambda **options: self.session  # type: ignore[method-assign]
        try:
            return await super().start_node(name)
        finally:
            self.tree.session = session  # type: ignore[method-assign]

    def collector(self, name: str = "a") -> Collector:
        return collector_of(self.node(name))

    async def collect(self, name: str = "a", **options: Any) -> CollectionRun:
        run = self.collector(name).begin(**options)
        assert run is not None, "one goes on"
        await eventually(lambda: run.seconds is not None)
        return run

    async def held(self, name: str = "a") -> list[int]:
        return await self.storage(name).held_ledgers(-1, 1000)

    def locks(self, holder: str = "worker") -> LedgerLocks:
        return LedgerLocks(self.tree.session(), ROOT, holder, runtime_here())

    def lock_nodes(self) -> list[str]:
        return [node for node in self.tree.paths if "/locks/" in node]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Collecting]:
    local = Collecting(tmp_path)
    await local.start_all()
    yield local
    await local.stop()


async def closed_ledger(client: Client, bookies: str = "abc") -> int:
    """A closed ledger on all of these bookies, which are the first in the alphabet."""
    size = len(bookies)
    async with await client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=size) as writer:
        await writer.append_batch(PAYLOADS)
    return writer.ledger_id


def backup_of(tree: MemoryStore) -> Callable[[], None]:
    """Keeps all nodes as they are; calling the result puts them back."""
    kept = {path: copy.deepcopy(tree.node(path)) for path in tree.paths}

    def put_back() -> None:
        for path in sorted(tree.paths, key=len, reverse=True):  # children first
            if path not in kept:
                tree.apply(Delete(path), 0)
        for path, node in kept.items():
            vars(tree.node(path)).update(vars(copy.deepcopy(node)))

    return put_back


async def spare_on_a(cluster: Collecting, client: Client) -> int:
    """A closed ledger with a copy on every bookie, of which the metadata know all but a's."""
    ledger_id = await closed_ledger(client, "abcd")
    metadata = (await cluster_of(client).catalog.read(ledger_id))[0]
    bookies = tuple(name for name in metadata.fragments[0].bookies if name != "a")
    sizes = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 3}
    await rewrite(client, ledger_id, fragments=(Fragment(0, bookies),), **sizes)
    return ledger_id


async def ask(client: Client, ledger_id: int, name: str = "a") -> tuple[list[int], bool]:
    """What the bookie says of the ledger's entries: their ids, and whether it can't tell of some."""
    metadata = None
    with contextlib.suppress(Exception):
        metadata = (await cluster_of(client).catalog.read(ledger_id))[0]
    if metadata is not None:
        pool_of(client).add_key(ledger_id, metadata.ledger_key)
    head = m.pack([0, ledger_id, 0, 100, 1 << 20])
    reply = await pool_of(client).channel(name).call(Op.READ, head, timeout_s=DEADLINE_S)
    status = m.reply_status(reply.head)
    if status == Status.NO_SUCH_LEDGER:
        return [], False
    assert status == Status.OK
    return [header.entry_id for header in walk(reply.body)], bool(m.decode_read_reply(reply.head).unknown)


CALLS_OF_A_LOOK = (
    7  # at a ledger that is gone: a sync, the cluster, the ledger twice, and three for where new ids come from
)
THERE = ([0, 1, 2], False)
HIDDEN = ([], True)
DENIED = ([], False)


# --- what is gone -----------------------------------------------------------------------------------------------------


async def test_a_ledger_that_was_deleted_goes_and_others_stay(cluster: Collecting) -> None:
    client = await cluster.client()
    kept, gone = await closed_ledger(client), await closed_ledger(client)
    await client.delete_ledger(gone)
    for name in cluster.nodes:
        bookie = name.settings.bookie_id
        had = set(await cluster.held(bookie))
        run = await cluster.collect(bookie)
        assert (run.failed, run.gone, run.over_replicated, run.examined) == ("", gone in had, 0, len(had))
        assert run.collected == [gone] * (gone in had)
        assert set(await cluster.held(bookie)) == had - {gone}
        if gone in had:
            assert await ask(client, gone, bookie) == DENIED
        if kept in had:
            assert await ask(client, kept, bookie) == THERE
    text = cluster.service("a").metrics.render().decode()
    assert 'bkpy_bookie_gc_runs_total{outcome="done"} 1.0' in text
    assert "bkpy_bookie_gc_last_run_done 1.0" in text


async def deleted_while_it_is_written(cluster: Collecting, client: Client) -> LedgerWriter:
    writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4)
    await writer.append(b"before")
    await client.delete_ledger(writer.ledger_id)
    return writer


@pytest.mark.scenario(21)
@pytest.mark.scenario(51)
async def test_a_writer_of_a_collected_ledger_is_refused(cluster: Collecting) -> None:
    # A last add confirmed that comes behind the hiding would keep the ledger until the next run.
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await deleted_while_it_is_written(cluster, client)
    await writer.append(b"nobody has noticed yet")
    assert (await cluster.collect()).gone == 1
    with pytest.raises(LedgerFencedError):
        await writer.append(b"after")
    await cluster.restart("a")
    assert await cluster.held() == []
    assert (await cluster.collect()).gone == 0


async def test_a_dry_run_deletes_nothing(cluster: Collecting) -> None:
    client = await cluster.client()
    gone = await closed_ledger(client, "abcd")
    spare = await spare_on_a(cluster, client)
    await client.delete_ledger(gone)
    run = await cluster.collect(dry_run=True)
    assert (run.gone, run.over_replicated, run.collected, run.failed) == (1, 1, [gone, spare], "")
    assert await cluster.held() == [gone, spare]
    assert not cluster.lock_nodes()


async def test_more_ledgers_than_a_page_has(cluster: Collecting) -> None:
    cluster.settings |= {"gc_page_ledgers": 2, "gc_ledgers_at_once": 2}
    await cluster.restart("a")
    client = await cluster.client()
    ids = [await closed_ledger(client, "abcd") for _ in range(7)]
    for ledger_id in ids[::2]:
        await client.delete_ledger(ledger_id)
    run = await cluster.collect()
    assert (sorted(run.collected), run.examined, run.failed) == (ids[::2], 7, "")
    assert await cluster.held() == ids[1::2]


# --- what stays -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(51)
async def test_a_listing_that_fails_collects_nothing_of_its_page(cluster: Collecting) -> None:
    client = await cluster.client()
    ids = [await closed_ledger(client, "abcd") for _ in range(3)]
    for ledger_id in ids:
        await client.delete_ledger(ledger_id)
    listings = 0
    while True:
        cluster.session.script.clear()
        cluster.session.script.extend([None] * (CALLS_OF_A_LOOK + listings) + [AWAY])
        run = await cluster.collect(dry_run=True)
        if run.failed != "listing":
            break
        assert (run.gone, run.examined) == (0, 0)
        assert "could not be listed" in run.failure
        listings += 1
    assert listings == 6  # the sync, and five levels of nodes
    cluster.session.script.clear()
    assert (await cluster.collect()).gone == 3


@pytest.mark.scenario(51)
async def test_a_ledger_that_a_listing_lacks_is_looked_for_before_it_is_deleted(
    cluster: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    ledger_id = await closed_ledger(client, "abcd")

    async def lagging(path: str) -> list[str]:
        return []

    monkeypatch.setattr(cluster.session, "children", lagging)
    run = await cluster.collect()
    assert (run.gone, run.failed, dict(run.kept)) == (0, "", {ProbeState.NAMED: 1})
    assert await ask(client, ledger_id) == THERE


@pytest.mark.scenario(51)
async def test_a_ledger_that_is_created_during_a_listing(cluster: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client()
    await client.delete_ledger(await closed_ledger(client, "abcd"))
    children, created = cluster.session.children, []

    async def meanwhile(path: str) -> list[str]:
        names = await children(path)
        if not created:
            created.append(await closed_ledger(client, "abcd"))
        return names

    monkeypatch.setattr(cluster.session, "children", meanwhile)
    run = await cluster.collect()
    assert (run.gone, run.failed) == (1, "")
    assert await cluster.held() == created
    assert await ask(client, created[0]) == THERE


@pytest.mark.scenario(51)
async def test_in_a_store_that_was_put_back_nothing_is_collected(
    cluster: Collecting, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client()
    gone = await closed_ledger(client, "abcd")
    await client.delete_ledger(gone)
    spare = await spare_on_a(cluster, client)
    put_back = backup_of(cluster.tree)
    newer = [await closed_ledger(client, "abcd") for _ in range(3)]
    held = await cluster.held()
    assert held == [gone, spare, *newer]
    put_back()
    for dry_run in (True, False):
        run = await cluster.collect(dry_run=dry_run)
        assert (run.failed, run.gone, run.over_replicated, run.examined) == ("older", 0, 0, 0)
        assert f"next ledger id is {newer[0]}, and ledger {newer[-1]} is here" in run.failure
        assert "restore the newer state, or see" in run.failure
    # Clients go on, and the ids are given out again: that makes the store no newer.
    again = [await closed_ledger(await cluster.client(), "bcd") for _ in range(4)]
    assert again[:3] == newer
    await client.delete_ledger(newer[0])
    assert (await cluster.collect()).failed == "older"
    assert set(held) <= set(await cluster.held())
    assert 'bkpy_bookie_gc_runs_total{outcome="older"} 3.0' in cluster.service("a").metrics.render().decode()
    refusals = [record for record in caplog.records if "garbage collection refuses to go on" in record.message]
    assert [record.levelname for record in refusals] == ["ERROR"] * 3
    # Started again, it goes by what there is.
    await cluster.restart("a")
    run = await cluster.collect()
    assert run.failed == ""
    assert {gone, newer[0], spare} <= set(run.collected)


@pytest.mark.scenario(51)
async def test_a_run_that_a_store_is_put_back_under_collects_nothing(cluster: Collecting) -> None:
    client = await cluster.client()
    put_back = backup_of(cluster.tree)
    drawn, newer = await closed_ledger(client, "abcd"), await closed_ledger(client, "abcd")
    looked = MetadataProbe.look
    states = []

    async def look(probe: MetadataProbe, ledger_id: int, *arguments: Any, **options: Any) -> ProbeResult:
        seen = await looked(probe, ledger_id, *arguments, **options)
        if not states:  # the store was as new as the bookie when the run began
            put_back()
            cluster.session.expire()
            again = await closed_ledger(client, "bcd")
            assert again == drawn
            await client.delete_ledger(again)
        states.append(seen.state)
        return seen

    with patch.object(MetadataProbe, "look", look):
        run = await cluster.collect()
    assert (run.gone, run.failed) == (0, "metadata")
    assert run.failure.endswith("the session with the metadata store has ended during the run")
    assert states[0] is ProbeState.NAMED
    assert ProbeState.NO_LEDGER in states
    assert await cluster.held() == [drawn, newer]
    assert (await cluster.collect()).failed == "older"


@pytest.mark.scenario(51)
@pytest.mark.scenario(53)
async def test_in_another_cluster_nothing_is_collected(cluster: Collecting) -> None:
    client = await cluster.client()
    ids = [await closed_ledger(client, "abcd") for _ in range(2)]
    for ledger_id in ids:
        await client.delete_ledger(ledger_id)
    node = cluster.tree.node(f"{ROOT}/INSTANCEID")
    cluster.tree.apply(Put(f"{ROOT}/INSTANCEID", b"another", node.version), 0)
    run = await cluster.collect()
    assert (run.gone, run.failed) == (0, "foreign")
    assert await cluster.held() == ids


async def test_metadata_that_can_not_be_read_keep_their_ledger(cluster: Collecting) -> None:
    client = await cluster.client()
    ledger_id = await closed_ledger(client, "abcd")
    path = cluster_of(client).catalog.path_of(ledger_id)
    cluster.tree.apply(Put(path, b"{", cluster.tree.node(path).version), 0)
    run = await cluster.collect()
    assert (run.gone, run.over_replicated, run.failed, dict(run.kept)) == (0, 0, "", {ProbeState.UNREADABLE: 1})
    assert await cluster.held() == [ledger_id]


async def test_a_ledger_that_may_not_be_read_keeps_no_others(
    cluster: Collecting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has another password, and was let in by a certificate, has made one that nobody else can read."""
    client = await cluster.client()
    forbidden, gone = [await closed_ledger(client, "abcd") for _ in range(2)]
    await spare_on_a(cluster, client)
    highest = await closed_ledger(client, "abcd")
    await client.delete_ledger(gone)
    catalog, get = cluster_of(client).catalog, cluster.session.get
    guarded = {catalog.path_of(forbidden), catalog.path_of(highest)}

    async def get_if_allowed(path: str) -> tuple[bytes, int]:
        if path in guarded:
            raise UnauthorizedError(f"ZooKeeper's access control forbids this on {path}")
        return await get(path)

    monkeypatch.setattr(cluster.session, "get", get_if_allowed)
    run = await cluster.collect()
    assert (run.gone, run.over_replicated, run.failed, run.kept[ProbeState.UNREADABLE]) == (1, 1, "", 2)
    assert await cluster.held() == [forbidden, highest]
    assert f"garbage collection keeps ledger {forbidden}: ZooKeeper's access control forbids this" in caplog.text


async def test_a_ledger_whose_row_rots_keeps_no_others(cluster: Collecting, caplog: pytest.LogCaptureFixture) -> None:
    client = await cluster.client()
    ids = [await closed_ledger(client, "abcd") for _ in range(4)]
    ids.append(await spare_on_a(cluster, client))
    ids.append(await spare_on_a(cluster, client))
    for ledger_id in ids[:4]:
        await client.delete_ledger(ledger_id)
    await cluster.restart("a")  # what it knows of them is in the index only
    rotten = [ids[1], ids[4]]
    with cluster.storage("a").shards[0].store.write() as txn:
        for ledger_id in rotten:
            txn.put(ledger_key(ledger_id), b"rotten")
    for gone, spare in ((3, 1), (0, 0)):
        run = await cluster.collect()
        assert (run.gone, run.over_replicated, run.failed, dict(run.kept)) == (gone, spare, "", {DAMAGED: 2})
    assert await cluster.held() == rotten
    assert not cluster.lock_nodes()
    assert f"garbage collection keeps ledger {rotten[0]}: " in caplog.text


# --- copies that nobody needs -----------------------------------------------------------------------------------------


@pytest.mark.scenario(51)
async def test_a_spare_copy_goes(cluster: Collecting) -> None:
    client = await cluster.client()
    spare, named = await spare_on_a(cluster, client), await closed_ledger(client, "abcd")
    run = await cluster.collect(over_replicated=False)
    assert (run.over_replicated, run.examined) == (0, 2)
    run = await cluster.collect()
    assert (run.gone, run.over_replicated, run.failed, run.collected) == (0, 1, "", [spare])
    assert await cluster.held() == [named]
    assert await ask(client, spare) == DENIED
    assert await ask(client, spare, "b") == THERE
    assert [e.data async for e in (await client.open_ledger(spare)).read()] == PAYLOADS
    assert not cluster.lock_nodes()


@pytest.mark.scenario(51)
@pytest.mark.parametrize("state", ["OPEN", "IN_RECOVERY"])
async def test_a_copy_of_a_ledger_that_is_not_closed_stays(cluster: Collecting, state: str) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4)
    await writer.append_batch(PAYLOADS)
    bookies = tuple(name for name in writer.metadata.fragments[0].bookies if name != "a")
    metadata = await rewrite(
        client,
        writer.ledger_id,
        fragments=(Fragment(0, bookies),),
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=3,
    )
    if state == "IN_RECOVERY":
        metadata = metadata.in_recovery()
        stored(await cluster_of(client).catalog.write(metadata, 1))
    run = await cluster.collect()
    assert (run.over_replicated, run.failed) == (0, "")
    assert await ask(client, writer.ledger_id) == THERE


@pytest.mark.scenario(51)
async def test_a_spare_copy_whose_ledger_is_locked_stays(cluster: Collecting) -> None:
    client = await cluster.client()
    spare = await spare_on_a(cluster, client)
    worker = cluster.locks()
    lock = await worker.take(spare)
    assert isinstance(lock, LedgerLock)
    run = await cluster.collect()
    assert (run.over_replicated, dict(run.kept)) == (0, {LOCKED: 1})
    assert await ask(client, spare) == THERE
    await worker.release(lock)
    assert (await cluster.collect()).over_replicated == 1


async def hidden_meanwhile(cluster: Collecting, act: Callable[[], Any]) -> CollectionRun:
    """A run in which `act` happens right after a copy was hidden."""

    async def hide_and_act(storage: LedgerStorage, ledger_id: int) -> Any:
        hidden = await hide(storage, ledger_id)
        result = act()
        if asyncio.iscoroutine(result):
            await result
        return hidden

    with patch("bkpy.bookie.collector.hide", hide_and_act):
        return await cluster.collect()


@pytest.mark.scenario(51)
async def test_what_changes_behind_the_hiding_is_seen(cluster: Collecting) -> None:
    client = await cluster.client()
    spare = await spare_on_a(cluster, client)
    told: list[Any] = []

    async def look() -> None:
        told.append(await ask(client, spare))

    async def swap_in() -> None:
        await look()
        metadata = (await cluster_of(client).catalog.read(spare))[0]
        await rewrite(client, spare, fragments=(dataclasses.replace(metadata.fragments[0], bookies=("a", "b", "c")),))

    async def touch() -> None:
        await rewrite(client, spare, custom_metadata={"a": b"b"})

    run = await hidden_meanwhile(cluster, lambda: cluster.session.expire())
    assert (run.over_replicated, run.failed, dict(run.kept)) == (0, "metadata", {})
    assert await ask(client, spare) == THERE

    def unlock() -> None:
        for node in sorted(cluster.lock_nodes(), key=len, reverse=True):  # the proof is one of them
            if not cluster.tree.node(node).children:
                cluster.tree.apply(Delete(node), 0)

    run = await hidden_meanwhile(cluster, unlock)
    assert (run.over_replicated, run.failed, dict(run.kept)) == (0, "", {LOCK_LOST: 1})
    assert await ask(client, spare) == THERE
    run = await hidden_meanwhile(cluster, touch)
    assert (run.over_replicated, run.failed, dict(run.kept)) == (0, "", {CHANGED: 1})
    assert await ask(client, spare) == THERE
    run = await hidden_meanwhile(cluster, swap_in)
    assert (run.over_replicated, run.failed, dict(run.kept)) == (0, "", {CHANGED: 1})
    assert told == [HIDDEN]  # hidden, it was unknown, and never denied
    assert await ask(client, spare) == THERE
    assert not cluster.lock_nodes()


async def test_what_is_stored_behind_the_hiding_survives(cluster: Collecting) -> None:
    client = await cluster.client()
    writer = await deleted_while_it_is_written(cluster, client)
    run = await hidden_meanwhile(cluster, lambda: writer.append(b"meanwhile"))
    assert (run.gone, run.failed, dict(run.kept)) == (0, "", {STORED_TO: 1})
    assert await cluster.held() == [writer.ledger_id]
    assert (await cluster.collect()).gone == 1


async def test_where_data_were_lost_only_what_is_gone_goes(
    cluster: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    spare, gone = await spare_on_a(cluster, client), await closed_ledger(client, "abcd")
    await client.delete_ledger(gone)
    monkeypatch.setattr(type(cluster.storage("a")), "untrusted", True)
    run = await cluster.collect()
    assert (run.gone, run.over_replicated, run.looks_for_over_replicated) == (1, 0, False)
    assert await cluster.held() == [spare]


async def test_a_key_for_an_id_to_come_proves_nothing_where_data_were_lost(cluster: Collecting) -> None:
    """A stranger's id is in limbo like all that has come since the loss, and no sign of a store that was put back."""
    client = await cluster.client()
    gone = await closed_ledger(client, "abcd")
    await cluster.node("a").stop()
    cluster.lose_disks("a")
    await InProcess.start_node(cluster, "a", rebuild=True)
    pool = pool_of(client)
    for ledger_id in (gone, gone + 3):
        pool.add_key(ledger_id, b"k" * 32 if ledger_id > gone else (await client.ledger_metadata(gone)).ledger_key)
        head = m.pack([int(m.Flags.RECOVERY), ledger_id])
        reply = await pool.channel("a").call_as_owner(Op.READ_LAC, head, ledger_id=ledger_id, timeout_s=DEADLINE_S)
        assert m.reply_status(reply.head) == Status.UNKNOWN  # fenced all the same
    await client.delete_ledger(gone)
    run = await cluster.collect()
    assert (run.failed, run.gone, run.kept) == ("", 1, {ProbeState.NOT_MADE: 1})
    assert await cluster.held() == [gone + 3]


# --- whatever fails ---------------------------------------------------------------------------------------------------


async def check_collected_or_whole(cluster: Collecting, client: Client, ledger_id: int) -> None:
    if ledger_id in await cluster.held():
        assert await ask(client, ledger_id) == THERE
    else:
        assert await ask(client, ledger_id) == DENIED


@pytest.mark.thorough
@pytest.mark.scenario(51)
@pytest.mark.parametrize("kind", ["gone", "spare"])
@pytest.mark.parametrize("trouble", ["away", "expired", "request lost", "reply lost"])
async def test_trouble_between_any_two_steps(cluster: Collecting, kind: str, trouble: str) -> None:
    client = await cluster.client()
    calls, failures = 0, 0
    while True:
        ledger_id = await (closed_ledger(client, "abcd") if kind == "gone" else spare_on_a(cluster, client))
        if kind == "gone":
            await client.delete_ledger(ledger_id)
        session = cluster.session
        strikes = {"away": AWAY, "expired": session.expire}.get(trouble, trouble)
        session.script.extend([*[None] * calls, strikes])
        run = await cluster.collect()
        survived = bool(session.script)  # there were fewer calls than that
        session.script.clear()
        failures += bool(run.failed)
        await check_collected_or_whole(cluster, client, ledger_id)
        assert run.failed in ("", "listing", "metadata")
        if run.failed or run.kept:
            assert (await cluster.collect()).failed == ""
        assert ledger_id not in await cluster.held(), (calls, run)
        await eventually(lambda: not cluster.lock_nodes())
        if survived:
            break
        calls += stride()
    assert calls >= (9 if kind == "gone" else 17)
    assert failures or trouble in ("request lost", "reply lost")


async def test_a_storage_that_fails_ends_the_run(cluster: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client()
    gone = await closed_ledger(client, "abcd")
    await client.delete_ledger(gone)

    async def fail(hidden: Any) -> bool:
        raise StorageFailedError("it failed")

    with monkeypatch.context() as context:
        context.setattr(HiddenLedger, "delete", fail)
        run = await cluster.collect()
    assert (run.failed, run.gone) == ("storage", 0)
    assert "it failed" in run.failure
    assert await ask(client, gone) == THERE, "what was hidden is seen again"
    assert (await cluster.collect()).gone == 1


async def test_a_defect_costs_the_run_and_not_the_bookie(
    cluster: Collecting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client()
    spare = await spare_on_a(cluster, client)

    async def fail(storage: LedgerStorage, ledger_id: int) -> Any:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as context:
        context.setattr("bkpy.bookie.collector.hide", fail)
        run = await cluster.collect()
    assert (run.failed, run.over_replicated) == ("defect", 0)
    assert "a defect" in caplog.text
    assert not cluster.lock_nodes()
    assert await ask(client, spare) == THERE
    assert (await cluster.collect()).over_replicated == 1


async def test_what_was_hidden_before_a_defect_is_seen_again(
    cluster: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    spare = await spare_on_a(cluster, client)
    probe, storage = cluster.service("a").key_authority.metadata, cluster.storage("a")
    look = probe.look

    async def fail(ledger_id: int, lock: Any = None) -> Any:
        state = (await storage.states((ledger_id,)))[ledger_id]
        assert state is not None
        if state.hidden:
            raise ZeroDivisionError("a defect")
        return await look(ledger_id, lock)

    with monkeypatch.context() as context:
        context.setattr(probe, "look", fail)
        run = await cluster.collect()
    assert (run.failed, run.over_replicated) == ("defect", 0)
    assert await ask(client, spare) == THERE
    assert (await cluster.collect()).over_replicated == 1


async def test_a_bookie_that_is_stopped_ends_its_run_and_starts_with_everything_visible(cluster: Collecting) -> None:
    client = await cluster.client()
    spare = await spare_on_a(cluster, client)
    storage, hidden = cluster.storage("a"), asyncio.Event()
    probe = cluster.service("a").key_authority.metadata
    look = probe.look

    async def hang(ledger_id: int, lock: Any = None, **options: Any) -> Any:
        info = await storage.looked_up(ledger_id)
        if info is not None and info.hidden:
            hidden.set()
            await asyncio.Event().wait()
        return await look(ledger_id, lock, **options)

    probe.look = hang  # type: ignore[method-assign]
    run = cluster.collector().begin()
    assert run is not None
    await asyncio.wait_for(hidden.wait(), DEADLINE_S)
    assert cluster.collector().begin() is None
    await cluster.node("a").stop()
    assert run.failed == "stopped"
    await cluster.session.close()
    assert not cluster.lock_nodes()
    await cluster.start_node("a")
    assert await ask(await cluster.client(), spare) == THERE


async def test_no_run_begins_once_the_bookie_stops(cluster: Collecting) -> None:
    collector = cluster.collector()
    await cluster.node("a").stop()
    assert collector.begin() is None


# --- when it runs -----------------------------------------------------------------------------------------------------


async def test_it_runs_by_itself(tmp_path: Path) -> None:
    local = Collecting(tmp_path)
    await local.start_all(gc_interval_s=0.05, gc_over_replicated_interval_s=0.05)
    try:
        client = await local.client()
        gone, spare = await closed_ledger(client, "abcd"), await spare_on_a(local, client)
        await client.delete_ledger(gone)
        async with asyncio.timeout(DEADLINE_S):
            while {gone, spare} & set(await local.held()):
                await asyncio.sleep(0.01)
        assert await local.held("b") == [spare] or gone in await local.held("b")
    finally:
        await local.stop()


@pytest.mark.thorough
async def test_its_interval_may_change_while_it_runs(tmp_path: Path) -> None:
    local = Collecting(tmp_path)
    await local.start_all("a", gc_interval_s=50.0)
    try:
        collector, settings = local.collector(), local.node("a").settings

        def runs(wanted: int) -> Callable[[], bool]:
            return lambda: collector.run is not None and collector.run.number == wanted

        def every(interval_s: float) -> None:
            take_over(settings, settings.model_copy(update={"gc_interval_s": interval_s}), ["gc_interval_s"])

        await eventually(runs(1))
        every(1.0)
        await eventually(runs(3))
        every(0.0)
        await asyncio.sleep(200)
        assert collector.run is not None
        assert collector.run.number == 3
    finally:
        await local.stop()


@pytest.mark.thorough
async def test_an_interval_may_come_and_shrink_while_it_waits(tmp_path: Path) -> None:
    local = Collecting(tmp_path)
    await local.start_all("a", gc_interval_s=0.0)
    try:
        node, collector = local.node("a"), local.collector()

        def runs() -> int:
            return 0 if collector.run is None else collector.run.number

        def every(interval_s: float) -> None:
            given = node.settings.model_copy(update={"gc_interval_s": interval_s})
            reload_with(node, given)

        await asyncio.sleep(50)
        assert runs() == 0
        every(500.0)
        await eventually(lambda: runs() == 1, deadline_s=1000)
        await asyncio.sleep(5)
        every(10.0)
        await asyncio.sleep(4.5)
        assert runs() == 1
        await asyncio.sleep(1)
        assert runs() == 2
        every(0.0)
        await asyncio.sleep(50)
        assert runs() == 2
        every(25.0)  # more than that has passed
        await asyncio.sleep(0.5)
        assert runs() == 3
    finally:
        await local.stop()


async def test_looks_are_rate_limited(cluster: Collecting) -> None:
    cluster.settings |= {"gc_looks_per_second": 20.0}
    await cluster.restart("a")
    client = await cluster.client()
    for _ in range(5):
        await client.delete_ledger(await closed_ledger(client, "abcd"))
    run = await cluster.collect()
    assert run.gone == 5
    assert run.seconds is not None
    assert run.seconds >= 4 / 20


def test_bookies_take_turns() -> None:
    phases = [phase(f"bookie-{i}") for i in range(1000)]
    assert all(0 <= p < 1 for p in phases)
    assert phase("bookie-7") == phases[7]
    assert {int(p * 10) for p in phases} == set(range(10))


# --- asked over HTTP --------------------------------------------------------------------------------------------------


async def http(cluster: Collecting, method: str, body: Any = None) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{cluster.node('a').metrics_port}/gc"
    headers = {"X-Bkpy": "1"}
    async with aiohttp.ClientSession(headers=headers) as session, session.request(method, url, data=body) as response:
        return response.status, await response.json()


@pytest.mark.thorough
@pytest.mark.real("HTTP needs sockets of the kernel")
async def test_a_run_over_http(cluster: Collecting) -> None:
    assert await http(cluster, "GET") == (200, {"bookie_id": "a", "interval_s": 0.0, "run": None})
    client = await cluster.client()
    gone = await closed_ledger(client, "abcd")
    await client.delete_ledger(gone)
    status, told = await http(cluster, "POST", b'{"dry_run": true}')
    assert (status, told["run"]["dry_run"]) == (200, True)
    await eventually(lambda: cluster.collector().run.seconds is not None)  # type: ignore[union-attr]
    status, told = await http(cluster, "GET")
    assert (told["run"]["outcome"], told["run"]["gone"], told["run"]["collected"]) == ("done", 1, [gone])
    assert (await http(cluster, "POST"))[0] == 200
    assert (await http(cluster, "POST"))[0] == 409
    await eventually(lambda: cluster.collector().run.seconds is not None)  # type: ignore[union-attr]
    assert (await http(cluster, "GET"))[1]["run"]["number"] == 2
    assert await cluster.held() == []


@pytest.mark.thorough
@pytest.mark.real("HTTP needs sockets of the kernel")
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"dry_run": 1}', b"\xff\xfe", b'"x"'])
async def test_bodies_that_make_no_sense(cluster: Collecting, body: bytes) -> None:
    status, told = await http(cluster, "POST", body)
    assert status == 400
    assert told["bookie_id"] == "a"
    assert told["error"]
    assert cluster.collector().run is None


@pytest.mark.thorough
@pytest.mark.real("HTTP needs sockets of the kernel")
async def test_strangers_are_refused(cluster: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bkpy.bookie.admin.pages.is_local", lambda address: False)
    status, told = await http(cluster, "POST")
    assert status == 403
    assert "admin_clients" in told["error"]
    assert cluster.collector().run is None
    cluster.settings["admin_clients"] = "all"
    await cluster.restart("a")
    assert (await http(cluster, "POST"))[0] == 200


def test_who_is_local() -> None:
    assert all(map(is_local, ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"]))
    assert not any(map(is_local, ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", None, "localhost"]))


async def test_a_store_that_is_away_ends_the_run(cluster: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client()
    path = cluster_of(client).catalog.path_of(await closed_ledger(client, "abcd"))
    await closed_ledger(client, "abcd")  # the newest, which a run probes first
    get = cluster.session.get

    async def away(asked: str) -> Any:
        if asked == path:
            raise MetadataUnavailableError("away")
        return await get(asked)

    monkeypatch.setattr(cluster.session, "get", away)
    assert (await cluster.collect()).failed == "metadata"
