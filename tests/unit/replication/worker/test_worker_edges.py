"""The replication worker at its bounds, and when something changes between two of its steps: nothing waits for ever."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from tests.hooks import cluster_of, heap_of
from tests.unit.client.support import write
from tests.unit.replication.repairing import whole
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.unit.replication.worker.test_worker import healer
from tests.waiting import eventually

from bkpy.client.client import replication_context
from bkpy.errors import MetadataUnavailableError, UnauthorizedError
from bkpy.metadata import paths
from bkpy.metadata.bookies import registration
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.replication.underreplication import LossReason, UnderreplicationQueue, UnderreplicationRecord
from bkpy.metadata.store.store import Create, Delete
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.replication.worker.fragment_copy import Unreadable
from bkpy.replication.worker.ledger_repair import LedgerRepair, Repaired, RepairOutcome
from bkpy.replication.worker.pacing import CopyTurns
from bkpy.replication.worker.record_repair import RecordRepair
from bkpy.replication.worker.repair_queue import RepairQueue
from bkpy.replication.worker.worker_metrics import WorkerMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.in_process import InProcess

    from bkpy.client.client import Client

EVERYBODY = frozenset("abcd")


async def test_a_mark_that_the_worker_may_not_read_holds_up_no_other(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client()
    hidden, writer = [await closed(client, 3) for _ in range(2)]
    read = UnderreplicationQueue.read

    async def read_if_allowed(marks: UnderreplicationQueue, ledger_id: int) -> UnderreplicationRecord | None:
        if ledger_id == hidden.ledger_id:
            raise UnauthorizedError("access control forbids this")
        return await read(marks, ledger_id)

    monkeypatch.setattr(UnderreplicationQueue, "read", read_if_allowed)
    async with healer(four) as one:
        for ledger_id in (hidden.ledger_id, writer.ledger_id):
            await one.mark(ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.ledgers_done > 0)
        assert [ledger_id async for ledger_id in one.marks.list()] == [hidden.ledger_id]
        assert "access control" in one.worker.status()["postponed_ledgers"][str(hidden.ledger_id)]


@pytest.mark.parametrize("hands", [1, 2])
async def test_a_ledger_that_is_being_worked_on_again_is_not_looked_at_all_the_time(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, hands: int
) -> None:
    """Its time has come and it waits its turn, or is worked on: there is nothing to look at."""
    client = await four.client()
    writers = [await closed(client, 3) for _ in range(2)]
    waits = 0
    wait = asyncio.wait
    go_on, holding = asyncio.Event(), asyncio.Event()
    tried: set[int] = set()

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal waits
        waits += 1
        return wait(*given, **more)

    run = RecordRepair.run

    async def fail_and_then_wait(repair: RecordRepair, ledger_id: int, *given: Any, **more: Any) -> Repaired:
        if ledger_id not in tried:
            tried.add(ledger_id)
            return Repaired(RepairOutcome.LATER, "for now")
        holding.set()
        await go_on.wait()
        return await run(repair, ledger_id, *given, **more)

    monkeypatch.setattr(asyncio, "wait", counted)
    monkeypatch.setattr(RecordRepair, "run", fail_and_then_wait)
    async with healer(four, copies_at_once=hands, marks_look_interval_s=60.0) as one:
        for writer in writers:
            await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await holding.wait()
        await asyncio.sleep(0.2)
        before = waits
        await asyncio.sleep(0.5)
        assert waits - before < 20
        go_on.set()
        await one.unmarked()


def test_what_is_queued_again_and_again_takes_no_more_room() -> None:
    queue = RepairQueue("w", 2)
    assert queue.pop(EVERYBODY) is None
    for turn in range(1000):
        for ledger_id in range(5):
            queue.put(ledger_id, turn // 10, frozenset({("a", "b")}))
    assert len(heap_of(queue)) < 200
    assert [queue.pop(EVERYBODY) for _ in range(6)][5:] == [None]


@pytest.mark.parametrize("value", ["newer", "none"])
async def test_a_mark_that_can_not_be_read_holds_up_no_other(four: InProcess, value: str) -> None:
    client = await four.client()
    bad, good = [await closed(client, 3) for _ in range(2)]
    async with healer(four, marks_look_interval_s=60.0, repair_looks_at_once=1) as one:
        for writer in (bad, good):
            await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        path = LONG_HIERARCHICAL.path_of(f"{cluster_of(client).root}/{paths.MARKS}", bad.ledger_id)
        (token,) = await four.tree.session().children(path)
        four.tree.apply(Delete(f"{path}/{token}"), 0)
        if value == "newer":
            four.tree.apply(Create(f"{path}/{token}", json.dumps({"version": 99}).encode()), 0)
        one.start()
        await eventually(lambda: one.worker.ledgers_done == 1)
        status = one.worker.status()
        assert list(status["postponed_ledgers"]) == [str(bad.ledger_id)]
    assert (await client.ledger_metadata(good.ledger_id)).fragments[0].bookies != good.ensemble


@pytest.mark.parametrize("size", [1, 2])
async def test_switched_off_and_on_with_a_full_queue(four: InProcess, size: int) -> None:
    client = await four.client()
    writers = [await closed(client, 3) for _ in range(5)]
    async with healer(four, repair_queue_max=size) as one:
        await one.marks.set_enabled(False)
        for writer in writers:
            await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.status()["queued"] == size)
        await asyncio.sleep(0.3)
        assert (one.worker.ledgers_done, one.worker.status()["enabled"]) == (0, False)
        await one.marks.set_enabled(True)
        await one.unmarked()


@pytest.mark.thorough
async def test_switched_off_while_there_is_more_than_the_queue_takes(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client()
    writers = [await closed(client, 3) for _ in range(30)]
    run = RecordRepair.run

    async def slowly(repair: RecordRepair, *given: Any, **more: Any) -> Repaired:
        await asyncio.sleep(0.05)
        return await run(repair, *given, **more)

    monkeypatch.setattr(RecordRepair, "run", slowly)
    async with healer(four, repair_queue_max=1, copies_at_once=1) as one:
        for writer in writers:
            await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.ledgers_done > 0)
        await one.marks.set_enabled(False)
        await eventually(lambda: not one.worker.status()["enabled"])
        await eventually(lambda: not one.worker.status()["working_on"])
        done = one.worker.ledgers_done
        await asyncio.sleep(0.3)
        assert done == one.worker.ledgers_done < len(writers) // 2
        await one.marks.set_enabled(True)
        await one.unmarked()


@pytest.mark.parametrize("change", ["target", "source"])
async def test_who_comes_right_behind_the_look_is_not_missed(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A ledger can't be worked off, and what it needs is there before that is noted down."""
    client = await cluster.client()
    if change == "source":
        await cluster.start_node("d")
        await eventually(lambda: "d" in client.bookies)
    writer = await closed(client, 5, ensemble_size=2, write_quorum=2, ack_quorum=2)
    spare = {"a", "b", "c", "d"} - set(writer.ensemble)
    gone = writer.ensemble if change == "source" else (writer.ensemble[0], *sorted(spare - {"d"}))
    await lose(cluster, client, *gone)
    run = RecordRepair.run
    comes = gone[1] if change == "source" else "d"
    once = True

    async def and_then_it_comes(repair: RecordRepair, *given: Any, **more: Any) -> Repaired:
        nonlocal once
        ended = await run(repair, *given, **more)
        if ended.how is RepairOutcome.STUCK and once:
            once = False
            await cluster.start_node(comes)
            await eventually(lambda: comes in one.bookies())
        return ended

    monkeypatch.setattr(RecordRepair, "run", and_then_it_comes)
    async with healer(cluster) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0])
        one.start()
        await one.unmarked()
        assert not once
    assert writer.ensemble[0] not in (await whole(client, writer.ledger_id)).fragments[0].bookies


async def test_a_damaged_mark_stays_until_all_that_it_may_mean_is_done(four: InProcess) -> None:
    """It names nobody, so all that are away are meant: of two of them, one can be replaced."""
    client = await four.client()
    writer = await closed(client, 20, ensemble_size=4, write_quorum=2, ack_quorum=2)
    first, _, third, _ = writer.ensemble
    await four.start_node("e")
    await eventually(lambda: "e" in client.bookies)
    await lose(four, client, first, third)
    async with healer(four) as one:
        await one.mark(writer.ledger_id)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        named = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
        assert len({first, third} & set(named)) == 1
        assert [ledger_id async for ledger_id in one.marks.list()] == [writer.ledger_id]
        await four.start_node("f")
        await one.unmarked()
    assert not {first, third} & set((await whole(client, writer.ledger_id)).fragments[0].bookies)


async def test_what_is_stuck_makes_no_open_ledger_wait_for_ever(four: InProcess) -> None:
    """There are more ledgers to remember than fit, again and again: one that waits for its writer is kept."""
    client = await four.client()
    alone = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    stuck = [await closed(client, 1, **alone) for _ in range(8)]
    victim = next(writer.ensemble[0] for writer in stuck)
    dead = await write(client, 3, ensemble_size=4, write_quorum=3, ack_quorum=2)
    await lose(four, client, victim)
    await four.start_node("e")
    async with healer(four, stuck_ledgers_max=1) as one:
        await one.mark(dead.ledger_id, victim)
        for writer in stuck:
            if writer.ensemble[0] == victim:
                await one.mark(writer.ledger_id, victim)
        one.start()
        await eventually(lambda: not one.worker.status()["queued"])

        async def recovered() -> None:
            while (await client.ledger_metadata(dead.ledger_id)).state is not LedgerState.CLOSED:
                await asyncio.sleep(0.05)

        async with asyncio.timeout(10):
            await recovered()


async def test_the_end_of_a_limbo_is_news(four: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie that has lost data can't tell whether it had an entry. When it can, what waited for that is tried."""
    client = await four.client()
    writer = await closed(client, 5)
    copy = LedgerRepair.copy

    def in_limbo(client: Client) -> bool:
        return replication_context(client).directory.bookies[writer.ensemble[1]].in_limbo

    async def unless_in_limbo(repair: LedgerRepair, *given: Any) -> Any:
        return Unreadable(0, "it can't tell") if in_limbo(one.client) else await copy(repair, *given)

    monkeypatch.setattr(LedgerRepair, "copy", unless_in_limbo)
    decode, limbo = registration.decode_registration, {writer.ensemble[1]}

    def registered(bookie_id: str, data: bytes, **given: Any) -> Any:
        return dataclasses.replace(decode(bookie_id, data, **given), in_limbo=bookie_id in limbo)

    monkeypatch.setattr(registration, "decode_registration", registered)
    async with healer(four) as one:
        assert in_limbo(one.client)
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        limbo.clear()
        await replication_context(one.client).directory.refresh()
        await one.unmarked()


async def test_bookies_that_fail_for_long_are_tried_on(four: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that can be watched tells when they answer again: they were registered the whole time."""
    client = await four.client()
    writer = await closed(client, 3)

    async def fail(*_: Any) -> None:
        return None

    monkeypatch.setattr(LedgerRepair, "choose", fail)
    async with healer(four, repair_attempts_max=2) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        monkeypatch.undo()
        await one.unmarked()
        await eventually(lambda: one.worker.status()["stuck"] == 0)


async def test_a_bookie_of_another_fragment_that_takes_entries_again_is_news(four: InProcess) -> None:
    """It is the only one that could take the lost one's place, and the ledger names it already, but not there."""
    client = await four.client()
    writer = await client.create_ledger()
    await writer.append(b"before")
    (spare,) = EVERYBODY - set(writer.ensemble)
    leaving = writer.ensemble[1]
    await lose(four, client, leaving)
    async with asyncio.timeout(10):
        while spare not in writer.ensemble:  # it is in the last fragment from then on
            await writer.append(b"behind")
            await asyncio.sleep(0.02)
    await writer.close()
    await four.start_node(leaving)
    await eventually(lambda: leaving in client.bookies)
    victim = writer.ensemble[0]
    names = [fragment.bookies for fragment in (await client.ledger_metadata(writer.ledger_id)).fragments]
    assert [spare in bookies for bookies in names] == [False, True]
    await four.node(spare).set_read_only(True, "for a while")
    await eventually(lambda: spare in client.read_only_bookies)
    await lose(four, client, victim)
    async with healer(four) as one:
        await eventually(lambda: spare in one.client.read_only_bookies and victim not in one.bookies())
        await one.mark(writer.ledger_id, victim)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        await asyncio.sleep(0.5)
        before = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert victim in before[0].bookies
        await four.node(spare).set_read_only(False, "for a while")

        async def moved() -> None:
            while victim in (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies:
                await asyncio.sleep(0.05)

        async with asyncio.timeout(10):
            await moved()


# --- hands that end by a defect ---------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_ledger_that_fails_for_days_ends_no_hand(four: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause doubles with each failure; a float takes 1,023 doublings."""
    client = await four.client()
    hopeless, ordinary = [await closed(client, 3) for _ in range(2)]
    run = RecordRepair.run
    attempts = 0

    async def fail(repair: RecordRepair, ledger_id: int, *given: Any, **more: Any) -> Repaired:
        nonlocal attempts
        if ledger_id == ordinary.ledger_id:
            return await run(repair, ledger_id, *given, **more)
        attempts += 1
        return Repaired(RepairOutcome.LATER, "too few bookies could be fenced")

    monkeypatch.setattr(RecordRepair, "run", fail)
    quick = {"repair_pause_min_s": 1e-6, "repair_pause_max_s": 1e-6, "repair_attempts_max": 100_000}
    async with healer(four, copies_at_once=1, **quick) as one:
        await one.mark(hopeless.ledger_id, hopeless.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: attempts > 1100)
        await one.mark(ordinary.ledger_id, ordinary.ensemble[0], reason=LossReason.CHECK)
        await eventually(lambda: one.worker.ledgers_done == 1)
        assert one.worker.replaced_tasks == 0


@pytest.mark.parametrize("what", ["error", "cancellation"])
@pytest.mark.parametrize("where", ["hand", "look", "switch"])
async def test_a_task_of_the_worker_that_ends_is_logged_counted_and_replaced(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str, what: str
) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    owner, name = {
        "hand": (CopyTurns, "turn"),
        "look": (UnderreplicationQueue, "list"),
        "switch": (UnderreplicationQueue, "switched"),
    }[where]
    working = getattr(owner, name)
    broken = True

    def break_once(*given: Any) -> Any:
        nonlocal broken
        if broken:
            broken = False
            raise RuntimeError("a defect") if what == "error" else asyncio.CancelledError
        return working(*given)

    monkeypatch.setattr(owner, name, break_once)
    async with healer(four, copies_at_once=1) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.ledgers_done == 1)
        assert not broken
        assert one.worker.replaced_tasks == one.worker.status()["replaced_tasks"] == 1
        registry = CollectorRegistry()
        WorkerMetrics(registry, cluster_of(client).store.runtime.clock).watch(one.worker)
        assert registry.get_sample_value("bkpy_replication_replaced_tasks_total") == 1
    (record,) = [record for record in caplog.records if "ended though the worker runs" in record.message]
    assert record.levelname == "ERROR"


async def test_a_session_that_ends_with_a_failure_of_the_look_is_no_defect(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The switch notices the end at once; the look is told that the store didn't answer, and pauses first."""
    listing = UnderreplicationQueue.list
    looks = asyncio.Event()
    ended = asyncio.Event()

    async def fail_at_the_end(marks: UnderreplicationQueue) -> AsyncIterator[int]:
        if not looks.is_set():
            looks.set()
            await ended.wait()
            await asyncio.sleep(one.settings.repair_pause_min_s / 2)
            raise MetadataUnavailableError("no answer in time")
        async for ledger_id in listing(marks):
            yield ledger_id

    async with healer(four) as one:
        monkeypatch.setattr(UnderreplicationQueue, "list", fail_at_the_end)
        one.start()
        assert one.task is not None
        await looks.wait()
        await cluster_of(one.client).store.close()
        ended.set()
        await one.task
        assert one.worker.replaced_tasks == 0
    assert "ended though the worker runs" not in caplog.text


async def test_a_switch_that_may_not_be_read_is_no_defect(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    enabled, refused = UnderreplicationQueue.enabled, 0

    async def refuse(records: UnderreplicationQueue) -> bool:
        nonlocal refused
        refused += 1
        if refused <= 3:
            raise UnauthorizedError("ZooKeeper refuses the credentials")
        return await enabled(records)

    monkeypatch.setattr(UnderreplicationQueue, "enabled", refuse)
    async with healer(four) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.ledgers_done == 1)
        assert one.worker.replaced_tasks == 0
    assert refused > 3
    assert "ended though the worker runs" not in caplog.text
    refusals = [record for record in caplog.records if "whether re-replication is enabled" in record.message]
    assert [record.levelname for record in refusals] == ["WARNING"] * 3


@pytest.mark.parametrize("whole_worker", [False, True])
@pytest.mark.parametrize("at", ["read", "copy", "remove_with"])
async def test_the_lock_of_a_cancelled_hand_is_released_in_the_same_session(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, at: str, whole_worker: bool
) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    owner = UnderreplicationQueue if at == "remove_with" else LedgerRepair
    act = getattr(owner, at)
    hanging: asyncio.Task[Any] | None = None

    async def hang_once(*given: Any) -> Any:
        nonlocal hanging
        if hanging is None and [path for path in four.tree.paths if "/locks/L" in path]:
            hanging = asyncio.current_task()
            await asyncio.Event().wait()
        return await act(*given)

    monkeypatch.setattr(owner, at, hang_once)
    async with healer(four) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: hanging is not None)
        assert hanging is not None
        if whole_worker:
            await one.stop()
            one.start()
        else:
            hanging.cancel()
        await one.unmarked()
        await eventually(lambda: not [path for path in four.tree.paths if "/locks/L" in path])
