"""The election of the auditor: one leads at a time and writes nothing once it doesn't, whatever happens to sessions."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, OpeningStep, Troubled
from tests.waiting import eventually

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import MetadataConflictError
from bkpy.metadata.replication.election import Election, Leader, leader
from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Done, Missing
from bkpy.metadata.store.resolve import ensure_path
from bkpy.metadata.store.store import Create, Delete

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from bkpy.metadata.store.memory import MemoryStore

ROOT = "/ledgers"
LINE = f"{ROOT}/underreplication/auditorelection"
SETTINGS = RecoverySettings(metadata_write_attempts_max=3, metadata_retry_pause_s=0.001, audit_look_interval_s=0.005)


class Candidate:
    """One that stands for election; `terms` are the nodes with which it has led."""

    def __init__(self, tree: MemoryStore, name: str, script: Iterable[str | OpeningStep | None] = ()) -> None:
        self.store = Troubled(tree, script)
        self.election = Election(self.store, ROOT, name, runtime_here(), SETTINGS)
        self.terms: list[str] = []
        self.led = asyncio.Event()
        self.marks: UnderreplicationQueue | None = None
        self.task = asyncio.ensure_future(self.election.stand(self.lead))

    async def lead(self, node: str) -> None:
        self.terms.append(node)
        self.marks = UnderreplicationQueue(self.store, ROOT, runtime_here(), SETTINGS, guard=node)
        self.led.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.led.clear()

    async def elected(self) -> None:
        async with asyncio.timeout(10):
            await self.led.wait()

    async def deposed(self) -> None:
        async with asyncio.timeout(10):
            while self.led.is_set():
                await asyncio.sleep(0)


@pytest.fixture
async def candidates(tree: MemoryStore) -> AsyncIterator[Any]:
    made: list[Candidate] = []

    def stand(name: str, script: Iterable[str | OpeningStep | None] = ()) -> Candidate:
        made.append(Candidate(tree, name, script))
        return made[-1]

    yield stand
    for candidate in made:
        candidate.task.cancel()
    await asyncio.wait([candidate.task for candidate in made])


def places(tree: MemoryStore) -> list[str]:
    return [path for path in tree.paths if path.startswith(f"{LINE}/")]


async def wait_until_in_line(tree: MemoryStore, count: int) -> None:
    await eventually(lambda: len(places(tree)) == count)


@pytest.mark.scenario(57)
async def test_one_leads_and_the_next_in_line_follows(tree: MemoryStore, candidates: Any) -> None:
    first = candidates("a")
    await first.elected()
    second = candidates("b")
    await wait_until_in_line(tree, 2)
    third = candidates("c")
    await wait_until_in_line(tree, 3)
    assert not second.led.is_set()
    assert [await leader(tree.session(), ROOT)] == [Leader("a", pytest.approx(0, abs=1e13), first.terms[0])]
    await first.store.close()
    await second.elected()
    assert not third.led.is_set()
    assert not first.led.is_set()
    await second.store.close()
    await third.elected()


async def test_nobody_leads_a_cluster_without_candidates(tree: MemoryStore) -> None:
    assert await leader(tree.session(), ROOT) is None


async def test_each_watches_only_the_one_before_it(tree: MemoryStore, candidates: Any) -> None:
    first = candidates("a")
    await first.elected()
    for count, name in enumerate("bcd", 2):
        candidates(name)
        await wait_until_in_line(tree, count)
    await asyncio.sleep(0.01)
    line = sorted(places(tree), key=lambda path: path.rpartition("-")[2])
    assert [tree.watched(path) for path in line] == [True, True, True, False]
    assert not tree.watched(LINE, children=True)


async def test_one_in_the_middle_that_leaves_wakes_nobody_to_lead(tree: MemoryStore, candidates: Any) -> None:
    first = candidates("a")
    await first.elected()
    second = candidates("b")
    await wait_until_in_line(tree, 2)
    third = candidates("c")
    await wait_until_in_line(tree, 3)
    await second.store.close()
    await wait_until_in_line(tree, 2)
    await asyncio.sleep(0.01)
    assert not third.led.is_set()
    await first.store.close()
    await third.elected()


async def test_a_candidate_that_may_not_read_the_line_for_a_while_keeps_nobody_from_leading(
    tree: MemoryStore, candidates: Any
) -> None:
    """As while the access control of the cluster changes. Its place is the first."""
    first = candidates("a")
    first.store.forbidden = {LINE}
    await wait_until_in_line(tree, 1)
    second = candidates("b")
    await wait_until_in_line(tree, 2)
    await asyncio.sleep(0.01)
    first.store.forbidden = set()
    await second.elected()
    await wait_until_in_line(tree, 2)
    await second.store.close()
    await first.elected()


async def test_a_leader_gives_up_when_its_session_is_suspended(tree: MemoryStore, candidates: Any) -> None:
    first = candidates("a")
    await first.elected()
    second = candidates("b")
    await wait_until_in_line(tree, 2)
    first.store.suspend()
    await first.deposed()
    assert not second.led.is_set(), "its place is still there"
    first.store.resume()
    await second.elected()
    await wait_until_in_line(tree, 2)
    assert len(first.terms) == 1
    await second.store.close()
    await first.elected()
    assert first.terms[0] != first.terms[1]


async def test_a_leader_gives_up_when_its_session_expires_or_its_node_goes(tree: MemoryStore, candidates: Any) -> None:
    only = candidates("a")
    for act in (only.store.expire, lambda: tree.apply(Delete(only.terms[-1]), 0)):
        await only.elected()
        terms = len(only.terms)
        act()
        await only.deposed()
        await only.elected()
        assert len(only.terms) == terms + 1
    assert len(set(only.terms)) == 3


@pytest.mark.scenario(57)
async def test_a_deposed_leader_writes_nothing(tree: MemoryStore, candidates: Any) -> None:
    """It has not noticed: its session was forgotten while it was suspended, and is another one now."""
    first = candidates("a")
    await first.elected()
    marks = first.marks
    assert isinstance(await marks.add(1, {"x": LostBookie(1)}), Done)
    first.store.suspend()
    first.store.expire()
    second = candidates("b")
    await second.elected()
    first.store.resume()
    outcome = await marks.add(2, {"x": LostBookie(1)})
    assert isinstance(outcome, Missing)
    assert outcome.node == first.terms[0]
    assert isinstance(await marks.add(1, {"y": LostBookie(1)}), Missing)
    assert isinstance(await second.marks.add(2, {"x": LostBookie(1)}), Done)


@pytest.mark.parametrize("error", [MetadataConflictError("no"), ValueError("a defect")])
async def test_one_that_fails_to_lead_lets_another_one_try(
    tree: MemoryStore, candidates: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    terms = 0

    async def fail(node: str) -> None:
        nonlocal terms
        terms += 1
        await asyncio.sleep(0)
        raise error

    task = asyncio.ensure_future(Election(tree.session(), ROOT, "bad", runtime_here(), SETTINGS).stand(fail))
    try:
        async with asyncio.timeout(10):
            while terms < 2:  # nobody else is there
                await asyncio.sleep(0.001)
        other = candidates("b")
        await other.elected()
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert "gives up its term" in caplog.text


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST, AWAY])
@pytest.mark.parametrize("after", range(14))
async def test_trouble_at_any_call_leaves_one_leader_and_no_place_that_nobody_uses(
    tree: MemoryStore, candidates: Any, trouble: str, after: int
) -> None:
    first = candidates("a", [*[None] * after, trouble])
    await first.elected()
    second = candidates("b", [*[None] * after, trouble])
    await one_leads(tree, first, second)
    leading = first if first.led.is_set() else second
    leading.store.suspend()
    await leading.deposed()
    leading.store.resume()
    await one_leads(tree, first, second)


async def one_leads(tree: MemoryStore, *candidates: Candidate) -> None:
    """Return when each has one place and one leads; at no moment until then there are two that lead."""

    def settled() -> bool:
        leading = sum(candidate.led.is_set() for candidate in candidates)
        assert leading <= 1
        return leading == 1 and len(places(tree)) == len(candidates)

    await eventually(settled)


@pytest.mark.parametrize("after", range(10))
async def test_a_store_that_was_closed_ends_it(tree: MemoryStore, candidates: Any, after: int) -> None:
    only = candidates("a", [*[None] * after, CLOSED])
    async with asyncio.timeout(10):
        while not only.led.is_set() and not only.task.done():
            await asyncio.sleep(0.001)
        await only.store.close()
        await only.task
    assert not only.led.is_set()


async def test_who_withdraws_leaves_no_place(tree: MemoryStore, candidates: Any) -> None:
    first = candidates("a")
    await first.elected()
    second = candidates("b")
    await wait_until_in_line(tree, 2)
    first.store.script.extend([AWAY, REQUEST_LOST])
    first.task.cancel()
    await asyncio.wait([first.task])
    assert not first.led.is_set()
    await first.election.withdraw()
    await second.elected()
    assert len(places(tree)) == 1


async def test_strangers_in_the_line_are_left_alone(tree: MemoryStore, candidates: Any) -> None:
    first = candidates("a")
    await first.elected()
    tree.apply(Create(f"{LINE}/somebody", b""), 0)
    tree.apply(Create(f"{LINE}/other-0000000000", b"["), 0)
    second = candidates("b")
    await wait_until_in_line(tree, 4)
    found = await leader(tree.session(), ROOT)
    assert found is not None
    assert found.candidate in ("a", "")
    assert not second.led.is_set()


@pytest.mark.parametrize("since_ms", [None, "long ago", [], 1.5])
async def test_a_leader_whose_record_is_of_another_shape_is_the_leader(tree: MemoryStore, since_ms: object) -> None:
    value = json.dumps({"version": 2, "candidate": "a", "since_ms": since_ms}).encode()
    store = tree.session()
    await ensure_path(store, LINE, attempts_max=1)
    await store.create(f"{LINE}/a-0000000000", value)
    assert await leader(store, ROOT) == Leader("a", 0, f"{LINE}/a-0000000000")
