"""A bookie id that is given up, by `format` or `decommission`: no later storage under it denies what another had."""

from __future__ import annotations

import asyncio
import functools
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, store_of
from tests.in_process import DEADLINE_S, ROOT, InProcess, rewrite, runtime_here
from tests.unit.admin.test_drain_work import decommission, drain, known, stored
from tests.unit.replication.repairing import Repairs
from tests.unit.replication.test_integrity import answer
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.waiting import eventually

from bkpy.bookie.dialect import NATIVE
from bkpy.bookie.identity import BookieIdentity, FormatPlan
from bkpy.bookie.membership import KnownBookie, Membership
from bkpy.cli.bookie.identity import open_peers
from bkpy.client.client import replication_context
from bkpy.errors import ConfigError, CorruptDataError, IdentityError, MetadataConflictError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import read_cookie, write_cookie
from bkpy.metadata.bookies.retired import RetiredBy, read_retired, retire
from bkpy.metadata.replication.election import leader
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.resolve import create_certainly, ensure_path
from bkpy.metadata.store.store import Create
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire.messages import Status
from bkpy.recovery import ledger_recovery
from bkpy.replication.auto_recovery import AutoRecovery
from bkpy.replication.worker.ledger_repair import LedgerRepair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from bkpy.bookie.node import BookieNode
    from bkpy.client.client import Client

QUICK = {"decommission_patience_s": 0.2, "drain_look_interval_s": 0.02, "audit_look_interval_s": 0.05}


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path, real_disks=True)
    await local.start("abcd", **QUICK)
    yield local
    await local.stop()


def identity(cluster: InProcess, name: str) -> BookieIdentity:
    """Commands about the bookie, which is stopped."""
    settings, session, runtime = cluster.node(name).settings, cluster.tree.session(), runtime_here()
    peers = functools.partial(open_peers, session, ROOT, runtime, settings)
    return BookieIdentity(settings, session, ROOT, runtime, peers)


async def formatted(cluster: InProcess, name: str, *, force: bool = False) -> FormatPlan:
    async with asyncio.timeout(DEADLINE_S):
        return await identity(cluster, name).format(force=force, agree=lambda plan: None)


async def abandoned(client: Client) -> tuple[int, tuple[str, ...], str]:
    """An open ledger whose writer is gone, with one entry, its ensemble, and a bookie outside of that."""
    writer = await client.create_ledger()
    await writer.append(b"acknowledged")
    writer.abandon()
    (outside, *_) = sorted(set("abcd") - set(writer.ensemble))
    return writer.ledger_id, writer.ensemble, outside


async def decommissioned(cluster: InProcess, name: str) -> None:
    """Nothing names it: it drains, is decommissioned, and stops."""
    client = await cluster.client()
    await drain(client, name)
    assert (await decommission(client, name)).scan.clear
    await cluster.node(name).stop()


def session(node: BookieNode) -> MemorySession:
    found = store_of(node)
    assert isinstance(found, MemorySession)
    return found


# --- format -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_recovery_that_has_written_to_the_bookie_keeps_it_from_being_freed(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the bookie with its closing write. Nobody else can close the ledger meanwhile."""
    client = await four.client()
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await writer.append(b"acknowledged")
    writer.abandon()
    ledger_id, away = writer.ledger_id, writer.ensemble[1]
    other, outside = sorted(set("abcd") - set(writer.ensemble))
    await lose(four, client, away, other)  # so that the recovery needs the one that is left
    there, go, close = asyncio.Event(), asyncio.Event(), ledger_recovery.close_ledger

    async def close_late(*args: Any, **options: Any) -> Any:
        there.set()
        await go.wait()
        return await close(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ledger_recovery, "close_ledger", close_late)
        recovery = asyncio.create_task(replication_context(client).recover(ledger_id))
        await there.wait()
    await four.node(outside).stop()
    with pytest.raises(IdentityError, match=r"0 ledgers of 1 name this bookie, 1 are in recovery.* can't be read: 0;"):
        await formatted(four, outside)
    assert await known(four, outside)
    await four.start_node(outside)
    go.set()
    metadata = await recovery
    assert any(outside in fragment.bookies for fragment in metadata.fragments)
    assert await answer(four, outside, ledger_id, 0) == ({0}, set())


@pytest.mark.thorough
async def test_a_ledger_in_recovery_is_closed_before_the_id_is_freed(four: InProcess) -> None:
    client = await four.client()
    ledger_id, _, outside = await abandoned(client)
    await rewrite(client, ledger_id, state=LedgerState.IN_RECOVERY)
    await lose(four, client, outside)
    assert (await formatted(four, outside)).cookie_goes
    assert (await client.ledger_metadata(ledger_id)).state is LedgerState.CLOSED
    assert not await known(four, outside)


@pytest.mark.thorough
async def test_a_copy_on_its_way_to_the_bookie_keeps_it_from_being_freed(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client()
    writer = await closed(client, 5)
    (target,) = set("abcd") - set(writer.ensemble)
    await lose(four, client, writer.ensemble[0])
    there, go, swap = asyncio.Event(), asyncio.Event(), LedgerRepair.swap

    async def swap_late(repair: LedgerRepair, *args: Any) -> Any:
        there.set()
        await go.wait()
        return await swap(repair, *args)

    monkeypatch.setattr(LedgerRepair, "swap", swap_late)
    mover = await four.client()
    copying = asyncio.create_task(Repairs(mover, target=target).run(writer.ledger_id, {writer.ensemble[0]}))
    await there.wait()
    await four.node(target).stop()
    with pytest.raises(MetadataConflictError, match="may copy them to this bookie"):
        await formatted(four, target)
    await four.start_node(target)
    go.set()
    await copying
    assert target in (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
    assert await answer(four, target, writer.ledger_id, 4) == (set(range(5)), set())


@pytest.mark.thorough
async def test_a_new_bookie_under_a_freed_id_denies_no_older_ledger(four: InProcess) -> None:
    """A writer stores on a bookie before it names it: an entry may count that the former storage had."""
    client = await four.client()
    ledger_id, _, outside = await abandoned(client)
    assert await stored(client, outside, ledger_id, recovery=True) == Status.OK
    await lose(four, client, outside)
    await formatted(four, outside)
    for _ in range(2):  # the second start finds it in the index alone
        await four.start_node(outside)
        assert await answer(four, outside, ledger_id, 0) == (set(), {0})
        newer = await client.create_ledger()
        newer.abandon()
        assert await answer(four, outside, newer.ledger_id, 0) == (set(), set())
        await four.node(outside).stop()


@pytest.mark.thorough
@pytest.mark.parametrize("by_init", [False, True])
async def test_what_was_interrupted_before_the_cookie_takes_the_freed_id_as_well(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, by_init: bool
) -> None:
    client = await four.client()
    ledger_id, _, outside = await abandoned(client)
    await lose(four, client, outside)
    await formatted(four, outside)
    with monkeypatch.context() as patched:

        async def fail(*args: Any, **options: Any) -> Any:
            raise IdentityError("interrupted")

        patched.setattr("bkpy.bookie.membership.write_cookie", fail)
        patched.setattr("bkpy.bookie.identity.write_cookie", fail)
        with pytest.raises(IdentityError, match="interrupted"):
            await (identity(four, outside).init() if by_init else four.start_node(outside))
    await four.start_node(outside)
    assert await answer(four, outside, ledger_id, 0) == (set(), {0})


@pytest.mark.thorough
async def test_force_keeps_the_cookie_and_waits_for_nobody(four: InProcess) -> None:
    client = await four.client()
    ledger_id, _, outside = await abandoned(client)
    await rewrite(client, ledger_id, state=LedgerState.IN_RECOVERY)
    await lose(four, client, outside)
    plan = await formatted(four, outside, force=True)
    assert plan.files
    assert not plan.cookie_goes
    assert (await client.ledger_metadata(ledger_id)).state is LedgerState.IN_RECOVERY
    with pytest.raises(IdentityError, match="has no cookie, but bookie"):
        await four.start_node(outside)
    assert (await formatted(four, outside)).cookie_goes
    await four.start_node(outside)


@pytest.mark.thorough
async def test_the_id_of_a_bookie_that_runs_elsewhere_is_not_freed(four: InProcess, tmp_path: Path) -> None:
    """The settings name another machine's empty directories; the bookie itself is cut off from the metadata store."""
    session(four.node("a")).suspend()
    session(four.node("a")).expire()
    other = InProcess(tmp_path / "other")
    other.tree, other.settings = four.tree, four.settings
    settings = other.new_node("a").settings
    store = four.tree.session()
    peers = functools.partial(open_peers, store, ROOT, runtime_here(), settings)
    with pytest.raises(IdentityError, match="it runs elsewhere"):
        await BookieIdentity(settings, store, ROOT, runtime_here(), peers).format(force=False, agree=lambda plan: None)
    assert await known(four, "a")
    session(four.node("a")).resume()


# --- decommission -----------------------------------------------------------------------------------------------------


async def refused(cluster: InProcess, name: str, match: str) -> None:
    with pytest.raises(IdentityError, match=match):
        await cluster.start_node(name)
    with pytest.raises(IdentityError, match=match):
        await identity(cluster, name).init()


@pytest.mark.thorough
@pytest.mark.parametrize("emptied", ["no", "formatted", "erased"])
async def test_a_decommissioned_bookie_comes_back_only_when_that_is_said(four: InProcess, emptied: str) -> None:
    client = await four.client()
    ledger_id, _, outside = await abandoned(client)
    await decommissioned(four, outside)
    if emptied == "formatted":
        await formatted(four, outside)
    elif emptied == "erased":
        shutil.rmtree(four.directory / outside)
    await refused(four, outside, "was decommissioned.*init --again")
    with pytest.raises(IdentityError, match="was decommissioned"):
        await four.start_node(outside, rebuild=True)
    newest = await closed(client, 1)
    if emptied == "no":
        await formatted(four, outside)
    assert await identity(four, outside).init(again=True)
    await four.start_node(outside)
    assert await known(four, outside)
    for old in (ledger_id, newest.ledger_id):  # what is there before it is made again
        if outside not in (await client.ledger_metadata(old)).fragments[0].bookies:
            assert await answer(four, outside, old, 0) == (set(), {0})
    await eventually(lambda: outside in client.bookies)


@pytest.mark.thorough
async def test_a_bookie_that_is_decommissioned_while_it_starts_gets_no_new_cookie(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client()
    _, _, outside = await abandoned(client)
    await drain(client, outside)
    await four.node(outside).stop()
    look_up = Membership.look_up

    async def look_up_first(membership: Membership) -> KnownBookie:
        looked = await look_up(membership)
        assert (await decommission(client, outside)).scan.clear
        return looked

    monkeypatch.setattr(Membership, "look_up", look_up_first)
    with pytest.raises(IdentityError, match="cookie was deleted while it started"):
        await four.start_node(outside)
    membership = Membership(four.node(outside).settings, four.tree.session(), ROOT, runtime_here(), NATIVE)
    with pytest.raises(IdentityError, match="cookie was deleted while it started"):
        await membership.directories_moved(b"")
    assert not await known(four, outside)
    monkeypatch.undo()
    with pytest.raises(IdentityError, match="was decommissioned"):
        await four.start_node(outside)


@pytest.mark.thorough
async def test_directories_with_data_are_not_made_again(four: InProcess) -> None:
    client = await four.client()
    await closed(client, 3)
    await lose(four, client, "a")
    await drain(client, "a")
    assert (await decommission(client, "a", lost=True)).scan.clear
    with pytest.raises(IdentityError, match="was started here already"):
        await identity(four, "a").init(again=True)


@pytest.mark.thorough
async def test_a_lost_bookie_that_is_back_with_all_it_had_is_made_known_again(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    victim = writer.ensemble[0]
    await lose(four, client, victim)
    await drain(client, victim)
    assert (await decommission(client, victim, lost=True)).scan.clear
    await refused(four, victim, "cookie update")
    await identity(four, victim).update(lambda plan: None)
    await four.start_node(victim)
    assert await answer(four, victim, writer.ledger_id, 2) == ({0, 1, 2}, set())


@pytest.mark.thorough
async def test_directories_of_before_another_storage_had_the_id_are_refused(four: InProcess, tmp_path: Path) -> None:
    client = await four.client()
    _, _, outside = await abandoned(client)
    await four.node(outside).stop()
    shutil.copytree(four.directory / outside, tmp_path / "copy")
    await four.start_node(outside)
    await decommissioned(four, outside)
    await formatted(four, outside)
    await identity(four, outside).init(again=True)
    await four.start_node(outside)
    await decommissioned(four, outside)
    shutil.rmtree(four.directory / outside)
    shutil.copytree(tmp_path / "copy", four.directory / outside)
    with pytest.raises(IdentityError, match="out of date"):
        await identity(four, outside).update(lambda plan: None)
    assert not await known(four, outside)


@pytest.mark.thorough
async def test_the_auditor_of_a_decommissioned_bookie_leaves_the_election(four: InProcess) -> None:
    client = await four.client()
    store = cluster_of(client).store

    def background_service(registry: CollectorRegistry, appended: Callable[[], int]) -> AutoRecovery:
        settings = four.node("d").settings
        return AutoRecovery(settings, session(node), ROOT, runtime_here(), "e", registry, appended)

    node = four.new_node("e", background_service=background_service)
    await node.start()
    four.nodes.append(node)
    async with asyncio.timeout(DEADLINE_S):
        while await leader(store, ROOT) is None:
            await asyncio.sleep(0.005)
    await drain(client, "e")
    assert await leader(store, ROOT) is not None
    assert (await decommission(client, "e")).scan.clear
    async with asyncio.timeout(DEADLINE_S):
        while await leader(store, ROOT) is not None:
            await asyncio.sleep(0.005)
    assert not node.failed.done()


# --- cut off ----------------------------------------------------------------------------------------------------------


async def cut_off(cluster: InProcess, client: Client, name: str) -> None:
    """The bookie runs, and has lost its session with the metadata store."""
    session(cluster.node(name)).suspend()
    session(cluster.node(name)).expire()
    await eventually(lambda: name not in client.bookies)


@pytest.mark.thorough
async def test_a_bookie_that_answers_is_not_lost(four: InProcess) -> None:
    client = await four.client()
    _, _, outside = await abandoned(client)
    await cut_off(four, client, outside)
    with pytest.raises(ConfigError, match="answers at its address"):
        await decommission(client, outside, lost=True)
    assert await known(four, outside)
    session(four.node(outside)).resume()
    await eventually(lambda: outside in client.bookies)


@pytest.mark.thorough
@pytest.mark.parametrize("again", [False, True])
async def test_one_that_was_cut_off_when_it_was_decommissioned_never_registers_again(
    four: InProcess, tmp_path: Path, again: bool
) -> None:
    """Nobody reaches it, so it is taken for lost. Perhaps a new bookie has its id when it is back."""
    client = await four.client()
    _, _, outside = await abandoned(client)
    node = four.node(outside)
    await cut_off(four, client, outside)
    four.kill(outside)
    assert (await decommission(client, outside, lost=True)).scan.clear
    if again:
        other = InProcess(tmp_path / "other")
        other.tree, other.settings = four.tree, four.settings
        other.nodes.append(other.new_node(outside))
        await identity(other, outside).init(again=True)
        cookie = await read_cookie(four.tree.session(), ROOT, outside)
        other.nodes.clear()
    session(node).resume()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(IdentityError, match="doesn't know this bookie with these directories any more"):
            await asyncio.shield(node.failed)
    registered = [paths.available(ROOT, outside, read_only=flag) for flag in (False, True)]
    assert not [path for path in registered if path in four.tree.paths]
    if again:
        assert await read_cookie(four.tree.session(), ROOT, outside) == cookie


async def test_one_whose_cookie_has_another_version_registers_again(four: InProcess) -> None:
    """As where the metadata store goes back to an older copy, or is restored."""
    client = await four.client()
    await cut_off(four, client, "a")
    store = four.tree.session()
    cookie = await read_cookie(store, ROOT, "a")
    assert cookie is not None
    await write_cookie(store, ROOT, "a", *cookie)
    assert await read_cookie(store, ROOT, "a") == (cookie[0], cookie[1] + 1)
    session(four.node("a")).resume()
    await eventually(lambda: "a" in client.bookies)


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_what_the_record_says_only_grows(four: InProcess) -> None:
    store, clock = four.tree.session(), runtime_here().clock
    assert await read_retired(store, ROOT, "x") is None
    await retire(store, ROOT, "x", RetiredBy.FORMAT, clock, instance="1", limbo_to=7)
    await retire(store, ROOT, "x", RetiredBy.DECOMMISSION, clock, instance="2", limbo_to=3)
    found = await read_retired(store, ROOT, "x")
    assert found is not None
    assert (found.limbo_to, found.instance, found.decommissioned, found.node_version) == (7, "2", True, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "error"),
    [(b"{", CorruptDataError), (b"[]", CorruptDataError), (b'{"version": 2}', UnsupportedVersionError)],
)
async def test_a_record_that_can_not_be_read_refuses_the_start(
    four: InProcess, value: bytes, error: type[Exception]
) -> None:
    store = four.tree.session()
    await ensure_path(store, f"{ROOT}/{paths.RETIRED}", attempts_max=1)
    await create_certainly(store, Create(paths.retired(ROOT, "e"), value), attempts_max=1)
    with pytest.raises(error):
        await four.start_node("e")
