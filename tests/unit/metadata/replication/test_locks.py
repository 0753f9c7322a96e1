"""A ledger's re-replication lock, and looks at its metadata, whatever happens to sessions and connections."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, OpeningStep, Troubled

from bkpy.config.shared import MetadataSettings
from bkpy.metadata.cluster import Cluster, init_cluster
from bkpy.metadata.ledgers.catalog import Created
from bkpy.metadata.ledgers.layout import LAYOUTS, next_id
from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks, held_locks
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Done, Exists, Gone, NotDone
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.repair.garbage_collection import ProbeState

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = "/ledgers"
LOCKS = f"{ROOT}/underreplication/locks"
SETTINGS = MetadataSettings(metadata_write_attempts_max=3, metadata_retry_pause_s=0.001)


@pytest.fixture
async def tree() -> MemoryStore:
    return MemoryStore(runtime_here())


@pytest.fixture
async def cluster(tree: MemoryStore) -> Cluster:
    return await init_cluster(tree.session(), ROOT)


def locks(
    tree: MemoryStore, script: Iterable[str | OpeningStep | None] = (), holder: str = "a"
) -> tuple[LedgerLocks, Troubled]:
    store = Troubled(tree, script)
    return LedgerLocks(store, ROOT, holder, runtime_here(), SETTINGS), store


async def taken(of: LedgerLocks, ledger_id: int = 7) -> LedgerLock:
    lock = await of.take(ledger_id)
    assert isinstance(lock, LedgerLock), lock
    return lock


def names(tree: MemoryStore) -> list[str]:
    return sorted(name for name in tree.paths if name.startswith(f"{LOCKS}/"))


# --- locks ----------------------------------------------------------------------------------------------------------


async def test_one_holder_at_a_time(tree: MemoryStore, cluster: Cluster) -> None:
    first, store = locks(tree)
    second, _ = locks(tree, holder="b")
    lock = await taken(first)
    assert names(tree) == [lock.path, lock.proof]
    assert lock.path == f"{LOCKS}/L0000000000000000007"
    told = json.loads((await store.get(lock.path))[0])
    assert (told["version"], told["holder"]) == (1, "a")
    assert await second.take(7) == Exists(lock.path)
    other = await taken(second, 8)  # of another ledger
    await first.release(lock)
    assert names(tree) == [other.path, other.proof]
    assert (await taken(second)).path == lock.path


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b'{"since_ms": "x"}', b"\xff", b"[" * 100_000], ids=lambda value: value[:9]
)
async def test_a_lock_that_can_not_be_read_is_listed_all_the_same(
    tree: MemoryStore, cluster: Cluster, value: bytes
) -> None:
    taker, store = locks(tree)
    lock = await taken(taker)
    assert [(one.ledger_id, one.holder) for one in await held_locks(store, cluster.root)] == [(7, "a")]
    await store.put(lock.path, value, (await store.get(lock.path))[1])
    assert [one.ledger_id for one in await held_locks(store, cluster.root)] == [7]


async def test_a_lock_goes_with_its_session_and_a_successors_is_never_removed(
    tree: MemoryStore, cluster: Cluster
) -> None:
    first, store = locks(tree)
    second, _ = locks(tree, holder="b")
    lost = await taken(first)
    store.expire()
    assert names(tree) == []
    lock = await taken(second)
    await first.release(lost)
    assert names(tree) == [lock.path, lock.proof]


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
async def test_a_connection_that_is_lost_at_any_call_leaves_no_lock_that_nobody_has(
    tree: MemoryStore, cluster: Cluster, trouble: str, after: int
) -> None:
    of, store = locks(tree, [*[None] * after, trouble])
    lock = await of.take(7)
    if isinstance(lock, LedgerLock):
        assert names(tree) == [lock.path, lock.proof]
        await of.release(lock)
    assert names(tree) == []
    assert store.calls


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([AWAY], NotDone),
        ([CLOSED], NotDone),
        ([None, AWAY], NotDone),  # while the folder of the locks is made
        ([None, None, None, None, None, REQUEST_LOST, REQUEST_LOST, REQUEST_LOST], NotDone),
        ([None, None, None, None, None, REPLY_LOST, AWAY], NotDone),
        ([None, None, None, None, None, REPLY_LOST, None, AWAY], NotDone),
    ],
)
async def test_a_lock_that_may_have_been_taken_is_given_back(
    tree: MemoryStore, cluster: Cluster, script: list[Any], expected: type
) -> None:
    of, store = locks(tree, script)
    assert type(await of.take(7)) is expected
    assert not store.script, "it was not tried"
    assert names(tree) == []


async def test_a_lock_is_given_back_when_the_store_is_there_again(tree: MemoryStore, cluster: Cluster) -> None:
    of, store = locks(tree)
    lock = await taken(of)
    store.script.extend([AWAY, AWAY, REQUEST_LOST, AWAY, REPLY_LOST])
    async with asyncio.timeout(10):
        await of.release(lock)
    assert names(tree) == []
    lock = await taken(of)
    store.script.append(CLOSED)
    async with asyncio.timeout(10):
        await of.release(lock)  # the end of the session does it


async def test_a_lock_that_somebody_removed_while_it_was_taken(tree: MemoryStore, cluster: Cluster) -> None:
    await (other := locks(tree)[0]).release(await taken(other))  # so that the folder is there
    of, store = locks(tree, [REPLY_LOST, lambda: None])

    def lose() -> None:
        tree.end_session(store.session_id)

    store.script[1] = lose
    assert isinstance(await of.take(7), LedgerLock)  # the second attempt has made it


# --- looks ----------------------------------------------------------------------------------------------------------


def probe(
    tree: MemoryStore, cluster: Cluster, script: Iterable[Any] = (), **options: str
) -> tuple[MetadataProbe, Troubled]:
    store = Troubled(tree, script)
    given = {"instance_id": cluster.instance_id, "bookie_id": "a", **options}
    return MetadataProbe(store, ROOT, cluster.catalog.layout, **given), store


async def stored(cluster: Cluster, state: LedgerState, *ensemble: str) -> int:
    def build(ledger_id: int) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState.OPEN,
            ensemble_size=len(ensemble),
            write_quorum=1,
            ack_quorum=1,
            digest="crc32c",
            ledger_key=bytes(32),
            fragments=(Fragment(0, ensemble),),
            owner_token="t",
        )

    created = await cluster.catalog.create(build)
    assert isinstance(created, Created)
    if state is not LedgerState.OPEN:
        changed = dataclasses.replace(created.metadata, state=state)
        assert isinstance(await cluster.catalog.write(changed, 0), Done)
    return created.metadata.ledger_id


async def test_what_a_look_sees(tree: MemoryStore, cluster: Cluster) -> None:
    looks, _ = probe(tree, cluster)
    named = await stored(cluster, LedgerState.OPEN, "a", "b")
    spare = await stored(cluster, LedgerState.CLOSED, "b", "c")
    open_ = await stored(cluster, LedgerState.IN_RECOVERY, "b", "c")
    assert (await looks.look(named)).state is ProbeState.NAMED
    seen = await looks.look(spare)
    assert (seen.state, seen.version, seen.own_lock) == (ProbeState.OVER_REPLICATED, 1, True)
    assert (await looks.look(open_)).state is ProbeState.NOT_CLOSED
    gone = await stored(cluster, LedgerState.OPEN, "a", "b")
    assert isinstance(await cluster.catalog.delete(gone), Gone)
    seen = await looks.look(gone)
    assert (seen.state, seen.why) == (ProbeState.NO_LEDGER, "")
    for never_given_out in (gone + 1, 1 << 40):
        seen = await looks.look(never_given_out)
        assert seen.state is ProbeState.OLDER
        assert f"next ledger id is {gone + 1}, and ledger {never_given_out} is here" in seen.why
    tree.apply(Put(cluster.catalog.path_of(named), b"{", 0), 0)
    assert (await looks.look(named)).state is ProbeState.UNREADABLE
    tree.apply(Put(cluster.catalog.path_of(spare), b'{"version": 2}', 1), 0)
    assert (await looks.look(spare)).state is ProbeState.UNREADABLE


@pytest.mark.scenario(51)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_which_ids_were_given_out(tree: MemoryStore, layout: str) -> None:
    cluster = await init_cluster(tree.session(), ROOT, layout)
    looks, store = probe(tree, cluster)
    assert (await looks.look(0)).state is ProbeState.OLDER
    first = await stored(cluster, LedgerState.OPEN, "a", "b")
    assert await next_id(store, ROOT, cluster.catalog.layout) == first + 1 == 1
    if cluster.catalog.layout.long_ids:
        tree.apply(Create(f"{ROOT}/idgen-long/HOB-0000000001", b""), 0)
        assert await next_id(store, ROOT, cluster.catalog.layout) == 1 << 31
        assert (await looks.look((1 << 31) - 1)).state is ProbeState.NO_LEDGER
        assert (await looks.look(1 << 31)).state is ProbeState.OLDER


async def test_an_id_that_the_layout_has_no_room_for(tree: MemoryStore) -> None:
    cluster = await init_cluster(tree.session(), ROOT, "flat")
    looks, _ = probe(tree, cluster)
    assert (await looks.look(1 << 40)).state is ProbeState.UNREADABLE


async def test_another_cluster_and_none(tree: MemoryStore, cluster: Cluster) -> None:
    looks, _ = probe(tree, cluster, instance_id="another")
    assert (await looks.look(7)).state is ProbeState.FOREIGN
    looks, _ = probe(tree, cluster)
    tree.apply(Delete(f"{ROOT}/INSTANCEID"), 0)
    assert (await looks.look(7)).state is ProbeState.FOREIGN


@pytest.mark.scenario(51)
@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("trouble", [AWAY, CLOSED, "expired"])
async def test_a_look_in_which_anything_fails_is_not_sure(
    tree: MemoryStore, cluster: Cluster, trouble: str, call: int
) -> None:
    of, _ = locks(tree)
    lock = await taken(of)
    looks, store = probe(tree, cluster)
    store.script.extend([*[None] * call, store.expire if trouble == "expired" else trouble])
    seen = await looks.look(7, lock)
    assert not store.script, "there were fewer calls"
    assert seen.state is ProbeState.UNSURE
    assert seen.why


async def test_a_look_makes_the_server_catch_up_before_it_reads(tree: MemoryStore, cluster: Cluster) -> None:
    ledger_id = await stored(cluster, LedgerState.OPEN, "a")
    looks, store = probe(tree, cluster)
    asked: list[str] = []
    for name in ("sync", "get", "exists"):
        method = getattr(store, name)

        async def call(path: str, name: str = name, method: Any = method) -> Any:
            asked.append(name)
            return await method(path)

        setattr(store, name, call)
    await looks.look(ledger_id)
    assert asked == ["sync", "get", "get"]


async def test_a_look_sees_whether_the_lock_is_still_the_same_one(tree: MemoryStore, cluster: Cluster) -> None:
    ledger_id = await stored(cluster, LedgerState.CLOSED, "b")
    of, store = locks(tree)
    looks, _ = probe(tree, cluster)
    lock = await taken(of, ledger_id)
    assert (await looks.look(ledger_id, lock)).own_lock
    store.expire()
    assert not (await looks.look(ledger_id, lock)).own_lock
    await taken(locks(tree, holder="b")[0], ledger_id)
    assert not (await looks.look(ledger_id, lock)).own_lock
