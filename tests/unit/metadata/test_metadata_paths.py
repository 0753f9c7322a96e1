"""Metadata URIs, ledger layouts and node paths."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.in_process import runtime_here

from bkpy.errors import ConfigError
from bkpy.metadata.ledgers.layout import (
    FLAT,
    HIERARCHICAL,
    LAYOUTS,
    LONG_HIERARCHICAL,
    IdGenerator,
    Layout,
    NewId,
    layout_named,
)
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import NotDone
from bkpy.metadata.store.resolve import ensure_path
from bkpy.metadata.store.store import check_path
from bkpy.metadata.uri import parse_uri

if TYPE_CHECKING:
    from bkpy.metadata.store.store import MetadataStore


@pytest.mark.parametrize(
    ("text", "hosts", "root"),
    [
        ("zk://h", [("h", 2181)], "/ledgers"),
        ("zk://h/", [("h", 2181)], "/ledgers"),
        ("zk://127.0.0.1:2182/ledgers", [("127.0.0.1", 2182)], "/ledgers"),
        ("zk://h1:1,h2,h3:3/a/b/", [("h1", 1), ("h2", 2181), ("h3", 3)], "/a/b"),
        ("zk://[::1]:2181,[fe80::1]/x", [("::1", 2181), ("fe80::1", 2181)], "/x"),
    ],
)
def test_a_uri_has_servers_and_a_root(text: str, hosts: list[tuple[str, int]], root: str) -> None:
    uri = parse_uri(text)
    assert uri.hosts == tuple(hosts)
    assert uri.root == root
    assert parse_uri(str(uri)) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:2181",
        "http://h:2181/ledgers",
        "zk:/h/ledgers",
        "zk://",
        "zk:///ledgers",
        "zk://h,/ledgers",
        "zk://,h",
        "zk://h:/ledgers",
        "zk://h:x/ledgers",
        "zk://h:0/ledgers",
        "zk://h:65536/ledgers",
        "zk://h1:1:2/ledgers",
        "zk://user@h/ledgers",
        "zk://a b/ledgers",
        "zk://h,h:2181/ledgers",
        "zk://h//ledgers",
        "zk://h/a//b",
        "zk://h/a/../b",
        "zk://::1/ledgers",
        "zk://h1,h2..example/ledgers",
        f"zk://h1,{'h' * 64}/ledgers",
    ],
)
def test_nonsense_is_refused_and_named(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_uri(text)
    assert repr(text) in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_a_uri_or_refused(text: str) -> None:
    for candidate in (text, f"zk://{text}"):
        try:
            uri = parse_uri(candidate)
        except ConfigError:
            continue
        assert parse_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (FLAT, 1, "/ledgers/L0000000001"),
        (FLAT, 9_999_999_999, "/ledgers/L9999999999"),
        (HIERARCHICAL, 1, "/ledgers/00/0000/L0001"),
        (HIERARCHICAL, 1_234_567_890, "/ledgers/12/3456/L7890"),
        (LONG_HIERARCHICAL, 1, "/ledgers/000/0000/0000/0000/L0001"),
        (LONG_HIERARCHICAL, 2**31, "/ledgers/000/0000/0021/4748/L3648"),
        (LONG_HIERARCHICAL, 2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_where_a_ledger_is(layout: Layout, ledger_id: int, path: str) -> None:
    assert layout.path_of("/ledgers", ledger_id) == path


@pytest.mark.parametrize(
    ("layout", "ledger_id"), [(FLAT, -1), (FLAT, 10**10), (HIERARCHICAL, 10**10), (LONG_HIERARCHICAL, 2**63)]
)
def test_an_id_without_a_place_is_refused(layout: Layout, ledger_id: int) -> None:
    with pytest.raises(ConfigError, match=layout.name):
        layout.path_of("/ledgers", ledger_id)


def test_layouts_have_names() -> None:
    assert {name: layout_named(name) for name in LAYOUTS} == LAYOUTS
    with pytest.raises(ConfigError, match="square"):
        layout_named("square")


async def store_with(layout: Layout, used: dict[str, int]) -> MetadataStore:
    """A store whose counters have been used that often."""
    tree = MemoryStore(runtime_here())
    store = tree.session()
    for node in (*layout.id_nodes, *used):
        await ensure_path(store, f"/ledgers/{node}", attempts_max=1)
    for node, count in used.items():
        tree.node(f"/ledgers/{node}").created = count
    return store


async def id_of(ids: IdGenerator) -> int:
    new = await ids.next()
    assert isinstance(new, NewId), new
    return new.ledger_id


async def check_exhausted(ids: IdGenerator) -> None:
    failure = await ids.next()
    assert isinstance(failure, NotDone)
    assert "no ledger ids left" in failure.error.message
    assert not failure.error.retriable


@pytest.mark.parametrize("layout", [FLAT, HIERARCHICAL])
async def test_short_ids_end_with_the_counter(layout: Layout) -> None:
    ids = IdGenerator(await store_with(layout, {"idgen": 2**31 - 1}), "/ledgers", layout, attempts_max=1)
    assert await id_of(ids) == 2**31 - 1
    await check_exhausted(ids)


async def test_long_ids_take_the_next_counter_when_one_overflows() -> None:
    store = await store_with(LONG_HIERARCHICAL, {"idgen-long/HOB-0000000000": 2**31 - 1})
    first = IdGenerator(store, "/ledgers", LONG_HIERARCHICAL, attempts_max=1)
    second = IdGenerator(store, "/ledgers", LONG_HIERARCHICAL, attempts_max=1)
    assert await id_of(first) == 2**31 - 1
    assert await id_of(first) == 2**31
    assert await id_of(second) == 2**31 + 1
    assert await id_of(first) == 2**31 + 2


async def test_calls_that_find_a_counter_full_at_once_take_the_next_one() -> None:
    store = await store_with(LONG_HIERARCHICAL, {"idgen-long/HOB-0000000000": 2**31 - 1})
    ids = IdGenerator(store, "/ledgers", LONG_HIERARCHICAL, attempts_max=1)
    drawn = await asyncio.gather(*(id_of(ids) for _ in range(5)))
    assert sorted(drawn) == list(range(2**31 - 1, 2**31 + 4))
    assert await id_of(ids) == 2**31 + 4


async def test_long_ids_end_at_63_bits() -> None:
    last = f"idgen-long/HOB-{2**32 - 1:010d}"
    ids = IdGenerator(
        await store_with(LONG_HIERARCHICAL, {last: 2**31 - 1}), "/ledgers", LONG_HIERARCHICAL, attempts_max=1
    )
    assert await id_of(ids) == 2**63 - 1
    await check_exhausted(ids)


@given(st.text("/.a\n", max_size=8))
def test_a_node_path_is_absolute_with_plain_parts(path: str) -> None:
    plain = path == "/" or (path[:1] == "/" and not {"", ".", ".."} & {*path[1:].split("/")})
    with contextlib.nullcontext() if plain else pytest.raises(ValueError, match="no node path"):
        check_path(path)
