"""Under-replication records: they merge, and no newer record is ever lost, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, OpeningStep, Troubled

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import ClientClosedError, CorruptDataError, MetadataUnavailableError, UnsupportedVersionError
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import (
    LossReason,
    LostBookie,
    UnderreplicationQueue,
    UnderreplicationRecord,
    merged,
)
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Unknown
from bkpy.metadata.store.store import Create, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.metadata.store.memory import MemoryStore

ROOT = "/ledgers"
MARKS = f"{ROOT}/underreplication/ledgers"
SETTINGS = RecoverySettings(metadata_write_attempts_max=3, metadata_retry_pause_s=0.001, marks_look_interval_s=0.01)
A = {"a": LostBookie(1000, instance="u1")}
B = {"b": LostBookie(2000, LossReason.DRAINING)}


def opened(
    tree: MemoryStore,
    script: Iterable[str | OpeningStep | None] = (),
    settings: RecoverySettings = SETTINGS,
    guard: str | None = None,
) -> tuple[UnderreplicationQueue, Troubled]:
    store = Troubled(tree, script)
    return UnderreplicationQueue(store, ROOT, runtime_here(), settings, guard=guard), store


async def mark_of(tree: MemoryStore, ledger_id: int = 7) -> UnderreplicationRecord:
    mark = await opened(tree)[0].read(ledger_id)
    assert mark is not None
    return mark


async def listed(marks: UnderreplicationQueue) -> list[int]:
    return [ledger_id async for ledger_id in marks.list()]


def value_of(tree: MemoryStore, mark: UnderreplicationRecord) -> str:
    (path,) = (path for path in tree.paths if path.endswith(f"/{mark.token}"))
    return path


# --- many marks at once ----------------------------------------------------------------------------------------------


async def test_many_new_marks_are_made_in_one_transaction(tree: MemoryStore) -> None:
    marks, store = opened(tree)
    await marks.add(1, B)  # the first one makes the nodes above
    before = store.calls
    assert await marks.add_new([7, 8, 9], A)
    assert store.calls == before + 1
    assert await listed(marks) == [1, 7, 8, 9]
    for ledger_id in (7, 8, 9):
        assert (await mark_of(tree, ledger_id)).lost == A
    assert (await mark_of(tree, 7)).token != (await mark_of(tree, 8)).token


async def test_of_marks_that_are_not_all_new_none_is_made(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    assert not await marks.add_new([7, 8], A)  # nor where nothing is above them
    await marks.add(8, B)
    assert not await marks.add_new([7, 8, 9], A)
    assert await listed(marks) == [8]
    assert (await mark_of(tree, 8)).lost == B


@pytest.mark.parametrize(("trouble", "there"), [(REPLY_LOST, True), (REQUEST_LOST, False), (AWAY, False)])
async def test_new_marks_of_which_nobody_can_tell_are_not_said_to_be_made(
    tree: MemoryStore, trouble: str, there: bool
) -> None:
    await opened(tree)[0].add(1, B)
    marks, _ = opened(tree, [trouble])
    assert not await marks.add_new([7, 8], A)
    assert (7 in await listed(marks)) is there
    for ledger_id in (7, 8):
        assert isinstance(await marks.add(ledger_id, A), Done)
        assert (await mark_of(tree, ledger_id)).lost == A


async def test_new_marks_are_not_made_without_the_guard(tree: MemoryStore) -> None:
    await opened(tree)[0].add(1, B)
    assert not await opened(tree, guard=f"{ROOT}/term")[0].add_new([7, 8], A)
    assert await listed(opened(tree)[0]) == [1]


# --- one mark -------------------------------------------------------------------------------------------------------


async def test_a_mark_is_added_read_and_removed(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    assert await marks.read(7) is None
    assert isinstance(await marks.add(7, A), Done)
    mark = await mark_of(tree)
    assert (mark.ledger_id, mark.lost, mark.node_version) == (7, A, 0)
    assert await marks.remove(mark, ["a"]) == Gone()
    assert await marks.read(7) is None
    await marks.tidy()
    assert not [path for path in tree.paths if path.startswith(f"{MARKS}/")], "empty partitions are left"


async def test_a_person_can_read_it(tree: MemoryStore) -> None:
    await opened(tree)[0].add(7, {**B, **A})
    mark = await mark_of(tree)
    assert value_of(tree, mark) == f"{MARKS}/000/0000/0000/0000/L0007/{mark.token}"
    assert json.loads(tree.node(value_of(tree, mark)).data) == {
        "version": 1,
        "lost": {
            "a": {"since_ms": 1000, "reason": "lost", "instance": "u1"},
            "b": {"since_ms": 2000, "reason": "draining", "instance": ""},
        },
    }


async def test_marks_merge(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    assert isinstance(await opened(tree)[0].add(7, B), Done)
    assert (await mark_of(tree)).lost == {**A, **B}


async def test_what_is_left_on_a_mark_keeps_it(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, {**A, **B})
    assert await marks.remove(await mark_of(tree), ["a", "unheard-of"]) == Done(1)
    assert (await mark_of(tree)).lost == B
    assert await marks.remove(await mark_of(tree), ["b"]) == Gone()


@pytest.mark.parametrize("again", [A, B], ids=["the same", "another"])
async def test_a_mark_that_was_added_later_is_not_removed(tree: MemoryStore, again: dict[str, LostBookie]) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    mark = await mark_of(tree)
    await marks.add(7, again)
    assert await marks.remove(mark, ["a"]) == Changed()
    assert (await mark_of(tree)).lost == {**A, **again}


async def test_a_mark_that_was_removed_and_made_anew_is_another(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, {**A, **B})
    old = await mark_of(tree)
    await marks.remove(old, ["a", "b"])
    await marks.add(7, A)
    assert (await mark_of(tree)).node_version == old.node_version
    assert isinstance(await marks.remove(old, ["a", "b"]), Missing)
    assert isinstance(await marks.remove(old, ["b"]), Missing)
    assert (await mark_of(tree)).lost == A


async def test_a_mark_that_vanishes_while_it_is_merged_is_made_anew(tree: MemoryStore) -> None:
    first, _ = opened(tree)
    await first.add(7, A)
    mark = await mark_of(tree)

    def remove() -> None:
        for path in (value_of(tree, mark), f"{MARKS}/000/0000/0000/0000/L0007"):
            tree.apply(Delete(path), 0)

    for turns in range(1, 5):
        store: Troubled
        marks, store = opened(tree, [*[None] * turns, remove])
        assert isinstance(await marks.add(7, B), Done)
        assert not store.script, "there were fewer calls"
        assert "b" in (await mark_of(tree)).lost
        await marks.remove(await mark_of(tree), ["a", "b"])
        await first.add(7, A)
        mark = await mark_of(tree)
        if turns == 3:
            break  # there are four calls


@pytest.mark.parametrize("there", [False, True], ids=["the first", "merged"])
@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST, AWAY, CLOSED])
@pytest.mark.parametrize("after", range(14))
async def test_a_mark_is_there_when_it_is_said_to_be(tree: MemoryStore, trouble: str, after: int, there: bool) -> None:
    if there:
        await opened(tree)[0].add(7, B)
    marks, _ = opened(tree, [*[None] * after, trouble])
    outcome = await marks.add(7, A)
    lost = getattr(await opened(tree)[0].read(7), "lost", {})
    assert lost in ([{**A, **B}, B] if there else [A, {}])
    if isinstance(outcome, Done):
        assert "a" in lost
    else:
        assert trouble in (AWAY, CLOSED)
        assert isinstance(outcome, NotDone), outcome
        assert "a" not in lost
        assert isinstance(await opened(tree)[0].add(7, A), Done)


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
async def test_a_mark_that_may_be_there(tree: MemoryStore, trouble: str) -> None:
    await opened(tree)[0].add(7, B)
    marks, _ = opened(tree, [None, None, None, *[trouble] * 3, AWAY])
    assert isinstance(await marks.add(7, A), Unknown)


@pytest.mark.parametrize("rest", [False, True], ids=["the last", "one of two"])
@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST, AWAY])
@pytest.mark.parametrize("after", range(3))
async def test_a_mark_that_is_said_to_be_removed_is(tree: MemoryStore, trouble: str, after: int, rest: bool) -> None:
    await opened(tree)[0].add(7, {**A, **B} if rest else A)
    mark = await mark_of(tree)
    marks, _ = opened(tree, [*[None] * after, trouble])
    outcome = await marks.remove(mark, ["a"])
    left = getattr(await opened(tree)[0].read(7), "lost", {})
    if isinstance(outcome, NotDone):
        assert (trouble, after, left) == (AWAY, 0, mark.lost)
    else:
        assert isinstance(outcome, Done if rest else Gone)
        assert left == (B if rest else {})


async def held(tree: MemoryStore) -> LedgerLock:
    lock = await LedgerLocks(tree.session(), ROOT, "holder", runtime_here()).take(7)
    assert isinstance(lock, LedgerLock)
    return lock


async def test_a_mark_goes_together_with_the_lock(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    lock, mark = await held(tree), await mark_of(tree)
    assert await marks.remove_with(mark, lock)
    assert await marks.read(7) is None
    assert not [path for path in tree.paths if path in (lock.path, lock.proof)]
    await marks.tidy()
    assert not [path for path in tree.paths if path.startswith(f"{MARKS}/")], "empty partitions are left"


async def test_a_newer_mark_stays_and_so_does_the_lock(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    lock, mark = await held(tree), await mark_of(tree)
    await marks.add(7, B)
    assert not await marks.remove_with(mark, lock)
    assert (await mark_of(tree)).lost.keys() == {"a", "b"}
    assert {lock.path, lock.proof} <= set(tree.paths)


async def test_without_the_lock_the_mark_stays(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    lock, mark = await held(tree), await mark_of(tree)
    for node in lock.nodes:
        tree.apply(node, 0)
    successor = await held(tree)
    assert not await marks.remove_with(mark, lock)
    assert (await mark_of(tree)).lost == A
    assert {successor.path, successor.proof} <= set(tree.paths)


@pytest.mark.parametrize("trouble", [AWAY, REQUEST_LOST, REPLY_LOST])
async def test_that_both_are_gone_is_said_only_if_it_is_certain(tree: MemoryStore, trouble: str) -> None:
    await opened(tree)[0].add(7, A)
    lock, mark = await held(tree), await mark_of(tree)
    marks, store = opened(tree, [trouble])
    assert not await marks.remove_with(mark, lock)
    assert store.calls == 1, "a second attempt can't tell whose removal it finds"


async def test_a_mark_that_others_write_all_the_time(tree: MemoryStore) -> None:
    await opened(tree)[0].add(7, B)
    other = [None, None, None]  # create, and two reads
    mark = await mark_of(tree)
    path = value_of(tree, mark)

    def write() -> None:
        node = tree.node(path)
        tree.apply(Put(path, node.data, node.version), 0)

    marks, _ = opened(tree, [*other, write] * 3)
    outcome = await marks.add(7, A)
    assert isinstance(outcome, NotDone)
    assert "all the time" in str(outcome.error)
    marks, _ = opened(tree, [*other, write])
    assert isinstance(await marks.add(7, A), Done)


# --- the guard ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [None, A, B], ids=["no mark", "marked", "of another"])
async def test_nothing_is_written_without_the_guard(tree: MemoryStore, marked: dict[str, LostBookie] | None) -> None:
    tree.apply(Create(f"{ROOT}/epoch", b""), 0)
    if marked:
        await opened(tree)[0].add(7, marked)
        mark = await mark_of(tree)
    guarded, _ = opened(tree, guard=f"{ROOT}/epoch")
    tree.apply(Delete(f"{ROOT}/epoch"), 0)
    assert await guarded.add(7, A) == Missing(f"{ROOT}/epoch", 1 if marked else 2)
    if marked:
        assert isinstance(await guarded.remove(mark, ["a"]), Missing)
        assert isinstance(await guarded.remove(mark, ["b"]), Missing)
        assert await mark_of(tree) == mark
    else:
        assert await opened(tree)[0].read(7) is None


@pytest.mark.parametrize("marked", [False, True])
async def test_with_the_guard_all_goes_on(tree: MemoryStore, marked: bool) -> None:
    tree.apply(Create(f"{ROOT}/epoch", b""), 0)
    if marked:
        await opened(tree)[0].add(7, B)
    guarded, _ = opened(tree, guard=f"{ROOT}/epoch")
    assert isinstance(await guarded.add(7, A), Done)
    assert isinstance(await guarded.remove(await mark_of(tree), ["a"]), Done if marked else Gone)


@pytest.mark.parametrize("after", range(12))
async def test_a_guard_that_vanishes_at_any_call(tree: MemoryStore, after: int) -> None:
    await opened(tree)[0].add(7, B)
    tree.apply(Create(f"{ROOT}/epoch", b""), 0)
    marks, store = opened(
        tree, [*[None] * after, lambda: tree.apply(Delete(f"{ROOT}/epoch"), 0)], guard=f"{ROOT}/epoch"
    )
    outcome = await marks.add(7, A)
    assert isinstance(outcome, Missing if not store.script else Done)
    assert ("a" in (await mark_of(tree)).lost) is isinstance(outcome, Done)


# --- what is stored -------------------------------------------------------------------------------------------------


async def test_unknown_fields_survive(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, {**A, **B})
    mark = await mark_of(tree)
    fields = json.loads(tree.node(value_of(tree, mark)).data)
    fields["new"] = [1]
    fields["lost"]["a"]["newer"] = {"x": None}
    tree.apply(Put(value_of(tree, mark), json.dumps(fields).encode(), 0), 0)
    await marks.add(7, A)
    await marks.remove(await mark_of(tree), ["b"])
    stored = json.loads(tree.node(value_of(tree, mark)).data)
    del fields["lost"]["b"]
    assert stored == fields


async def test_a_mark_of_a_newer_version_is_left_alone(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    path = value_of(tree, await mark_of(tree))
    tree.apply(Put(path, b'{"version": 2}', 0), 0)
    with pytest.raises(UnsupportedVersionError, match="upgrade it"):
        await marks.read(7)
    assert isinstance(await marks.add(7, A), NotDone)
    assert tree.node(path).data == b'{"version": 2}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": 1, "lost": []}',
        b'{"version": 1, "lost": {"a": 1}}',
        b'{"version": 1, "lost": {"a": {"since_ms": "1", "reason": "lost", "instance": ""}}}',
        b'{"version": 1, "lost": {"a": {"since_ms": true, "reason": "lost", "instance": ""}}}',
        b'{"version": 1, "lost": {"a": {"since_ms": 1, "reason": 1, "instance": ""}}}',
        b'{"version": 1, "lost": {"a": {"since_ms": 1, "reason": "lost", "instance": null}}}',
        b'{"version": 1, "lost": {"a": {"since_ms": 1, "reason": "lost"}}}',
        pytest.param(b'{"version": 1, "lost": ' + b"[" * 100_000, id="nested deeply"),
    ],
)
async def test_a_damaged_mark_names_nobody_and_is_mended_by_the_next(tree: MemoryStore, data: bytes) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    tree.apply(Put(value_of(tree, await mark_of(tree)), data, 0), 0)
    assert (await mark_of(tree)).lost == {}
    assert await listed(marks) == [7]
    await marks.add(7, B)
    assert (await mark_of(tree)).lost == B


@pytest.mark.parametrize("value", [b"", b"a/b", b"..", b"\xff"])
async def test_a_mark_whose_value_names_no_node_can_not_be_read(tree: MemoryStore, value: bytes) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    mark = await mark_of(tree)
    path = f"{MARKS}/000/0000/0000/0000/L0007"
    tree.apply(Delete(f"{path}/{mark.token}"), 0)
    tree.apply(Put(path, value, 0), 0)
    with pytest.raises(CorruptDataError, match="delete its node"):
        await marks.read(7)
    assert isinstance(await marks.add(7, B), NotDone)
    assert await listed(marks) == [7]


async def test_a_mark_without_a_value(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    await marks.add(7, A)
    tree.apply(Delete(value_of(tree, await mark_of(tree))), 0)
    with pytest.raises(CorruptDataError, match="delete its node"):
        await marks.read(7)
    assert isinstance(await marks.add(7, A), NotDone)


RETURNED, LOST, DRAINING, REBUILDING, CHECK = (
    LostBookie(10, reason, "x") for reason in LossReason if reason is not LossReason.ABSENT
)
ABSENT = LostBookie(10, LossReason.ABSENT, "x", absent_at_creation=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (LOST, LostBookie(20, "lost", "x"), LOST),
        (LostBookie(20, "lost", "x"), LOST, LOST),
        (LOST, LostBookie(20, "lost", ""), LOST),
        (LostBookie(10, "lost", ""), LostBookie(20, "lost", "x"), LOST),
        (LOST, LostBookie(20, "lost", "y"), LostBookie(10, "rebuilding", "y")),  # what x had is gone for good
        *((old, LostBookie(20, "lost", "x"), old) for old in (DRAINING, REBUILDING, CHECK)),
        *((LOST, new, new) for new in (DRAINING, REBUILDING, CHECK)),
        *((old, DRAINING, old) for old in (REBUILDING, CHECK)),  # it lacks something even if it stays after all
        *((DRAINING, new, new) for new in (REBUILDING, CHECK)),
        (CHECK, REBUILDING, CHECK),
        (LostBookie(10, "of a newer bkpy", "x"), CHECK, LostBookie(10, "of a newer bkpy", "x")),
        (DRAINING, LostBookie(20, "lost", "y"), LostBookie(10, "draining", "y")),
    ],
)
def test_a_bookie_that_was_lost_twice(old: LostBookie, new: LostBookie, expected: LostBookie) -> None:
    assert merged({"a": old}, {"a": new, "b": new}) == {"a": expected, "b": new}


def test_no_merge_makes_a_loss_end_with_a_return() -> None:
    """Whatever came in whatever order: if one of the reasons doesn't end with a return, the merged one doesn't."""
    absences = {LossReason.ABSENT, LossReason.RETURNED, LossReason.LOST}
    for old in LossReason:
        for new in LossReason:
            reason = merged({"a": LostBookie(1, old)}, {"a": LostBookie(1, new)})["a"].reason
            assert (reason == LossReason.RETURNED) is (
                LossReason.RETURNED in (old, new) and {old, new} <= {LossReason.ABSENT, LossReason.RETURNED}
            )
            assert (reason == LossReason.LOST) is (LossReason.LOST in (old, new) and {old, new} <= absences)


@pytest.mark.parametrize("other", [RETURNED, LOST, DRAINING, REBUILDING, CHECK])
def test_a_merge_keeps_that_a_bookie_was_absent_at_the_creation(other: LostBookie) -> None:
    """And where it was taken in: the other reason may be over before what it never had is there."""
    taken_in = dataclasses.replace(ABSENT, whole_from=7)
    for old, new in ((ABSENT, other), (other, ABSENT), (taken_in, other), (other, taken_in)):
        loss = merged({"a": old}, {"a": new})["a"]
        assert (loss.reason, loss.absent_at_creation) == (other.reason, True)
        assert loss.whole_from == (7 if taken_in in (old, new) else None)


async def test_the_stored_form_of_an_absent_bookie(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    for loss in (ABSENT, dataclasses.replace(LOST, absent_at_creation=True, whole_from=0)):
        await marks.add(7, {"a": loss})
    mark = await mark_of(tree)
    stored = json.loads((await tree.session().get(value_of(tree, mark)))[0])["lost"]["a"]
    assert stored == {
        "since_ms": 10,
        "reason": "lost",
        "instance": "x",
        "absent_at_creation": True,
        "whole_from": 0,
    }
    assert mark.whole_from == {}  # being lost is of all that it has


# --- all of them ----------------------------------------------------------------------------------------------------


async def test_all_marks_are_listed_in_order(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    assert await listed(marks) == []
    ids = [0, 9_999, 10_000, 123_456_789, 2**31 + 5, 2**63 - 1]
    for ledger_id in reversed(ids):
        await marks.add(ledger_id, A)
    assert await listed(marks) == ids
    await marks.remove(await mark_of(tree, 9_999), ["a"])
    assert await listed(marks) == [0, *ids[2:]]


async def test_those_who_wait_are_woken(tree: MemoryStore) -> None:
    waiting, _ = opened(tree, settings=RecoverySettings(marks_look_interval_s=600.0))
    telling, _ = opened(tree)
    async with asyncio.timeout(10):
        await waiting.changed()  # the first time, for there may be old ones
    for _ in range(3):
        task = asyncio.ensure_future(waiting.changed())
        done, _ = await asyncio.wait([task], timeout=0.01)
        assert not done
        assert isinstance(await telling.announce(), Done)
        async with asyncio.timeout(10):
            await task
    await telling.announce()  # while nobody waits
    async with asyncio.timeout(10):
        await waiting.changed()
    waiting.close()


async def test_those_who_wait_look_now_and_then(tree: MemoryStore) -> None:
    waiting, store = opened(tree)
    async with asyncio.timeout(10):
        for _ in range(3):
            await waiting.changed()
    await store.close()
    with pytest.raises(ClientClosedError):
        await waiting.changed()


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST, AWAY])
@pytest.mark.parametrize("after", range(8))
async def test_an_announcement_that_goes_wrong(tree: MemoryStore, trouble: str, after: int, there: bool) -> None:
    if there:
        await opened(tree)[0].announce()
    watched = tree.session().watch(f"{ROOT}/underreplication/news")
    await anext(watched)
    marks, store = opened(tree, [*[None] * after, trouble])
    outcome = await marks.announce()
    assert isinstance(outcome, NotDone if trouble == AWAY and not store.script else Done) or store.script
    if isinstance(outcome, Done):
        async with asyncio.timeout(10):
            await anext(watched)


async def test_an_announcement_that_cannot_be_told(tree: MemoryStore) -> None:
    await opened(tree)[0].announce()
    marks, _ = opened(tree, [None, *[REQUEST_LOST] * 3])
    assert isinstance(await marks.announce(), Unknown)


# --- the switch -----------------------------------------------------------------------------------------------------


async def test_it_can_be_switched_off_and_on(tree: MemoryStore) -> None:
    marks, _ = opened(tree)
    other, _ = opened(tree, settings=RecoverySettings(marks_look_interval_s=600.0))
    assert await marks.enabled()
    assert isinstance(await marks.set_enabled(True), Done)
    for _ in range(2):
        assert isinstance(await marks.set_enabled(False), Done)
        assert not await other.enabled()
    await other.changed()
    for _ in range(2):
        assert isinstance(await marks.set_enabled(True), Done)
        assert await other.enabled()
    async with asyncio.timeout(10):
        await other.changed()


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST, AWAY])
@pytest.mark.parametrize("after", range(8))
async def test_a_switch_is_as_it_is_said_to_be(tree: MemoryStore, trouble: str, after: int, enabled: bool) -> None:
    await opened(tree)[0].set_enabled(not enabled)
    marks, _ = opened(tree, [*[None] * after, trouble])
    if isinstance(await marks.set_enabled(enabled), Done):
        assert await opened(tree)[0].enabled() is enabled


async def test_reads_say_that_the_store_is_away(tree: MemoryStore) -> None:
    marks, _ = opened(tree, [AWAY] * 4)
    calls: list[Any] = [marks.read(7), marks.enabled(), anext(marks.list())]
    for call in calls:
        with pytest.raises(MetadataUnavailableError):
            await call
