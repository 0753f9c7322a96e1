"""The periodic checks: what bookies lack is marked, once it is certain, and what is there is not."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, ROOT, InProcess, rewrite, runtime_here
from tests.unit.client.support import payload
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, Troubled
from tests.unit.replication.repairing import Repairs, whole
from tests.unit.replication.worker.test_ledger_repair import damage
from tests.waiting import eventually

import bkpy
from bkpy.client.client import open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import MetadataConflictError, UnauthorizedError, UnsupportedVersionError
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.paths import CHECKS, MARKS
from bkpy.metadata.replication.check_record import CheckRecord, CheckRecords, CheckRun
from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationQueue
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bkpy.replication.auditor.checks import PLACEMENT, REPLICAS, CheckMetrics, PeriodicChecks
from bkpy.replication.worker.ledger_repair import RepairOutcome

if TYPE_CHECKING:
    from bkpy.client.client import Client

GUARD = f"{ROOT}/underreplication/term"
QUICK = {"audit_look_interval_s": 0.01, "check_window_entries": 4, "check_windows": 4, "check_read_bytes": 100}


class Checking:
    """The checks of one term."""

    def __init__(self, cluster: InProcess, client: Client, **settings: Any) -> None:
        self.tree = cluster.tree
        if GUARD not in self.tree.paths:
            self.tree.apply(Create(f"{ROOT}/underreplication", b""), 0)
            self.tree.apply(Create(GUARD, b""), 0)
        store = cluster_of(client).store
        self.settings = RecoverySettings(**{**QUICK, **settings})
        self.registry = CollectorRegistry()
        self.marks = UnderreplicationQueue(store, ROOT, store.runtime, self.settings)
        self.records = CheckRecords(store, ROOT, guard=GUARD, settings=self.settings)
        metrics = CheckMetrics(self.registry, (REPLICAS, PLACEMENT))
        self.named: set[str] = set()  # what the auditor hears
        self.checks = PeriodicChecks(
            replication_context(client), GUARD, store.runtime, self.settings, metrics, self.named.update
        )

    async def ended(self, *, runs: int = 1) -> dict[str, CheckRun]:
        """Run until every check has ended so often; what the record says then."""
        task = asyncio.create_task(self.checks.run())
        found: set[tuple[str, int]] = set()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    record = await self.records.read()
                    found |= {(name, run.ended_ms) for name, run in record.runs.items() if run.ended_ms >= run.began_ms}
                    if all(sum(n == name for n, _ in found) >= runs for name in (REPLICAS, PLACEMENT)):
                        return dict(record.runs)
                    if task.done():
                        task.result()
                    await asyncio.sleep(0.005)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def marked(self) -> dict[int, dict[str, str]]:
        found = {}
        async for ledger_id in self.marks.list():
            mark = await self.marks.read(ledger_id)
            assert mark is not None
            found[ledger_id] = {name: loss.reason for name, loss in mark.lost.items()}
        return found


async def closed(client: Client, count: int = 40, **sizes: int) -> LedgerMetadata:
    writer = await client.create_ledger(**sizes)
    for i in range(count):
        await writer.append(payload(i))
    await writer.close()
    async with asyncio.timeout(DEADLINE_S):
        while min(
            -1 if isinstance(n, Exception) else n
            for n in (await bkpy.AdminClient(client).last_entries(writer.metadata)).values()
        ) < (count - sizes.get("ensemble_size", 3)):
            await asyncio.sleep(0.005)
    return await client.ledger_metadata(writer.ledger_id)


async def test_it_tells_the_auditor_which_bookies_ledgers_name(five: InProcess) -> None:
    client = await five.client()
    metadata = await closed(client)
    await rewrite(client, metadata.ledger_id, fragments=(Fragment(0, ("gone", *metadata.fragments[0].bookies[1:])),))
    checking = Checking(five, client)
    await checking.ended()
    assert checking.named == {"gone", *metadata.fragments[0].bookies[1:]}


async def test_what_is_whole_is_not_marked(five: InProcess) -> None:
    client = await five.client()
    await closed(client)
    await closed(client, ensemble_size=5, write_quorum=3, ack_quorum=2)
    await closed(client, 0)
    await closed(client, 1)
    writer = await client.create_ledger()
    await writer.append(b"open")
    checking = Checking(five, client)
    runs = await checking.ended()
    assert await checking.marked() == {}
    assert {name: (run.ledgers, run.marked) for name, run in runs.items()} == {REPLICAS: (5, 0), PLACEMENT: (5, 0)}
    assert checking.registry.get_sample_value("bkpy_check_read_bytes_total")
    for check in (REPLICAS, PLACEMENT):  # zeros are there: an alarm asks whether they have increased
        assert checking.registry.get_sample_value("bkpy_check_marked_total", {"check": check}) == 0
    await writer.close()


@pytest.mark.scenario(61)
@pytest.mark.parametrize("sizes", [(3, 3), (3, 2)])
async def test_a_bookie_that_has_nothing_of_what_it_is_named_for_is_marked_and_replaced(
    five: InProcess, sizes: tuple[int, int]
) -> None:
    client = await five.client()
    metadata = await closed(client, ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[1])
    a, b, _ = metadata.fragments[0].bookies
    other = next(name for name in "abcde" if name not in metadata.fragments[0].bookies)
    await rewrite(client, metadata.ledger_id, fragments=(Fragment(0, (a, b, other)),))
    checking = Checking(five, client)
    runs = await checking.ended()
    assert await checking.marked() == {metadata.ledger_id: {other: "check"}}
    assert runs[REPLICAS].marked == 1
    assert (await Repairs(client).run(metadata.ledger_id, {other})).how is RepairOutcome.DONE
    if sizes[1] == 3:
        await whole(client, metadata.ledger_id)


@pytest.mark.scenario(58)
@pytest.mark.parametrize("entry_id", [0, 39])
async def test_a_damaged_copy_is_marked_and_replaced_by_a_sound_one(five: InProcess, entry_id: int) -> None:
    client = await five.client()
    metadata = await closed(client)
    name = metadata.fragments[0].bookies[1]
    damage(five, name, metadata.ledger_id, entry_id)
    checking = Checking(five, client)
    await checking.ended()
    assert await checking.marked() == {metadata.ledger_id: {name: "check"}}
    assert (await Repairs(client).run(metadata.ledger_id, {name})).how is RepairOutcome.DONE
    assert name not in (await whole(client, metadata.ledger_id)).fragments[0].bookies


async def test_a_bookie_that_does_not_answer_lacks_nothing(five: InProcess) -> None:
    client = await five.client()
    metadata = await closed(client)
    five.kill(metadata.fragments[0].bookies[0])
    checking = Checking(five, client)
    await checking.ended()
    assert await checking.marked() == {}


async def test_what_is_there_at_the_second_look_is_not_marked(five: InProcess) -> None:
    """The slowest bookie of a ledger that was just closed."""
    client = await five.client()
    metadata = await closed(client)
    storage = five.storage(metadata.fragments[0].bookies[2])
    read, reads = storage.read, 0

    async def late(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        result = await read(*args)
        return result._replace(segments=[]) if reads == 1 else result

    storage.read = late  # type: ignore[method-assign]
    checking = Checking(five, client)
    await checking.ended()
    assert reads > 1
    assert await checking.marked() == {}


@pytest.mark.thorough
@pytest.mark.scenario(61)
@pytest.mark.parametrize("trouble", [AWAY, REQUEST_LOST, REPLY_LOST])
async def test_whatever_the_store_does_at_any_call_what_falls_short_is_marked(five: InProcess, trouble: str) -> None:
    client = await five.client()
    metadata = await closed(client, 3)
    a, b, _ = metadata.fragments[0].bookies
    other = next(name for name in "abcde" if name not in metadata.fragments[0].bookies)
    await rewrite(client, metadata.ledger_id, fragments=(Fragment(0, (a, b, other)),))
    store = Troubled(five.tree)
    troubled = await open_client(store, ROOT, runtime_here(), client_settings())
    five.clients.append(troubled)
    await Checking(five, troubled, metadata_retry_pause_s=0.001).ended()
    calls = 0
    for calls in range(100):
        checking = Checking(five, troubled, metadata_retry_pause_s=0.001)
        watching = Checking(five, client)
        for ledger_id in await watching.marked():
            mark = await watching.marks.read(ledger_id)
            assert mark is not None
            await watching.marks.remove(mark, mark.lost)
        await watching.records.read()
        await watching.records.write(CheckRecord())
        store.script.extend([*[None] * calls, trouble])
        checking.records = watching.records
        runs = await checking.ended()
        assert await watching.marked() == {metadata.ledger_id: {other: "check"}}
        assert runs[REPLICAS].ended_ms >= runs[REPLICAS].began_ms
        if store.script:
            break  # the check had ended before
        store.script.clear()
    assert calls > 10


@pytest.mark.scenario(61)
async def test_a_mark_that_can_not_be_read_holds_up_no_check(five: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    """Of a newer version; the ledger behind it is marked, and the check comes to its end."""
    client = await five.client()
    other = {}
    for metadata in [await closed(client, 3) for _ in range(2)]:
        a, b, _ = metadata.fragments[0].bookies
        name = other[metadata.ledger_id] = next(n for n in "abcde" if n not in metadata.fragments[0].bookies)
        await rewrite(client, metadata.ledger_id, fragments=(Fragment(0, (a, b, name)),))
    checking = Checking(five, client)
    newer, behind = sorted(other)
    await checking.marks.add(newer, {other[newer]: LostBookie(1)})
    path = LONG_HIERARCHICAL.path_of(f"{ROOT}/{MARKS}", newer)
    (token,) = await five.tree.session().children(path)
    five.tree.apply(Put(f"{path}/{token}", b'{"version": 9}', 0), 0)
    await checking.ended()
    mark = await checking.marks.read(behind)
    assert mark is not None
    assert mark.lost.keys() == {other[behind]}
    assert f"failed to record that ledger {newer} is under-replicated" in caplog.text


async def test_ledgers_below_a_node_that_may_not_be_listed_hold_up_no_check(
    five: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await five.client()
    await closed(client)
    partition = f"{ROOT}/000/0000/0000/0001"
    five.tree.apply(Create(partition, b""), 0)
    children = MemorySession.children

    async def children_if_allowed(session: MemorySession, path: str) -> list[str]:
        if path == partition:
            raise UnauthorizedError(f"access control forbids this on {path}")
        return await children(session, path)

    monkeypatch.setattr(MemorySession, "children", children_if_allowed)
    runs = await Checking(five, client).ended()
    assert {name: run.ledgers for name, run in runs.items()} == {REPLICAS: 1, PLACEMENT: 1}
    assert f"ledgers below {partition} are skipped" in caplog.text


@pytest.mark.scenario(61)
async def test_copies_in_one_rack_are_moved_apart_one_after_the_other_and_no_more(cluster: InProcess) -> None:
    client = await cluster.client()
    often = {"placement_check_interval_s": 0.01, "replicas_check_interval_s": 0.01}
    metadata = await closed(client)  # on three bookies of no rack
    checking = Checking(cluster, client, **often)
    await checking.ended(runs=2)
    assert await checking.marked() == {}
    for name, rack in (("d", "r1"), ("e", "r2")):
        cluster.settings = {**cluster.settings, "rack": rack}
        await cluster.start_node(name)
    await eventually(lambda: {"d", "e"} <= client.bookies.keys())
    moved = set()
    for _ in range(2):
        checking = Checking(cluster, client, **often)
        await checking.ended(runs=2)
        ((ledger_id, lost),) = (await checking.marked()).items()
        assert list(lost.values()) == ["check"]
        moved |= lost.keys()
        mark = await checking.marks.read(ledger_id)
        assert mark is not None
        assert (await Repairs(client).run(ledger_id, lost)).how is RepairOutcome.DONE
        await checking.marks.remove(mark, lost)
    assert len(moved) == 2
    assert set((await whole(client, metadata.ledger_id)).fragments[0].bookies) == set("abc") - moved | {"d", "e"}
    checking = Checking(cluster, client, **often)
    await checking.ended(runs=2)
    assert await checking.marked() == {}


async def test_the_next_auditor_goes_on_where_the_last_one_was(five: InProcess) -> None:
    client = await five.client()
    ledgers = [await closed(client, 2) for _ in range(4)]
    checking = Checking(five, client)
    half = ledgers[1].ledger_id
    await checking.records.read()
    began = CheckRun(began_ms=1000, ended_ms=10, after=half, ledgers=2, marked=1)
    await checking.records.write(CheckRecord({REPLICAS: began}, {"later": 1}))
    runs = await checking.ended()
    assert (runs[REPLICAS].began_ms, runs[REPLICAS].ledgers, runs[REPLICAS].marked) == (1000, 4, 1)
    assert runs[REPLICAS].after == -1
    assert (await checking.records.read()).unknown == {"later": 1}
    before = runs[REPLICAS].ended_ms
    assert (await checking.ended())[REPLICAS].ended_ms == before  # it isn't due for a week


async def test_what_is_due_again_is_checked_again(five: InProcess) -> None:
    client = await five.client()
    await closed(client, 2)
    checking = Checking(five, client, replicas_check_interval_s=0.01, placement_check_interval_s=0.01)
    assert (await checking.ended(runs=3))[REPLICAS].ledgers == 1


async def test_a_clock_that_was_years_ahead_has_them_checked_once_and_not_all_the_time(five: InProcess) -> None:
    client = await five.client()
    await closed(client, 2)
    checking = Checking(five, client)
    now_ms = int(cluster_of(client).store.runtime.clock.time() * 1000)
    ahead = CheckRun(began_ms=now_ms + 10**11, ended_ms=now_ms + 10**11 + 1, ledgers=7)
    await checking.records.read()
    await checking.records.write(CheckRecord({REPLICAS: ahead, PLACEMENT: ahead}))
    runs = await checking.ended(runs=2)
    assert {run.ledgers for run in runs.values()} == {1}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await checking.checks.run()
    assert (await checking.records.read()).runs == runs, "they aren't due for a week"


async def test_nothing_is_checked_while_autorecovery_is_off_nor_written_when_the_term_is_over(five: InProcess) -> None:
    client = await five.client()
    await closed(client, 2)
    checking = Checking(five, client)
    await checking.marks.set_enabled(False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await checking.checks.run()
    assert (await checking.records.read()).runs == {}
    await checking.marks.set_enabled(True)
    five.tree.apply(Delete(GUARD), 0)
    with pytest.raises(MetadataConflictError):
        async with asyncio.timeout(DEADLINE_S):
            await checking.checks.run()
    assert (await checking.records.read()).runs == {}


async def test_reading_is_limited_to_the_rate(five: InProcess) -> None:
    client = await five.client()
    await closed(client, 40)
    checking = Checking(five, client, check_bytes_per_s_max=5000)
    began = asyncio.get_running_loop().time()
    await checking.ended()
    read = checking.registry.get_sample_value("bkpy_check_read_bytes_total") or 0
    assert read > 1000
    assert asyncio.get_running_loop().time() - began > read / 5000 * 0.9


async def test_a_record_that_is_damaged_is_none_and_a_newer_one_is_refused(five: InProcess) -> None:
    client = await five.client()
    checking = Checking(five, client)
    await checking.records.read()
    await checking.records.write(CheckRecord({REPLICAS: CheckRun(5, 6)}))
    path = f"{ROOT}/{CHECKS}"
    damaged = (b'{"version": 1, "checks": {"replicas": {}}}', b'{"version": 1, "checks": 3}', b"[" * 100_000)
    for data in (b"", b"[]", b"{}", *damaged):
        five.tree.apply(Put(path, data, five.tree.node(path).version), 0)
        assert await checking.records.read() == CheckRecord()
    five.tree.apply(Put(path, b'{"version": 2}', five.tree.node(path).version), 0)
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        await checking.records.read()
