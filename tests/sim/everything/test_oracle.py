"""The oracle excuses what nobody can know, and no more: each excuse, and what lies just beyond it."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.replication.underreplication import LossReason, UnderreplicationQueue
from bkpy.metadata.store.store import Create, Delete, Put, parent_of
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.ledger_metadata import LEDGER_KEY_BYTES, Fragment, LedgerMetadata, LedgerState
from bkpy.storage.space.deletion import hide
from tests.hooks import storage_of
from tests.sim.cluster import ROOT, Cluster
from tests.sim.healing_oracle import SEEN_WITHIN_S
from tests.sim.mover import move
from tests.sim.users import Users

from .oracle import Oracle

NAMES = ("bookie-1", "bookie-2", "bookie-3", "bookie-4")
LEDGER = 1
ENTRIES = {0, 1, 2}


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(Cluster(0, bookies=len(NAMES), calm=True))


def put(oracle: Oracle, path: str, data: bytes) -> None:
    tree = oracle.world.metadata
    if oracle.data(path) is not None:
        tree.apply(Put(path, data, None), 0)
        return
    if path != "/" and oracle.data(parent_of(path)) is None:
        put(oracle, parent_of(path), b"")
    tree.apply(Create(path, data), 0)


def register(oracle: Oracle, name: str, *, in_limbo: bool = False) -> None:
    put(oracle, paths.available(ROOT, name, read_only=False), json.dumps({"in_limbo": in_limbo}).encode())


def created_without(oracle: Oracle, absent: str, *, closed_at: int | None = None) -> list[str]:
    """A ledger on all bookies, recorded since one of them was absent then; returns the nodes of the record."""
    ledger = LedgerMetadata(LEDGER, LedgerState.OPEN, 4, 3, 2, "crc32c", b"k" * LEDGER_KEY_BYTES, (Fragment(0, NAMES),))
    if closed_at is not None:
        ledger = ledger.closed(closed_at, closed_at + 1)
    put(oracle, LONG_HIERARCHICAL.path_of(ROOT, LEDGER), ledger.encode())
    runtime = oracle.world.metadata.runtime
    records = UnderreplicationQueue(oracle.world.metadata.session(), ROOT, runtime)
    lost = records.absent_now({absent: "its storage"})
    assert {one.reason for one in lost.values()} == {LossReason.ABSENT}
    nodes = records.nodes_of(LEDGER, lost)
    for node in nodes:
        put(oracle, node.path, node.data)
    return [node.path for node in nodes]


def pass_time(oracle: Oracle) -> None:
    oracle.world.loop.run_until_complete(asyncio.sleep(SEEN_WITHIN_S))


def test_a_writer_is_ended_for_a_bookie_that_has_lost_its_disks_before_its_record_says_so(oracle: Oracle) -> None:
    with oracle.watching():
        for name in NAMES:
            register(oracle, name)
        created_without(oracle, NAMES[3])
        pass_time(oracle)
        assert "no bookie could take a place" in oracle.needless(LEDGER)
        register(oracle, NAMES[3], in_limbo=True)
        pass_time(oracle)
        assert not oracle.needless(LEDGER)
        register(oracle, NAMES[3])
        assert not oracle.needless(LEDGER)  # a worker may not have seen it yet
        pass_time(oracle)
        assert oracle.needless(LEDGER)


@pytest.mark.parametrize("ends", ["with its session", "by its bookie"])
def test_what_was_in_limbo_and_is_gone_is_seen_late(oracle: Oracle, ends: str) -> None:
    tree = oracle.world.metadata
    node = paths.available(ROOT, NAMES[3], read_only=False)
    with oracle.watching():
        for name in NAMES[:3]:
            register(oracle, name)
        put(oracle, parent_of(node), b"")
        tree.apply(Create(node, b'{"in_limbo": true}', ephemeral=True), 7)
        created_without(oracle, NAMES[3])
        pass_time(oracle)
        if ends == "by its bookie":
            tree.apply(Delete(node, None), 7)
        else:
            tree.end_session(7)
        assert not oracle.needless(LEDGER)
        pass_time(oracle)
        assert oracle.needless(LEDGER)


def test_a_limbo_of_another_bookie_is_no_reason(oracle: Oracle) -> None:
    with oracle.watching():
        for name in NAMES:
            register(oracle, name, in_limbo=name == NAMES[0])
        created_without(oracle, NAMES[3])
        pass_time(oracle)
        assert oracle.needless(LEDGER)


@pytest.mark.parametrize(
    ("closed_at", "registered", "lost"),
    [(-1, True, False), (2, True, True), (-1, False, True)],
    ids=["registered, and there are no entries", "there are entries", "not registered any more"],
)
def test_the_record_of_a_bookie_that_is_gone_ends_where_nobody_can_know(
    oracle: Oracle, closed_at: int, registered: bool, lost: bool
) -> None:
    with oracle.watching():
        if registered:
            register(oracle, NAMES[3])
        nodes = created_without(oracle, NAMES[3], closed_at=closed_at)
        oracle.gone.add(NAMES[3])
        pass_time(oracle)
        for path in reversed(nodes):
            oracle.world.metadata.apply(Delete(path, None), 0)
    assert oracle.found.done() == lost


@pytest.mark.parametrize("reason", LossReason)
def test_a_record_of_before_a_drain_may_end_while_the_bookie_drains(oracle: Oracle, reason: LossReason) -> None:
    with oracle.watching():
        register(oracle, NAMES[3])
        *_, node = created_without(oracle, NAMES[3], closed_at=2)
        put(oracle, node, json.dumps({"lost": {NAMES[3]: {"reason": reason}}}).encode())
        put(oracle, paths.draining(ROOT, NAMES[3]), b"")
        pass_time(oracle)
        oracle.world.metadata.apply(Delete(node, None), 0)
    assert oracle.found.done() == (reason not in (LossReason.ABSENT, LossReason.RETURNED))


@pytest.mark.parametrize("ack_quorum", [1, 2])
def test_what_the_lost_host_alone_had_is_given_up_and_no_more(oracle: Oracle, ack_quorum: int) -> None:
    fragments = (Fragment(0, NAMES[:2]), Fragment(3, NAMES[1:3]))
    ledger = LedgerMetadata(
        LEDGER, LedgerState.OPEN, 2, 2, ack_quorum, "crc32c", b"k" * LEDGER_KEY_BYTES, fragments
    ).closed(4, 5)
    with oracle.watching():
        put(oracle, LONG_HIERARCHICAL.path_of(ROOT, LEDGER), ledger.encode())
    oracle.bookies[0].promises[LEDGER] |= ENTRIES
    oracle.bookies[1].promises[LEDGER] |= {0, 3}
    oracle.bookies[2].promises[LEDGER] |= {1, 4}  # no bookie of the fragment that entry 1 belongs to
    assert not oracle.given_up(ledger)
    oracle.gone.add(NAMES[0])
    assert oracle.given_up(ledger) == ({1, 2} if ack_quorum == 1 else set())
    assert oracle.stuck() == ({LEDGER} if ack_quorum == 1 else set())
    oracle.gone = {NAMES[1]}
    assert not oracle.given_up(ledger) - {3}


def with_accepted_loss(oracle: Oracle) -> LedgerMetadata:
    """A closed ledger of one acknowledgement, of which the lost host alone had all entries but the last."""
    ledger = LedgerMetadata(
        LEDGER, LedgerState.OPEN, 2, 2, 1, "crc32c", b"k" * LEDGER_KEY_BYTES, (Fragment(0, NAMES[:2]),)
    )
    store(oracle, ledger)
    oracle.bookies[0].promises[LEDGER] |= ENTRIES
    oracle.bookies[1].promises[LEDGER] |= {2}
    oracle.bookies[2].promises[LEDGER] |= {2}
    oracle.gone.add(NAMES[0])
    return dataclasses.replace(ledger.closed(2, 3), accepted_loss=AcceptedLoss(0, 2, 2, {NAMES[0]: "gone"}))


def store(oracle: Oracle, ledger: LedgerMetadata) -> None:
    put(oracle, LONG_HIERARCHICAL.path_of(ROOT, LEDGER), ledger.encode())


def test_a_hole_keeps_the_bookie_that_is_gone_and_what_lies_beside_it_does_not(oracle: Oracle) -> None:
    cluster, named = oracle.cluster, f"ledger {LEDGER} names {NAMES[0]}, which is gone"

    async def play() -> None:
        ledger = with_accepted_loss(oracle)
        async with cluster.client(calm=True) as client:
            for one, why in (
                (ledger := ledger.with_hole(0, 1), named),
                (ledger.replace_bookie(1, 0, NAMES[2]), ""),
            ):
                store(oracle, one)
                assert await oracle.short(client) == why

    async def whole() -> None:
        with oracle.watching():
            await cluster.start()
            await cluster.client_host.start(play())

    cluster.run(whole())
    assert not oracle.found.done()


@pytest.mark.parametrize(("last", "noticed"), [(0, False), (1, False), (2, True)])
def test_a_hole_has_nothing_that_a_bookie_has(oracle: Oracle, last: int, noticed: bool) -> None:
    with oracle.watching():
        ledger = with_accepted_loss(oracle)
        store(oracle, ledger)
        store(oracle, ledger.with_hole(0, last))
    assert oracle.found.done() == noticed


def test_a_copy_that_goes_with_its_disks_before_the_swap_was_whole(oracle: Oracle) -> None:
    bookie = oracle.bookies[3]
    bookie.promises[LEDGER] |= ENTRIES
    assert oracle.had(bookie, LEDGER, ENTRIES) == ENTRIES
    oracle.loses_disks(bookie)
    assert oracle.had(bookie, LEDGER, ENTRIES) == ENTRIES


def test_a_copy_of_which_the_disks_had_half_is_not_whole(oracle: Oracle) -> None:
    bookie = oracle.bookies[3]
    bookie.promises[LEDGER] |= {0, 1}
    oracle.loses_disks(bookie)
    bookie.promises[LEDGER].add(2)
    assert oracle.had(bookie, LEDGER, ENTRIES) == {2}


@pytest.mark.parametrize(
    ("copy", "shown", "broken"),
    [("spare", True, ""), ("spare", False, "I9"), ("named", True, "I9")],
    ids=["spare and soon shown", "spare and never shown", "named by the metadata"],
)
def test_a_hidden_copy_of_a_bookie_that_had_empty_disks_is_waited_for(copy: str, shown: bool, broken: str) -> None:
    """Such a bookie answers *unknown* for what it may never have had, and for what it hides for a moment."""
    cluster = Cluster(0, bookies=len(NAMES), calm=True, gc_interval_s=0.0)
    oracle = Oracle(cluster)
    users = Users(cluster, oracle.stories)

    async def play() -> None:
        rng = cluster.world.stream("test")
        async with cluster.client(calm=True) as client:
            writer = await users.begin(client, (3, 3, 2))
            story = oracle.story(writer.ledger_id)
            for _ in ENTRIES:
                await users.append(story, writer, rng)
            await users.close(story, writer)
            before = {*story.stored.fragments[0].bookies}
            while not await move(client, writer.ledger_id, rng):
                pass
            names = before - {*story.stored.fragments[0].bookies} if copy == "spare" else before
            holder = next(one for one in cluster.bookies if one.settings.bookie_id in names)
            assert holder.node is not None
            holder.rebuilds = True
            hidden = await holder.host.start(hide(storage_of(holder.node), writer.ledger_id))
            assert hidden is not None
            if shown:
                cluster.world.loop.call_later(3.0, holder.host.do, hidden.unhide)
            await oracle.check(client, heals=False)

    async def whole() -> None:
        with oracle.watching():
            await cluster.start()
            await cluster.client_host.start(play())

    cluster.run(whole())
    assert (oracle.found.result().invariant if oracle.found.done() else "") == broken
