"""A BookKeeper cluster's layout, its ledgers and the ids of new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.golden.bookkeeper import reading
from tests.in_process import ROOT, runtime_here
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, Troubled

from bkpy.errors import ConfigError, CorruptDataError, NoSuchLedgerError, UnsupportedVersionError
from bkpy.metadata.bookkeeper.cluster import new_cluster_nodes
from bkpy.metadata.bookkeeper.layout import HYBRID, NEW_LAYOUT, BookKeeperIdGenerator, decode_layout
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.ledgers.catalog import Created
from bkpy.metadata.ledgers.layout import FLAT, HIERARCHICAL, LONG_HIERARCHICAL, NewId
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Done, Gone, NotDone
from bkpy.metadata.store.store import Create, Put
from bkpy.protocol.bookkeeper.entries import master_key
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.ledgers.layout import Layout

GOLDEN = reading.read("metadata.txt")
INSTANCE = "3b1d1f1e-5b7a-4b43-9d3b-0a4d8a5a6c11"
SHORT_END = 2**31 - 1


def new_tree(instance_id: str = INSTANCE) -> MemoryStore:
    tree = MemoryStore(runtime_here())
    tree.apply_all([Create(ROOT, b""), *new_cluster_nodes(ROOT, instance_id)], 0)
    return tree


async def opened(tree: MemoryStore) -> Cluster:
    return await open_cluster(tree.session(), ROOT, of_bookkeeper=True)


def builder(token: str = "5") -> Callable[[int], BookKeeperLedgerMetadata]:
    def build(ledger_id: int) -> BookKeeperLedgerMetadata:
        return BookKeeperLedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState.OPEN,
            ensemble_size=2,
            write_quorum=2,
            ack_quorum=2,
            digest="bk-crc32c",
            ledger_key=master_key(b""),
            fragments=(Fragment(0, ("a:1", "b:2")),),
            owner_token=token,
        )

    return build


# --- LAYOUT ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "layout"),
    [
        (GOLDEN["layout Hierarchical"], HYBRID),
        (GOLDEN["layout LegacyHierarchical"], HIERARCHICAL),
        (GOLDEN["layout LongHierarchical"], LONG_HIERARCHICAL),
        (GOLDEN["layout Flat"], FLAT),
        (b"2\norg.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory:1\n", HYBRID),
        (b"1\nflat:1", FLAT),
        (b"1\nhierarchical:1", HYBRID),
    ],
    ids=lambda value: getattr(value, "name", None) or value.decode(),
)
def test_the_layouts_of_java_are_known(stored: bytes, layout: Layout) -> None:
    assert decode_layout(stored, "/ledgers/LAYOUT") is layout
    assert GOLDEN["layout Hierarchical"] == NEW_LAYOUT


@pytest.mark.parametrize(
    "stored", [b"2", b"2\n", b"2\nflat", b"2\nfl at:1", b"2\nflat:x", b"\xff\xfe", b"99999999999\nx:1"]
)
def test_a_damaged_layout_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptDataError, match="/ledgers/LAYOUT is unreadable"):
        decode_layout(stored, "/ledgers/LAYOUT")


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_layout(b"3\nflat:1", "/ledgers/LAYOUT")
    with pytest.raises(ConfigError, match=r"org\.example\.OwnFactory"):
        decode_layout(b"2\norg.example.OwnFactory:1", "/ledgers/LAYOUT")


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("path ")])
def test_a_ledger_is_where_java_looks_for_it(name: str) -> None:
    ledger_id, path = int(name[5:]), GOLDEN[name].decode()
    assert HYBRID.path_of("/ledgers", ledger_id) == f"/ledgers{path}"
    assert HYBRID.id_of(path[1:]) == ledger_id


@pytest.mark.parametrize("path", ["21/4748/L3647", "000/0000/0000/0000/L0001", "00/0000", "LAYOUT", "00/0000/L000x"])
def test_other_nodes_are_no_ledgers(path: str) -> None:
    assert HYBRID.id_of(path) is None


# --- the cluster ----------------------------------------------------------------------------------------------------


async def test_the_kind_of_a_cluster_is_told_from_its_layout() -> None:
    tree = new_tree()
    cluster = await opened(tree)
    assert cluster.of_bookkeeper
    assert (cluster.instance_id, cluster.layout_name) == (INSTANCE, "bookkeeper-hierarchical")
    with pytest.raises(ConfigError, match="is one of Apache BookKeeper"):
        await open_cluster(tree.session(), ROOT)


async def test_a_cluster_of_our_own_is_none_of_bookkeepers(tree: MemoryStore) -> None:
    assert not (await open_cluster(tree.session(), ROOT, of_bookkeeper=True)).of_bookkeeper


async def test_an_old_cluster_has_no_instance_id() -> None:
    tree = MemoryStore(runtime_here())
    tree.apply_all([Create(ROOT, b""), Create(f"{ROOT}/LAYOUT", b"1\nhierarchical:1")], 0)
    assert (await opened(tree)).instance_id == ""


async def test_an_unreadable_instance_id_is_refused() -> None:
    tree = new_tree()
    tree.apply(Put(f"{ROOT}/INSTANCEID", b"\xff", 0), 0)
    with pytest.raises(CorruptDataError):
        await opened(tree)


async def test_a_ledger_is_created_read_changed_listed_and_deleted() -> None:
    catalog = (await opened(new_tree())).catalog
    created = await catalog.create(builder())
    assert isinstance(created, Created)
    found, version = await catalog.read(created.metadata.ledger_id)
    assert (found, version) == (created.metadata, 0)
    assert isinstance(found, BookKeeperLedgerMetadata)
    assert await catalog.write(found.in_recovery(), 0) == Done(1)
    assert (await catalog.read(0))[0].state is LedgerState.IN_RECOVERY
    assert [ledger_id async for ledger_id in catalog.ids()] == [0]
    assert await catalog.delete(0) == Gone()
    with pytest.raises(NoSuchLedgerError):
        await catalog.read(0)


async def test_short_and_long_ledgers_are_listed_in_order() -> None:
    tree = new_tree()
    catalog = (await opened(tree)).catalog
    ids = [0, 9_999, 10_000, SHORT_END - 1, SHORT_END, (1 << 32) | 5, 2**63 - 1]
    for ledger_id in ids:
        path = HYBRID.path_of(ROOT, ledger_id)
        parts = path.split("/")
        for depth in range(3, len(parts)):
            if not await tree.session().exists("/".join(parts[:depth])):
                tree.apply(Create("/".join(parts[:depth]), b""), 0)
        tree.apply(Create(path, builder()(ledger_id).encode()), 0)
    # Nodes of ids that belong into the other tree are no ledgers: nobody could read them.
    tree.apply_all([Create(f"{ROOT}/21/4748/L3647", b""), Create(f"{ROOT}/000/0000/0021/4748/L3646", b"")], 0)
    assert [ledger_id async for ledger_id in catalog.ids()] == ids
    assert await catalog.listed([0, 1, SHORT_END - 1, SHORT_END]) == {0, SHORT_END - 1, SHORT_END}
    assert [ledger_id async for partition in catalog.partitions(SHORT_END) for ledger_id in partition] == ids[4:]


# --- ids ------------------------------------------------------------------------------------------------------------


def generator(tree: MemoryStore, layout: Layout = HYBRID, session: Troubled | None = None) -> BookKeeperIdGenerator:
    return BookKeeperIdGenerator(session or tree.session(), ROOT, layout, attempts_max=3)


async def id_of(ids: BookKeeperIdGenerator) -> int:
    new = await ids.next()
    assert isinstance(new, NewId)
    return new.ledger_id


async def test_ids_begin_short_and_their_nodes_hold_them() -> None:
    tree = new_tree()
    ids = generator(tree)
    assert [await id_of(ids) for _ in range(3)] == [0, 1, 2]
    assert await tree.session().children(f"{ROOT}/idgen") == [f"ID-{n:010d}" for n in range(3)]
    assert not await tree.session().exists(f"{ROOT}/idgen-long")


async def test_the_next_ids_after_the_short_ones_have_a_high() -> None:
    tree = new_tree()
    ids, others = generator(tree), generator(tree)
    assert await id_of(ids) == 0
    tree.node(f"{ROOT}/idgen").created = SHORT_END - 1
    assert await id_of(ids) == SHORT_END - 1
    assert await id_of(ids) == 1 << 32
    assert await tree.session().children(f"{ROOT}/idgen-long") == ["HOB-0000000001"]
    assert await id_of(others) == 1 << 32 | 1
    tree.node(f"{ROOT}/idgen-long/HOB-0000000001").created = SHORT_END
    assert [await id_of(ids), await id_of(others), await id_of(generator(tree))] == [2 << 32, 2 << 32 | 1, 2 << 32 | 2]


async def test_a_counter_that_java_has_deleted_is_not_made_again() -> None:
    tree = new_tree()
    tree.apply_all([Create(f"{ROOT}/idgen-long", b""), Create(f"{ROOT}/idgen-long/HOB-0000000004", b"")], 0)
    ids = generator(tree)
    assert await id_of(ids) == 4 << 32
    store = tree.session()
    await store.delete(f"{ROOT}/idgen-long/HOB-0000000004/ID-0000000000")
    await store.delete(f"{ROOT}/idgen-long/HOB-0000000004")
    assert await id_of(ids) == 5 << 32
    tree.apply(Create(f"{ROOT}/idgen-long/HOB-0000000009", b""), 0)
    assert await id_of(ids) == 5 << 32 | 1  # no two counters give the same ids
    assert await id_of(generator(tree)) == 9 << 32


async def test_the_ids_of_a_short_layout_end() -> None:
    tree = new_tree()
    ids = generator(tree, HIERARCHICAL)
    assert await id_of(ids) == 0
    tree.node(f"{ROOT}/idgen").created = SHORT_END
    assert isinstance(await ids.next(), NotDone)


async def test_the_last_high_ends_all_ids() -> None:
    tree = new_tree()
    last = f"{ROOT}/idgen-long/HOB-{SHORT_END:010d}"
    tree.apply_all([Create(f"{ROOT}/idgen-long", b""), Create(last, b"")], 0)
    ids = generator(tree)
    assert await id_of(ids) == SHORT_END << 32
    tree.node(last).created = SHORT_END
    refused = await ids.next()
    assert isinstance(refused, NotDone)
    assert not refused.error.retriable


async def test_the_ids_of_the_flat_layout_are_below_the_root() -> None:
    tree = new_tree()
    ids = generator(tree, FLAT)
    first = await id_of(ids)  # a node's number counts its siblings of any name, as LAYOUT
    assert await id_of(ids) == first + 1
    assert await tree.session().exists(f"{ROOT}/ID-{first:010d}")


@pytest.mark.parametrize("trouble", [AWAY, REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("high", [False, True])
async def test_a_failure_at_any_call_gives_no_id_twice(trouble: str, high: bool) -> None:
    for at in range(14):
        tree = new_tree()
        tree.apply(Create(f"{ROOT}/idgen", b""), 0)
        if high:
            tree.node(f"{ROOT}/idgen").created = SHORT_END
        ids = generator(tree, session=Troubled(tree, [*[None] * at, trouble]))
        given = [new.ledger_id for new in [await ids.next() for _ in range(4)] if isinstance(new, NewId)]
        assert len(given) >= 3
        assert len(set(given)) == len(given)
        assert await id_of(generator(tree)) not in given
