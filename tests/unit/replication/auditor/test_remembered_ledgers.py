"""What the auditor remembers of ledgers: a second loss costs less than the first, and no change is missed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.replication.auditor.auditing import (
    DELAY_S,
    ROOT,
    SETTLE_S,
    Auditing,
    auditing,
    lose,
    metadata,
    replicate,
    until_marked,
)

from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.replication.manual import manual_moves
from bkpy.metadata.replication.underreplication import LossReason, LostBookie
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Delete
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.replication.auditor.remembered_ledgers import RememberedLedgers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.replication.auditor.auditing import Clock, Watched


@pytest.fixture
async def cluster() -> AsyncIterator[Auditing]:
    made = await auditing()
    yield made
    await made.close()


async def test_the_second_loss_costs_less_than_the_first(cluster: Auditing) -> None:
    of = {name: [await cluster.ledger(f"{name} e") for _ in range(20)] for name in "abcd"}
    auditor = await cluster.auditor(audit_follow_interval_s=1000.0)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    first = auditor.store.ledger_reads
    assert first == 80
    await lose(cluster, "b")
    await until_marked(cluster, "b")
    assert auditor.store.ledger_reads - first == 20, "only those that have marks are read"
    assert (await cluster.marked()).keys() == {*of["a"], *of["b"]}


async def test_without_losses_no_ledger_is_read(cluster: Auditing) -> None:
    await cluster.ledger("a b")
    auditor = await cluster.auditor()
    await cluster.rounds(5)
    assert auditor.store.ledger_reads == 0


@pytest.mark.parametrize("interval", [0.002, 1000.0], ids=["followed", "at the next loss"])
async def test_ledgers_that_changed_since_they_were_read_are_read_again(cluster: Auditing, interval: float) -> None:
    closed, moved, opened = [await cluster.ledger("a c"), await cluster.ledger("a c"), await cluster.ledger("c d")]
    await cluster.rewrite(opened, "c d", state=LedgerState.OPEN)
    auditor = await cluster.auditor(audit_follow_interval_s=interval)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await replicate(cluster, moved, "b c")  # to one that is lost next
    await cluster.rewrite(opened, "c d", "b d")  # its writer has left c for b, and closed it
    new = await cluster.ledger("b e")
    await lose(cluster, "b", for_s=DELAY_S)
    await until_marked(cluster, "b")
    assert await cluster.marked() == {closed: {"a"}, moved: {"b"}, opened: {"b"}, new: {"b"}}
    assert auditor.metric("last_whole_audit_seconds") >= 0


async def test_a_ledger_that_comes_to_name_a_lost_bookie_is_marked_later(cluster: Auditing) -> None:
    """A swap, a new ensemble and a new ledger that were decided on before the bookie was lost."""
    moved, opened = await cluster.ledger("a c"), await cluster.ledger("c d", state=LedgerState.OPEN)
    await cluster.auditor()
    await lose(cluster, "a", "b", for_s=SETTLE_S)
    await until_marked(cluster, "a", "b")
    assert await cluster.marked() == {moved: {"a"}}
    await replicate(cluster, moved, "b c")
    await cluster.rewrite(opened, "c d", "b d", state=LedgerState.OPEN)
    new = await cluster.ledger("b e")

    expected = {moved: {"b"}, opened: {"b"}, new: {"b"}}
    for _ in range(1000):
        if await cluster.marked() == expected:
            return
    assert await cluster.marked() == expected


async def test_a_marked_ledger_that_comes_to_name_another_lost_bookie_is_marked_for_that_one_too(
    cluster: Auditing,
) -> None:
    """The first of them may be stuck for ever."""
    stuck = [await cluster.ledger("a c") for _ in range(5)]
    await cluster.auditor(audit_reads_at_once=2)
    await lose(cluster, "a", "b", for_s=SETTLE_S)
    await until_marked(cluster, "a", "b")
    for ledger_id in stuck:
        await cluster.rewrite(ledger_id, "a b")
    await cluster.rounds(20)
    assert await cluster.marked() == {ledger_id: {"a", "b"} for ledger_id in stuck}


@pytest.mark.parametrize("layout", ["flat", "hierarchical", "long-hierarchical"])
async def test_a_ledger_that_is_created_behind_one_with_a_higher_id_is_marked(layout: str) -> None:
    cluster = await auditing(layout=layout)
    await cluster.ledger("a b c")
    slow, never = [await cluster.draw_id() for _ in range(2)]
    fast = await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "e")
    await until_marked(cluster, "e")
    await cluster.rounds(3)
    cluster.create_drawn(slow, "a b d")
    await cluster.rounds(3)
    await lose(cluster, "d")
    await until_marked(cluster, "d")
    assert await cluster.marked() == {slow.ledger_id: {"d"}}
    cluster.tree.apply(Delete(never.node), 0)
    await cluster.rounds(3)
    assert isinstance(await Drains(cluster.tree.session(), ROOT, cluster.runtime).begin("b"), Done)
    await cluster.rounds(3)
    assert await cluster.marked() == {0: {"b"}, slow.ledger_id: {"b", "d"}, fast: {"b"}}
    await cluster.close()


async def test_a_ledger_is_read_again_only_while_its_id_may_hide_another_one(cluster: Auditing) -> None:
    slow = await cluster.draw_id()
    auditor = await cluster.auditor()
    await lose(cluster, "e")
    await until_marked(cluster, "e")
    for _ in range(5):
        await cluster.ledger("a b")
    await cluster.rounds(5)
    before = auditor.store.ledger_reads
    looks = auditor.store.looks
    await cluster.rounds(20)
    # That of the id which is still held, and not the five that are known.
    assert auditor.store.ledger_reads - before <= 2 * (auditor.store.looks - looks)
    assert slow.ledger_id == 0


async def test_a_ledger_that_is_the_last_of_its_partition_is_marked(cluster: Auditing) -> None:
    cluster.give_ids_from(9_998)
    await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "e")
    await until_marked(cluster, "e")
    last = await cluster.ledger("a b")
    assert last == 9_999
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert last in await cluster.marked()


@pytest.mark.parametrize("given", [{"audit_remembered_max": 1}, {"audit_whole_interval_s": 1e-6}])
async def test_without_a_memory_each_loss_takes_a_whole_audit(cluster: Auditing, given: dict[str, Any]) -> None:
    one, two = await cluster.ledger("a c"), await cluster.ledger("b c")
    auditor = await cluster.auditor(audit_follow_interval_s=1000.0, **given)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await lose(cluster, "b")
    await until_marked(cluster, "b")
    assert await cluster.marked() == {one: {"a"}, two: {"b"}}
    assert auditor.store.ledger_reads == 4


class SlowReads:
    """By this clock, each of the auditor's reads of a ledger takes a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.store: Watched | None = None

    def monotonic(self) -> float:
        return self._clock.monotonic() + (60.0 * self.store.ledger_reads if self.store else 0.0)

    def time(self) -> float:
        return self._clock.time()


async def test_an_audit_that_takes_longer_than_the_interval_is_not_followed_by_another_at_once(
    cluster: Auditing, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster with more copies than are remembered would read all its metadata for as long as a bookie is away."""
    for _ in range(3):
        await cluster.ledger("a c")
    slow = SlowReads(cluster.clock)
    cluster.runtime = dataclasses.replace(cluster.runtime, clock=slow)
    auditor = await cluster.auditor(audit_follow_interval_s=100.0, audit_remembered_max=1)
    slow.store = auditor.store
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await cluster.rounds(5)
    assert auditor.store.ledger_reads == 3
    assert "remembers none of them: that takes more than the 1 places of audit_remembered_max" in caplog.text


async def test_records_that_are_there_are_not_written_again_by_an_auditor_that_remembers_nothing(
    cluster: Auditing,
) -> None:
    """Their workers would begin again, and all others look at all of them, at each audit."""
    ids = [await cluster.ledger("a c") for _ in range(3)]
    await cluster.auditor(audit_remembered_max=1)
    await lose(cluster, "a")
    await until_marked(cluster, "a")

    async def state() -> list[int]:
        return [*[(await cluster.mark(ledger_id)).node_version for ledger_id in ids], await cluster.marks.announced()]

    before = await state()
    await cluster.rounds(5)
    assert await state() == before


async def test_losses_are_worked_off_by_an_auditor_that_remembers_nothing(cluster: Auditing) -> None:
    """Else one ledger that nobody can repair keeps them among the absent: with the next loss these are most bookies."""
    stuck, other = await cluster.ledger("a b"), await cluster.ledger("c d")
    await cluster.auditor(audit_remembered_max=1)
    await lose(cluster, "a", "b", for_s=SETTLE_S)
    await until_marked(cluster, "a", "b")
    for _ in range(4):
        cluster.clock.now += 25 * DELAY_S
        await cluster.rounds(3)
    await lose(cluster, "c")
    await until_marked(cluster, "c")
    assert await cluster.marked() == {stuck: {"a", "b"}, other: {"c"}}


@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_remembered_ledgers_on_several_lost_bookies_have_one_record_of_all(
    cluster: Auditing, at_once: int
) -> None:
    on = ["a c", "a b", "b c", "c d", "a b", "b a", "a d", "d b"]
    ids = [await cluster.ledger(ensemble) for ensemble in on]
    auditor = await cluster.auditor(audit_reads_at_once=at_once, audit_follow_interval_s=1000.0)
    await lose(cluster, "e")
    await until_marked(cluster, "e")
    reads = auditor.store.ledger_reads
    await lose(cluster, "a", "b")
    await until_marked(cluster, "a", "b")
    expected = {i: {*names.split()} & {"a", "b"} for i, names in zip(ids, on, strict=True)}
    assert await cluster.marked() == {i: names for i, names in expected.items() if names}
    assert [(await cluster.mark(i)).node_version for i in ids if expected[i]] == [0] * 7
    assert auditor.store.ledger_reads == reads


def test_a_bookie_without_losses_does_not_load_numpy() -> None:
    """It would take as much memory as a small bookie's memtable, in each of them."""
    look = "import sys, bkpy.bookie.node, bkpy.replication.auto_recovery; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


def test_remembered_ledgers_are_in_order_however_they_were_read() -> None:
    memory = RememberedLedgers(1000)
    memory.begin(0.0, 0, (), has_manual_moves=False)
    for ledger_id in (3, 1, 2, 5, 4, 1):
        memory.learn(metadata(ledger_id, LedgerState.CLOSED, ("a b",)))
    parts = [list(part) for part in memory.on(["a", "nobody"], 2)]
    assert parts == [[1], [2, 3], [4, 5]]
    assert list(memory.on(["nobody"], 2)) == []


def test_the_auditor_remembers_what_bookies_a_million_ledgers_are_on() -> None:
    """A hundredth of them, of three copies each, in a hundredth of the memory; and that three in ten have records."""
    memory = RememberedLedgers(RecoverySettings().audit_remembered_max // 100)
    memory.begin(0.0, 0, (), has_manual_moves=False)
    for ledger_id in range(10_000):
        memory.learn(metadata(ledger_id, LedgerState.CLOSED, ("a b c",)))
    memory.end()
    memory.add_recorded(range(3_000))
    assert memory.complete
    assert sum(len(part) for part in memory.on(["a"], 64)) == 10_000


async def test_marks_of_others_that_are_announced_make_all_be_read_again(cluster: Auditing) -> None:
    """Somebody has moved a closed ledger, under a mark of its own that came and went between two looks."""
    one, two = await cluster.ledger("a c"), await cluster.ledger("c d")
    await cluster.auditor(audit_follow_interval_s=1000.0)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await cluster.marks.add(two, {"c": LostBookie(1, LossReason.DRAINING)})
    assert isinstance(await cluster.marks.announce(), Done)
    await replicate(cluster, two, "b d")
    await lose(cluster, "b")
    await until_marked(cluster, "b")
    assert await cluster.marked() == {one: {"a"}, two: {"b"}}


async def test_a_mark_of_somebody_elses_hides_no_new_ledger(cluster: Auditing) -> None:
    """It is read before the ledgers that are new, and is newer than one of them; and nobody has announced it."""
    one = await cluster.ledger("a c")
    await cluster.auditor(audit_follow_interval_s=1000.0)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    new, newer = await cluster.ledger("b c"), await cluster.ledger("c d")
    await cluster.marks.add(newer, {"c": LostBookie(1, LossReason.CHECK)})
    await lose(cluster, "b")
    await until_marked(cluster, "b")
    assert await cluster.marked() == {one: {"a"}, new: {"b"}, newer: {"c"}}


@pytest.mark.parametrize("began", ["before", "before, in a session that ended", "after"])
async def test_copies_that_are_moved_by_hand_make_all_be_read_again(cluster: Auditing, began: str) -> None:
    one, two = await cluster.ledger("a c"), await cluster.ledger("c d")
    store = cluster.tree.session()
    by_hand = manual_moves(store, ROOT, "somebody", cluster.runtime)
    await cluster.auditor(audit_follow_interval_s=1000.0)
    if began != "after":
        await by_hand.__aenter__()
    if "ended" in began:
        store.expire()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    if began == "after":
        await by_hand.__aenter__()
    await cluster.rewrite(two, "b d")
    await by_hand.__aexit__(None, None, None)
    await lose(cluster, "b")
    await until_marked(cluster, "b")
    assert await cluster.marked() == {one: {"a"}, two: {"b"}}
    assert not await cluster.marks.has_manual_moves()


async def test_an_end_of_session_just_before_the_end_of_what_is_moved_by_hand_is_announced(cluster: Auditing) -> None:
    store = cluster.tree.session()
    async with manual_moves(store, ROOT, "somebody", cluster.runtime):
        announced = await cluster.marks.announced()
        store.expire()
    assert await cluster.marks.announced() > announced
    assert not await cluster.marks.has_manual_moves()
