"""What is seen of the bookies, while they move between the writable and the read-only ones."""

from __future__ import annotations

import json

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import Troubled

from bkpy.metadata import paths
from bkpy.metadata.bookies.membership import look_at_bookies
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.store import Create, Delete
from bkpy.protocol.repair.lost_bookies import BookieStatus, Presence

ROOT, BOOKIE = "/c", "b1"
REGISTERED = json.dumps({"version": 1, "address": "127.0.0.1:1"}).encode()
CALLS = 8  # of a look at one bookie, at most


@pytest.mark.parametrize("call", range(CALLS))
@pytest.mark.parametrize("read_only", [False, True], ids=["to the read-only ones", "to the writable ones"])
async def test_a_bookie_that_moves_meanwhile_is_here(call: int, read_only: bool) -> None:
    tree = MemoryStore(runtime_here())
    places = [paths.available(ROOT, BOOKIE, read_only=one) for one in (read_only, not read_only)]
    for path in (ROOT, *(f"{ROOT}/{name}" for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES))):
        tree.apply(Create(path, b""), 0)
    tree.apply(Create(paths.cookie(ROOT, BOOKIE), b"{}"), 0)
    tree.apply(Create(places[0], REGISTERED), 0)

    def move() -> None:  # as `Registration` does
        tree.apply(Create(places[1], REGISTERED), 0)
        tree.apply(Delete(places[0]), 0)

    store = Troubled(tree, [*[None] * call, move])
    seen = await look_at_bookies(store, ROOT, reads_at_once=1)
    assert seen[BOOKIE].presence is Presence.HERE


async def test_a_bookie_that_is_in_neither_place_is_absent() -> None:
    tree = MemoryStore(runtime_here())
    for path in (ROOT, *(f"{ROOT}/{name}" for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES))):
        tree.apply(Create(path, b""), 0)
    tree.apply(Create(paths.cookie(ROOT, BOOKIE), b"{}"), 0)
    assert (await look_at_bookies(tree.session(), ROOT, reads_at_once=1))[BOOKIE].presence is Presence.ABSENT


async def test_who_is_looked_at() -> None:
    """Whoever has a cookie, is registered or is asked for; not what isn't named as a bookie, nor who is gone."""
    tree = MemoryStore(runtime_here())
    for path in (ROOT, *(f"{ROOT}/{name}" for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES))):
        tree.apply(Create(path, b""), 0)
    for path in (paths.cookie(ROOT, "a"), f"{ROOT}/{paths.COOKIES}/no bookie"):
        tree.apply(Create(path, b"{}"), 0)
    for bookie in ("b", "no bookie"):
        tree.apply(Create(paths.available(ROOT, bookie, read_only=False), REGISTERED), 0)
    tree.apply(Create(paths.available(ROOT, "c", read_only=True), REGISTERED), 0)
    seen = await look_at_bookies(tree.session(), ROOT, reads_at_once=1, named=("d",))
    assert seen == {
        "a": BookieStatus(Presence.ABSENT),
        "b": BookieStatus(Presence.HERE, has_cookie=False),
        "c": BookieStatus(Presence.HERE, has_cookie=False),
        "d": BookieStatus(Presence.ABSENT, has_cookie=False),
    }
    store = Troubled(tree, [*[None] * 4, lambda: tree.apply(Delete(paths.available(ROOT, "b", read_only=False)), 0)])
    assert (await look_at_bookies(store, ROOT, reads_at_once=1)).keys() == {"a", "c"}
