"""The catalogue of ledgers, the cluster's root and the cookies, on both stores."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.cluster.metadata_harness import Harness, harness, store
from tests.hooks import id_generator_of
from tests.unit.metadata.new_ledgers import builder

from bkpy.errors import (
    BookieUnavailableError,
    ConfigError,
    CorruptDataError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchClusterError,
    NoSuchLedgerError,
    UnsupportedVersionError,
)
from bkpy.metadata.bookies.cookies import delete_cookie, list_cookies, read_cookie, write_cookie
from bkpy.metadata.cluster import Cluster, init_cluster, open_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.ledgers.catalog import Created, LedgerCatalog
from bkpy.metadata.ledgers.layout import LAYOUTS, NewId
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone
from bkpy.metadata.store.resolve import ensure_path
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

__all__ = ["harness", "store"]  # fixtures

ALL_LAYOUTS = pytest.mark.parametrize("layout", sorted(LAYOUTS))
Build = Callable[[int], LedgerMetadata]


async def created(catalog: LedgerCatalog, build: Build) -> tuple[LedgerMetadata, int]:
    outcome = await catalog.create(build)
    assert isinstance(outcome, Created), outcome
    return outcome.metadata, outcome.version


async def listed(cluster: Cluster) -> list[int]:
    return [ledger_id async for ledger_id in cluster.catalog.ids()]


# --- the cluster --------------------------------------------------------------------------------------------


@ALL_LAYOUTS
async def test_a_cluster_is_made_once_and_found_again(harness: Harness, store: MetadataStore, layout: str) -> None:
    root = f"{harness.root}/deep/cluster"
    with pytest.raises(NoSuchClusterError, match="bkpy cluster init"):
        await open_cluster(store, root)
    made = await init_cluster(store, root, layout)
    found = await open_cluster(await harness.open(), root)
    assert found.instance_id == made.instance_id
    assert found.layout_name == made.layout_name == layout
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made.instance_id)
    with pytest.raises(ConfigError, match=f"already under {root}"):
        await init_cluster(store, root, layout)
    assert (await open_cluster(store, root)).instance_id == made.instance_id


async def test_a_cluster_inside_anothers_tree_is_refused(harness: Harness, store: MetadataStore) -> None:
    outer = await init_cluster(store, f"{harness.root}/outer")
    for inside in ("inner", "a/b/c", "00"):
        with pytest.raises(
            ConfigError, match=f"{inside} lies inside the tree of the cluster under {harness.root}/outer"
        ):
            await init_cluster(store, f"{harness.root}/outer/{inside}")
    assert not {"inner", "a", "00"} & set(await store.children(f"{harness.root}/outer"))
    beside = await init_cluster(store, f"{harness.root}/outer2")
    assert beside.instance_id != outer.instance_id


@pytest.mark.scenario(62)
async def test_of_many_who_make_the_cluster_at_once_one_succeeds(harness: Harness, store: MetadataStore) -> None:
    others = [store, await harness.open()]
    results = await asyncio.gather(*(init_cluster(one, harness.root) for one in others * 3), return_exceptions=True)
    made = [result for result in results if isinstance(result, Cluster)]
    assert len(made) == 1
    assert sum(isinstance(result, ConfigError) for result in results) == 5
    assert (await open_cluster(store, harness.root)).instance_id == made[0].instance_id


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
async def test_making_a_cluster_survives_a_lost_connection(harness: Harness, store: MetadataStore, lost: str) -> None:
    getattr(harness, lost)(store)
    made = await init_cluster(store, harness.root)
    assert (await open_cluster(store, harness.root)).instance_id == made.instance_id


async def test_an_unknown_layout_is_refused(harness: Harness, store: MetadataStore) -> None:
    with pytest.raises(ConfigError, match="flat, hierarchical, long-hierarchical"):
        await init_cluster(store, harness.root, "square")
    assert await store.children(harness.root) == []


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (b'{"version": 2, "layout": "flat"}', UnsupportedVersionError),
        (b"flat", CorruptDataError),
        (b'{"layout": "flat"}', CorruptDataError),
        (b"[]", CorruptDataError),
        (b'{"version": 1, "layout": "square"}', ConfigError),
    ],
)
async def test_a_layout_that_cannot_be_read_is_an_error(
    harness: Harness, store: MetadataStore, stored: bytes, error: type[Exception]
) -> None:
    await init_cluster(store, harness.root)
    await store.put(f"{harness.root}/LAYOUT", stored, 0)
    with pytest.raises(error):
        await open_cluster(store, harness.root)


# --- ledgers ------------------------------------------------------------------------------------------------


@ALL_LAYOUTS
async def test_a_ledgers_life(harness: Harness, store: MetadataStore, layout: str) -> None:
    catalog = (await init_cluster(store, harness.root, layout)).catalog
    made, version = await created(catalog, builder())
    ledger_id = made.ledger_id
    assert await catalog.read(ledger_id) == (made, version)
    closed = made.closed(9, 100)
    assert await catalog.write(closed, version) == Done(version + 1)
    assert await catalog.read(ledger_id) == (closed, version + 1)
    assert await catalog.write(made, version) == Changed()
    assert await catalog.delete(ledger_id) == Gone()
    for outcome in (await catalog.write(made, 1), await catalog.delete(ledger_id)):
        assert outcome == Missing(catalog.path_of(ledger_id))
    with pytest.raises(NoSuchLedgerError, match=f"ledger {ledger_id}"):
        await catalog.read(ledger_id)


@ALL_LAYOUTS
async def test_concurrent_creates_give_distinct_ledgers_and_leave_no_id_nodes(
    harness: Harness, store: MetadataStore, layout: str
) -> None:
    await init_cluster(store, harness.root, layout)
    clusters = [await open_cluster(one, harness.root) for one in (store, await harness.open(), await harness.open())]
    made = await asyncio.gather(*(created(cluster.catalog, builder()) for cluster in clusters for _ in range(40)))
    ids = sorted(metadata.ledger_id for metadata, _ in made)
    assert len(set(ids)) == 120
    assert await listed(clusters[0]) == ids
    for node in LAYOUTS[layout].id_nodes:
        names = await store.children(f"{harness.root}/{node}")
        assert [name for name in names if not name.startswith("HOB-")] == []


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
@pytest.mark.parametrize("writes_before", [0, 1])
@ALL_LAYOUTS
async def test_a_create_whose_connection_is_lost_makes_exactly_one_ledger(
    harness: Harness, store: MetadataStore, layout: str, writes_before: int, lost: str
) -> None:
    cluster = await init_cluster(store, harness.root, layout)
    await cluster.catalog.create(builder("first"))  # so that no partition is missing

    def build(ledger_id: int) -> LedgerMetadata:
        if writes_before == 1:  # the id is there, next the ledger is written
            getattr(harness, lost)(store)
        return builder("second")(ledger_id)

    if writes_before == 0:
        getattr(harness, lost)(store)
    made, version = await created(cluster.catalog, build)
    assert await cluster.catalog.read(made.ledger_id) == (made, version)
    assert len(await listed(cluster)) == 2


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
async def test_a_write_and_a_delete_whose_connection_is_lost_are_found_out(
    harness: Harness, store: MetadataStore, lost: str
) -> None:
    cluster = await init_cluster(store, harness.root)
    made, version = await created(cluster.catalog, builder())
    getattr(harness, lost)(store)
    assert await cluster.catalog.write(made.in_recovery(), version) == Done(1)
    assert await cluster.catalog.read(made.ledger_id) == (made.in_recovery(), 1)
    getattr(harness, lost)(store)
    assert await cluster.catalog.delete(made.ledger_id) == Gone()
    assert isinstance(await cluster.catalog.delete(made.ledger_id), Missing)


@pytest.mark.scenario(62)
async def test_a_lost_write_that_somebody_overtook_is_a_conflict(harness: Harness, store: MetadataStore) -> None:
    cluster = await init_cluster(store, harness.root)
    other = await open_cluster(await harness.open(), harness.root)
    made, version = await created(cluster.catalog, builder())
    harness.lose_request(store)
    # The other one's write comes between the lost write and its second attempt, or before both: a conflict anyhow.
    results = await asyncio.gather(
        cluster.catalog.write(made.closed(1, 10), version),
        other.catalog.write(made.in_recovery(), version),
    )
    stored, _ = await other.catalog.read(made.ledger_id)
    assert sorted(map(repr, results)) == sorted(map(repr, (Changed(), Done(version + 1))))
    assert stored == (made.closed(1, 10) if results[0] == Done(version + 1) else made.in_recovery())


async def test_a_session_lost_between_id_and_ledger_costs_only_the_id(harness: Harness, store: MetadataStore) -> None:
    cluster = await init_cluster(store, harness.root)
    first, _ = await created(cluster.catalog, builder())
    ids: list[int] = []

    def build(ledger_id: int) -> LedgerMetadata:
        ids.append(ledger_id)
        return builder()(ledger_id)

    new_ids = id_generator_of(cluster.catalog)
    new_id = new_ids.next

    async def new_id_and_expiry() -> NewId | NotDone:
        found = await new_id()
        if not ids:
            await harness.expire(store)
        return found

    new_ids.next = new_id_and_expiry  # type: ignore[method-assign]
    made, _ = await created(cluster.catalog, build)
    assert ids == [first.ledger_id + 1, first.ledger_id + 2]
    assert await listed(cluster) == [first.ledger_id, made.ledger_id] == [first.ledger_id, ids[1]]


async def test_an_id_that_was_taken_by_hand_is_skipped(harness: Harness, store: MetadataStore) -> None:
    cluster = await init_cluster(store, harness.root)
    first, _ = await created(cluster.catalog, builder())
    taken = first.ledger_id + 1
    await store.create(cluster.catalog.path_of(taken), builder("by hand")(taken).encode())
    made, _ = await created(cluster.catalog, builder("mine"))
    assert made.ledger_id == taken + 1
    assert (await cluster.catalog.read(taken))[0].owner_token == "by hand"


async def test_a_builder_that_fails_leaves_nothing_behind(harness: Harness, store: MetadataStore) -> None:
    cluster = await init_cluster(store, harness.root, "hierarchical")

    def build(ledger_id: int) -> LedgerMetadata:
        raise LookupError("no bookies")

    with pytest.raises(LookupError):
        await cluster.catalog.create(build)
    with pytest.raises(ConfigError, match="ledger 77"):
        await cluster.catalog.create(lambda ledger_id: builder()(77))
    assert await store.children(f"{harness.root}/idgen") == []
    assert await listed(cluster) == []


@pytest.mark.scenario(63)
async def test_ids_go_on_past_31_bits(harness: Harness, store: MetadataStore) -> None:
    cluster = await init_cluster(store, harness.root)
    small, _ = await created(cluster.catalog, builder())
    await store.create(f"{harness.root}/idgen-long/HOB-0000000001", b"")
    later = await open_cluster(await harness.open(), harness.root)
    large, version = await created(later.catalog, builder())
    assert large.ledger_id == 2**31
    assert await cluster.catalog.read(2**31) == (large, version)
    assert await store.exists(f"{harness.root}/000/0000/0021/4748/L3648")
    huge = builder()(2**63 - 1)
    await ensure_path(store, f"{harness.root}/922/3372/0368/5477", attempts_max=5)
    await store.create(cluster.catalog.path_of(huge.ledger_id), huge.encode())
    assert await listed(cluster) == [small.ledger_id, 2**31, 2**63 - 1]
    # The one that has not heard of the new counter goes on with the old one, and no id comes twice.
    assert (await created(cluster.catalog, builder()))[0].ledger_id == small.ledger_id + 1


@pytest.mark.scenario(63)
async def test_listing_while_ledgers_come_and_go(harness: Harness, store: MetadataStore) -> None:
    cluster = await init_cluster(store, harness.root, "hierarchical")
    other = await open_cluster(await harness.open(), harness.root)
    partitions = [0, 10_000, 20_000, 30_000]
    for first in partitions:
        await ensure_path(store, cluster.catalog.path_of(first).rsplit("/", 1)[0], attempts_max=5)
    stays = [first + index for first in partitions for index in range(50, 70)]
    goes = [first + index for first in partitions for index in range(100, 120)]
    value = builder()(0).encode()
    await asyncio.gather(*(store.create(cluster.catalog.path_of(ledger_id), value) for ledger_id in stays + goes))
    stop = asyncio.Event()

    async def churn() -> int:
        count = 0
        for ledger_id in goes:
            assert await other.catalog.delete(ledger_id) == Gone()
        while not stop.is_set():
            await created(other.catalog, builder())
            count += 1
        return count

    churning = asyncio.create_task(churn())
    for _ in range(10):
        ids = await listed(cluster)
        assert ids == sorted(set(ids))
        assert set(stays) <= set(ids)
    stop.set()
    count = await churning
    assert len(await listed(cluster)) == len(stays) + count


@ALL_LAYOUTS
async def test_nodes_that_are_no_ledgers_are_not_listed(harness: Harness, store: MetadataStore, layout: str) -> None:
    cluster = await init_cluster(store, harness.root, layout)
    for name in ("logs", "underreplication", "L12", "00x", "0000"):
        await ensure_path(store, f"{harness.root}/{name}", attempts_max=5)
    assert await listed(cluster) == []


async def test_a_store_that_stays_away_is_an_error_that_knows_nothing_was_made(
    harness: Harness, store: MetadataStore
) -> None:
    cluster = await init_cluster(store, harness.root)
    impatient = await harness.open(call_timeout_s=0.2)
    away = await open_cluster(impatient, harness.root)
    await harness.suspend(impatient)
    outcome = await away.catalog.create(builder())
    assert isinstance(outcome, NotDone)
    assert isinstance(outcome.error, MetadataUnavailableError)
    assert await listed(cluster) == []


# --- cookies ------------------------------------------------------------------------------------------------


def cookie(bookie_id: str = "b1", **more: str) -> bytes:
    fields = {"bookie_id": bookie_id, "address": "127.0.0.1:3181", "instance_id": "i"} | more
    return json.dumps(fields).encode()


@pytest.mark.parametrize("lost", [None, "lose_request", "lose_reply"])
async def test_a_cookies_life(harness: Harness, store: MetadataStore, lost: str | None) -> None:
    root = harness.root

    def trouble() -> None:
        if lost is not None:
            getattr(harness, lost)(store)

    await init_cluster(store, root)
    assert await read_cookie(store, root, "b1") is None
    trouble()
    assert await write_cookie(store, root, "b1", cookie(), None) == 0
    assert await read_cookie(store, root, "b1") == (cookie(), 0)
    with pytest.raises(MetadataConflictError, match="bookie b1"):
        await write_cookie(store, root, "b1", cookie(), None)
    trouble()
    assert await write_cookie(store, root, "b1", cookie(rack="r"), 0) == 1
    with pytest.raises(MetadataConflictError, match="bookie b1"):
        await write_cookie(store, root, "b1", cookie(), 0)
    assert await list_cookies(store, root) == ["b1"]
    with pytest.raises(MetadataConflictError, match="bookie b1"):
        await delete_cookie(store, root, "b1", 0)
    trouble()
    if lost is not None:  # not tried again: a bookie that came back meanwhile would lose its new cookie
        with pytest.raises(MetadataUnavailableError) as unknown:
            await delete_cookie(store, root, "b1", 1)
        assert unknown.value.outcome_unknown
    if lost != "lose_reply":
        await delete_cookie(store, root, "b1", 1)
    with pytest.raises(BookieUnavailableError, match="knows no such bookie"):
        await delete_cookie(store, root, "b1")
    assert await list_cookies(store, root) == []


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{", b'{"bookie_id": "b1"}', cookie("other"), b'{"bookie_id": 1, "address": "a"}']
)
async def test_a_value_that_is_no_cookie_is_refused(harness: Harness, store: MetadataStore, value: bytes) -> None:
    await init_cluster(store, harness.root)
    with pytest.raises(ConfigError):
        await write_cookie(store, harness.root, "b1", value, None)
    assert await list_cookies(store, harness.root) == []


@pytest.mark.parametrize("bookie_id", ["", "readonly", "a/b", "a b", ".hidden", "x" * 256])
async def test_an_id_that_cannot_name_a_node_is_refused(harness: Harness, store: MetadataStore, bookie_id: str) -> None:
    with pytest.raises(ConfigError, match="bookie id"):
        await read_cookie(store, harness.root, bookie_id)


async def test_connecting_by_uri(zookeeper: ZooKeeperServer) -> None:
    runtime = real_runtime()
    store, root = await connect_store(f"zk://{zookeeper.connect_string}/some/where", runtime)
    assert root == "/some/where"
    assert await store.exists("/")
    await store.close()
    with pytest.raises(ConfigError):
        await connect_store("http://127.0.0.1", runtime)
