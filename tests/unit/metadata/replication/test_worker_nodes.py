"""What workers tell of themselves: one node each, whatever happens to connections and sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, OpeningStep, Troubled

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.replication.worker_nodes import WorkerNode, worker_reports
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.store import Create

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = "/ledgers"
FOLDER = f"{ROOT}/underreplication/workers"
SETTINGS = RecoverySettings(metadata_write_attempts_max=2, metadata_retry_pause_s=0.001)


@pytest.fixture
async def tree() -> MemoryStore:
    found = MemoryStore(runtime_here())
    found.apply(Create(ROOT, b""), 0)
    return found


def node(tree: MemoryStore, script: Iterable[str | OpeningStep | None] = ()) -> tuple[WorkerNode, Troubled]:
    store = Troubled(tree, script)
    return WorkerNode(store, ROOT, SETTINGS), store


async def told(tree: MemoryStore) -> list[Any]:
    return [fields["n"] for fields in await worker_reports(tree.session(), ROOT)]


async def test_each_has_one_node_with_what_it_told_last(tree: MemoryStore) -> None:
    one, _ = node(tree)
    two, _ = node(tree)
    for n in range(3):
        await two.tell({"name": "two", "n": n})
        await one.tell({"name": "one", "n": -n})
        assert await told(tree) == [-n, n]
    applied = len(tree.paths)
    await one.tell({"name": "one", "n": -2})
    assert len(tree.paths) == applied


async def test_a_bookie_that_rebuilds_itself_is_told_of_and_is_no_worker(tree: MemoryStore) -> None:
    workers = [node(tree)[0] for _ in range(3)]
    rebuilding = [WorkerNode(tree.session(), ROOT, SETTINGS, rebuilding=True) for _ in range(4)]
    for n, one in enumerate([*workers, *rebuilding]):
        await one.tell({"name": f"{n}", "n": n})
    assert sorted([await one.place() for one in workers]) == [(0, 3), (1, 3), (2, 3)]
    assert await told(tree) == list(range(7))


async def test_it_goes_with_the_session_and_is_made_anew_though_nothing_changed(tree: MemoryStore) -> None:
    one, store = node(tree)
    await one.tell({"name": "one", "n": 1})
    store.expire()
    assert await told(tree) == []
    for _ in range(2):  # the first finds that it is gone
        await one.tell({"name": "one", "n": 1})
    assert await told(tree) == [1]


@pytest.mark.parametrize("first", [AWAY, REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("second", [None, AWAY, REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("before", range(6))
async def test_the_next_one_tells_what_could_not_be_told(
    tree: MemoryStore, first: str, second: str | None, before: int
) -> None:
    one, _ = node(tree, [*[None] * before, first, second, first])
    for n in range(8):
        try:
            await one.tell({"name": "one", "n": n})
        except MetadataUnavailableError:
            continue
        assert len(await told(tree)) <= 1
    assert await told(tree) == [7]


async def test_what_cannot_be_read_is_left_out(tree: MemoryStore) -> None:
    one, _ = node(tree)
    assert await told(tree) == []
    await one.tell({"name": "one", "n": 1})
    for name, value in (("a", b"{"), ("b", b"[]"), ("c", b"{}"), ("d", b'{"version": 9, "name": "d", "n": 2, "x": 0}')):
        tree.apply(Create(f"{FOLDER}/{name}", value), 0)
    assert await told(tree) == [2, 1]
    assert json.loads(tree.node(f"{FOLDER}/d").data)["version"] == 9


@pytest.mark.parametrize(
    "fields",
    [
        {"bytes_per_s": "much"},
        {"ledgers_per_s": None},
        {"queued": [1]},
        {"working_on": 7},
        {"stuck_ledgers": ["7"]},
        {"stuck_ledgers": {"seven": "why"}},
        {"rebuilding": 7},
        {"rebuilding": {"ledgers": "all"}},
    ],
)
async def test_a_report_of_another_shape_is_left_out(tree: MemoryStore, fields: dict[str, Any]) -> None:
    """As that of a newer version may be."""
    one, _ = node(tree)
    await one.tell({"name": "one", "n": 1})
    other, _ = node(tree)
    await other.tell({"name": "other", "n": 2, **fields})
    assert await told(tree) == [1]
