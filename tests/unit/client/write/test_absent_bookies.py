"""Ledgers that are created while too few bookies are there: with absent ones, which their writers take in later."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import cluster_of, pool_of, taking_in
from tests.in_process import DEADLINE_S, ROOT, InProcess, contents, runtime_here
from tests.stepping import naming, run_to
from tests.unit.client.support import payload
from tests.unit.log.test_takeovers import AWAY, FAST, REPLY_LOST, REQUEST_LOST, faulty_client
from tests.unit.replication.repairing import held, whole
from tests.unit.replication.worker.test_worker import healer
from tests.waiting import eventually, turns

from bkpy.client.client import replication_context
from bkpy.config.client import client_settings
from bkpy.errors import BookKeeperError, ConfigError, LedgerFencedError, NotEnoughBookiesError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import delete_cookie
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Done
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord

QUICK = {"leave_look_interval_s": 0.02, "ensemble_retry_backoff_max_s": 0.1, "metadata_write_pause_s": 0.01}


def marks(client: Client) -> UnderreplicationQueue:
    return cluster_of(client).catalog.marks()


async def record(client: Client, ledger_id: int) -> UnderreplicationRecord | None:
    return await marks(client).read(ledger_id)


async def loss(client: Client, ledger_id: int, bookie_id: str = "c") -> LostBookie:
    found = await record(client, ledger_id)
    assert found is not None
    return found.lost[bookie_id]


async def without(cluster: InProcess, *names: str, **settings: Any) -> Client:
    """A client, once it knows that these bookies are gone."""
    client = await cluster.client(**{**QUICK, **settings})
    for name in names:
        await cluster.node(name).stop()
    await eventually(lambda: not client.bookies.keys() & set(names))
    return client


async def append(writer: LedgerWriter, some: int) -> None:
    for _ in range(some):
        await writer.append(payload(writer.last_add_confirmed + 1))


async def taken_in(client: Client, writer: LedgerWriter, first_entry: int, bookie_id: str = "c") -> None:
    """Return when the writer has taken the bookie in with that entry, and the record says so."""

    async def recorded() -> bool:
        return (await loss(client, writer.ledger_id, bookie_id)).whole_from == first_entry

    async with asyncio.timeout(DEADLINE_S):
        while not await recorded():
            await asyncio.sleep(0.01)
    assert not writer.absent


@pytest.mark.scenario(66)
async def test_three_bookies_are_enough_for_a_new_ledger_while_one_is_away(cluster: InProcess) -> None:
    """It begins under-replicated; the bookie is taken in when it comes, and a worker copies what was before."""
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    assert (sorted(writer.ensemble), writer.absent) == (["a", "b", "c"], {"c"})
    await append(writer, 20)
    assert writer.under_replicated == {"c": 0}
    assert await loss(client, writer.ledger_id) == LostBookie(
        (await loss(client, writer.ledger_id)).since_ms,
        LossReason.ABSENT,
        (await loss(client, writer.ledger_id)).instance,
        absent_at_creation=True,
    )
    assert (await loss(client, writer.ledger_id)).instance
    await cluster.start_node("c")
    await taken_in(client, writer, 20)
    assert [(f.first_entry, f.bookies) for f in writer.metadata.fragments] == [
        (0, writer.ensemble),
        (20, writer.ensemble),
    ]
    await append(writer, 10)
    assert not writer.under_replicated
    async with healer(cluster) as one:
        one.start()
        await one.unmarked()  # though the ledger is open
        assert one.worker.count.entries == 20
        assert writer.usable
    await writer.close()
    assert await record(client, writer.ledger_id) is None
    await whole(client, writer.ledger_id)
    assert await contents(client, writer.ledger_id) == [payload(i) for i in range(30)]


async def test_what_is_under_way_when_a_bookie_is_taken_in_is_sent_to_it(cluster: InProcess) -> None:
    """The others acknowledge it while the fragment is stored that begins with it, and so does the client at once."""
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    await append(writer, 3)
    catalog, begins, go_on = cluster_of(client).catalog, asyncio.Event(), asyncio.Event()
    write = catalog.write

    async def hold_up(metadata: Any, *args: Any, **options: Any) -> Any:
        if len(metadata.fragments) == 2:
            begins.set()
            await go_on.wait()
        return await write(metadata, *args, **options)

    disk = cluster.disks["b"]
    with patch.object(catalog, "write", hold_up):
        disk.stall()
        appending = asyncio.create_task(writer.append(payload(3)))
        await cluster.start_node("c")
        async with asyncio.timeout(DEADLINE_S):
            await begins.wait()
        disk.unstall()
        await asyncio.sleep(1)  # the other two have it by then
        assert not appending.done()
        go_on.set()
        await appending
    await taken_in(client, writer, 3)
    await append(writer, 1)
    await writer.close()
    assert (await held(client, writer.ledger_id, "c", 4)).keys() == {3, 4}


async def test_one_attempt_makes_all_that_the_first_such_ledger_needs(cluster: InProcess) -> None:
    """The nodes above the ledger, above its record, and above drains: none is there in a new cluster."""
    client = await without(cluster, "c", metadata_write_attempts_max=1, ledger_id_attempts_max=1)
    writer = await client.create_ledger()
    assert writer.absent == {"c"}
    await append(writer, 1)
    await writer.close()


async def test_a_client_that_never_saw_the_absent_bookie(cluster: InProcess) -> None:
    await cluster.node("c").stop()
    client = await cluster.client(**QUICK)
    writer = await client.create_ledger()
    assert writer.absent == {"c"}
    assert "c" in replication_context(client).directory.absent_since
    await append(writer, 1)
    await writer.close()
    async with healer(cluster) as one:
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        await cluster.start_node("c")
        await one.unmarked()
    await whole(client, writer.ledger_id)


async def test_a_bookie_that_is_registered_and_out_of_reach_counts_as_absent(cluster: InProcess) -> None:
    """Its registration outlives a kill by a session time-out, which nobody wants to wait for."""
    client = await cluster.client(**QUICK)
    cluster.kill("c")
    writer = await client.create_ledger()
    assert writer.absent == {"c"}
    assert "c" in client.bookies
    await append(writer, 2)
    await cluster.restart("c")
    await taken_in(client, writer, 2)
    await writer.close()


@pytest.mark.parametrize("idle", [False, True])
async def test_nothing_is_to_be_copied_where_nothing_was_acknowledged_before(cluster: InProcess, idle: bool) -> None:
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    pending = []
    if not idle:
        cluster.hang("a")
        cluster.hang("b")
        pending = [writer.append_nowait(payload(i)) for i in range(3)]
        await turns()
    await cluster.start_node("c")
    await taken_in(client, writer, 0)
    assert len(writer.metadata.fragments) == 1
    for name in "ab" if not idle else "":
        for connection in cluster.connections(name):
            connection.resume("hung")
    assert [await one for one in pending] == list(range(len(pending)))
    await append(writer, 3)
    async with healer(cluster) as one:
        one.start()
        await one.unmarked()
        assert one.worker.count.entries == 0
    await writer.close()
    await whole(client, writer.ledger_id)


async def test_pending_entries_are_sent_to_a_bookie_that_is_taken_in(cluster: InProcess) -> None:
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    await append(writer, 2)
    cluster.hang("b")
    pending = writer.append_nowait(payload(2))
    await turns()
    await cluster.start_node("c")
    assert await pending == 2  # by the other two
    await taken_in(client, writer, writer.metadata.fragments[-1].first_entry)
    assert 2 in await held(client, writer.ledger_id, "c", 2)
    for connection in cluster.connections("b"):
        connection.resume("hung")
    await writer.close()


# --- who may be absent ----------------------------------------------------------------------------------------------


SIZES = [
    ((3, 3, 2), True),
    ((3, 3, 3), False),  # nothing would be acknowledged
    ((3, 3, 1), False),  # no recovery could say where it ends without the absent one
    ((3, 2, 2), False),
    ((3, 2, 1), False),
]


@pytest.mark.filterwarnings("ignore:an ack quorum of 1")
@pytest.mark.parametrize(("sizes", "may"), SIZES)
async def test_enough_of_each_write_set_are_there(cluster: InProcess, sizes: tuple[int, int, int], may: bool) -> None:
    client = await without(cluster, "c")
    names = dict(zip(("ensemble_size", "write_quorum", "ack_quorum"), sizes, strict=True))
    if may:
        writer = await client.create_ledger(**names)
        await append(writer, 3)
        await writer.close()
        return
    with pytest.raises(NotEnoughBookiesError, match="the ensemble needs 3 bookies, 2 are available: a, b; of each"):
        await client.create_ledger(**names)


async def test_two_of_three_are_not_enough(cluster: InProcess) -> None:
    client = await without(cluster, "b", "c")
    with pytest.raises(NotEnoughBookiesError, match="the ensemble needs 3 bookies, 1 are available: a"):
        await client.create_ledger()


async def test_absent_bookies_of_an_ensemble_that_is_striped_lie_apart(tmp_path: Any) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abcdef")
    client = await without(cluster, "c", "d")
    for _ in range(10):
        writer = await client.create_ledger(ensemble_size=6)
        first, second = sorted(writer.ensemble.index(name) for name in "cd")
        assert (first - second) % 6 == 3
        writer.abandon()
    await cluster.stop()


@pytest.mark.parametrize("by", ["argument", "setting", "deferred sync"])
async def test_a_caller_may_refuse_absent_bookies(cluster: InProcess, by: str) -> None:
    """With deferred sync nothing would ever be durable: `force` needs the whole ensemble."""
    client = await without(cluster, "c", **({"allow_absent_bookies": False} if by == "setting" else {}))
    refuses: dict[str, dict[str, Any]] = {
        "argument": {"allow_absent_bookies": False},
        "deferred sync": {"deferred_sync": True},
    }
    with pytest.raises(NotEnoughBookiesError, match=r"the ensemble needs 3 bookies, 2 are available: a, b$"):
        await client.create_ledger(**refuses.get(by, {}))
    if by == "setting":
        writer = await client.create_ledger(allow_absent_bookies=True)
        assert writer.absent == {"c"}
        await writer.close()


async def test_present_bookies_come_first_even_those_that_failed_lately(four: InProcess) -> None:
    client = await without(four, "d")
    replication_context(client).parts.ensembles.failed("a")
    for _ in range(5):
        writer = await client.create_ledger()
        assert (sorted(writer.ensemble), writer.absent) == (["a", "b", "c"], frozenset())
        await writer.close()


async def test_all_present_bookies_are_taken_before_any_absent_one(four: InProcess) -> None:
    client = await without(four, "c", "d")
    for _ in range(10):
        writer = await client.create_ledger()
        assert writer.absent < {"c", "d"}
        assert len(writer.absent) == 1
        await writer.close()


async def test_an_ensemble_change_names_no_absent_bookie(cluster: InProcess) -> None:
    client = await without(cluster, "c")
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    cluster.kill("b")
    pending = writer.append_nowait(payload(0))
    with pytest.raises(BookKeeperError):
        await pending
    assert "c" not in writer.ensemble
    writer.abandon()


@pytest.mark.parametrize("how", ["drains", "is gone", "read-only"])
async def test_a_bookie_that_leaves_is_never_named(cluster: InProcess, how: str) -> None:
    client = await cluster.client(**QUICK)
    if how == "read-only":
        await cluster.node("c").set_read_only(True, "for a test")
    else:
        await cluster.node("c").stop()
    await eventually(lambda: "c" not in client.bookies)
    drains = Drains(cluster.tree.session(), ROOT, runtime_here())
    if how == "drains":
        assert isinstance(await drains.begin("c"), Done)
    elif how == "is gone":
        await delete_cookie(cluster.tree.session(), ROOT, "c")
    with pytest.raises(NotEnoughBookiesError, match="2 are available: a, b"):
        await client.create_ledger()
    if how == "drains":
        drain = await drains.read("c")
        assert drain is not None
        await drains.cancel(drain)
        await eventually(lambda: not replication_context(client).directory.draining)
        await (await client.create_ledger()).close()


@pytest.mark.parametrize("how", ["drains", "is gone", "has another cookie"])
async def test_the_creating_transaction_checks_the_absent_bookie(
    cluster: InProcess, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be drained, or decommissioned, after the client has chosen it, and before the ledger is stored."""
    client = await without(cluster, "c")
    tree, catalog = cluster.tree.session(), cluster_of(client).catalog
    create = type(catalog).create
    attempts = []

    async def create_late(self: Any, *given: Any) -> Any:
        attempts.append(given)
        if len(attempts) == 1:
            if how == "drains":
                await Drains(tree, ROOT, runtime_here()).begin("c")
            elif how == "is gone":
                await delete_cookie(tree, ROOT, "c")
            else:
                path = paths.cookie(ROOT, "c")
                value, version = await tree.get(path)
                await tree.put(path, value, version)
        return await create(self, *given)

    monkeypatch.setattr(type(catalog), "create", create_late)
    with pytest.raises(NotEnoughBookiesError, match="2 are available: a, b"):
        await client.create_ledger()
    assert len(attempts) == 1
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []
    assert [ledger_id async for ledger_id in marks(client).list()] == []


async def test_a_ledger_and_its_record_are_there_together_or_not_at_all(cluster: InProcess) -> None:
    """A draining begun once and cancelled leaves its parent's node, and the first ledger of all makes all parents."""
    client = await without(cluster, "c")
    assert not await cluster.tree.session().exists(f"{ROOT}/{paths.DRAINING}")
    first = await client.create_ledger()
    assert await cluster.tree.session().children(f"{ROOT}/{paths.DRAINING}") == []
    removed = await record(client, first.ledger_id)
    assert removed is not None
    await marks(client).remove(removed, ["c"])
    tidying = marks(client)
    await tidying.add(first.ledger_id, removed.lost)
    found = await tidying.read(first.ledger_id)
    assert found is not None
    await tidying.remove(found, ["c"])
    await tidying.tidy()  # the records' partition is gone, and the ledgers' isn't
    second = await client.create_ledger()
    assert await loss(client, second.ledger_id)
    await first.close()
    await second.close()


# --- others meanwhile -------------------------------------------------------------------------------------------------


async def test_another_bookie_takes_the_place_if_one_comes_first(cluster: InProcess) -> None:
    """Also of a writer that appends nothing: a worker would have to fence it."""
    client = await without(cluster, "c", absent_bookie_replace_delay_s=1e3)
    idle, busy = await client.create_ledger(), await client.create_ledger()
    await append(busy, 2)
    await cluster.start_node("d")
    await eventually(lambda: "d" in idle.ensemble)
    await append(busy, 1)
    await eventually(lambda: "d" in busy.ensemble)
    await append(idle, 2)
    for writer in (idle, busy):
        assert not writer.absent
        assert writer.metadata.fragments[0].first_entry == 0
        await writer.close()
    async with healer(cluster) as one:
        one.start()
        await one.unmarked()
    for writer in (idle, busy):
        await whole(client, writer.ledger_id)
        assert "c" not in (await client.ledger_metadata(writer.ledger_id)).needed_bookies


async def test_a_recovery_ends_it_without_the_absent_bookie_and_whatever_that_says_later(cluster: InProcess) -> None:
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    await append(writer, 5)
    writer.abandon()
    other = await cluster.client()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 4
    second = await client.create_ledger()
    await append(second, 5)
    await cluster.start_node("c")
    await taken_in(client, second, 5)
    cluster.kill("a")
    reader = await other.recover_ledger(second.ledger_id)  # one of the two that answer never had anything
    assert reader.last_add_confirmed == 4
    with pytest.raises(LedgerFencedError):
        await second.append(b"")
    second.abandon()


async def test_an_absence_that_the_auditor_ends_leaves_the_record(cluster: InProcess) -> None:
    """The bookie counted as lost, and came back as it was: it never had these entries all the same."""
    client = await without(cluster, "c")
    closed, open_ = await client.create_ledger(), await client.create_ledger()
    for writer in (closed, open_):
        await append(writer, 4)
    await closed.close()
    queue = marks(client)
    for writer in (closed, open_):
        instance = (await loss(client, writer.ledger_id)).instance
        assert isinstance(await queue.add(writer.ledger_id, {"c": LostBookie(5, LossReason.LOST, instance)}), Done)
        merged = await loss(client, writer.ledger_id)
        assert (merged.reason, merged.absent_at_creation, merged.since_ms) == (LossReason.LOST, True, 5)
    found = await queue.read(closed.ledger_id)
    assert found is not None
    assert isinstance(await queue.end_absence(found, ["c"]), Done)
    assert (await loss(client, closed.ledger_id)).reason == LossReason.ABSENT
    found = await queue.read(open_.ledger_id)
    assert found is not None
    assert isinstance(await queue.return_bookies(found, ["c"]), Done)
    assert (await loss(client, open_.ledger_id)).reason == LossReason.RETURNED
    await cluster.start_node("c")
    await taken_in(client, open_, 4)  # what it missed before is older than that
    assert (await loss(client, open_.ledger_id)).reason == LossReason.ABSENT
    async with healer(cluster) as one:
        one.start()
        await one.unmarked()
    await open_.close()
    for writer in (closed, open_):
        await whole(client, writer.ledger_id)


@pytest.mark.parametrize("reason", [LossReason.DRAINING, LossReason.REBUILDING, LossReason.CHECK])
async def test_a_writer_takes_back_no_other_reason(cluster: InProcess, reason: LossReason) -> None:
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    await append(writer, 1)
    assert isinstance(await marks(client).add(writer.ledger_id, {"c": LostBookie(5, reason)}), Done)
    assert isinstance(await marks(client).taken_in(writer.ledger_id, ["c"], 1), Done)
    now = await loss(client, writer.ledger_id)
    assert (now.reason, now.absent_at_creation, now.whole_from) == (reason, True, None)
    writer.abandon()


async def test_memory_for_the_absent_bookie_is_bounded(cluster: InProcess) -> None:
    client = await without(cluster, "c", unacked_bytes_max=10_000, write_window_entries=50)
    writer = await client.create_ledger()
    data = bytes(1000)
    for _ in range(40):
        await asyncio.gather(*(writer.append(data) for _ in range(50)))
    assert not pool_of(client).congested
    await cluster.start_node("c")
    await taken_in(client, writer, 2000)
    await writer.close()


# --- at each step -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, True])
async def test_a_creation_that_is_cancelled_at_any_step_leaves_nothing(cluster: InProcess, late: bool) -> None:
    client = await without(cluster, "c")
    for at in count():
        with naming("create", at, late):

            async def create() -> None:
                (await client.create_ledger()).abandon()

            reached = await run_to(create(), at, late, None)
        if not reached:
            break
    assert at > 10
    async with healer(cluster) as one:  # of ledgers that were taken back, records may be left
        one.start()
        await eventually(lambda: one.worker.status()["queued"] == one.worker.status()["postponed"] == 0)
        ledgers = {ledger_id async for ledger_id in client.list_ledgers()}
        async with asyncio.timeout(DEADLINE_S):
            while not {ledger_id async for ledger_id in marks(client).list()} <= ledgers:
                await asyncio.sleep(0.02)
    for ledger_id in ledgers:
        assert await record(client, ledger_id) is not None


async def _create_and_take_in(cluster: InProcess, at: int, trouble: str, **settings: Any) -> bool:
    """A writer whose store is in trouble at its `at`th call; whether the trouble came."""
    await cluster.node("c").stop()
    client, session = await faulty_client(cluster, **{**QUICK, **settings})
    steady = cluster.clients[0]

    async def expire() -> None:  # the client's session alone
        session.expire()

    session.count(at, expire if trouble == "session lost" else trouble)
    acknowledged: list[int] = []
    ledger_id, back = None, False
    try:
        writer = await client.create_ledger()
        ledger_id = writer.ledger_id
        await append(writer, 3)
        back = True
        await cluster.start_node("c")
        await eventually(lambda: not writer.absent or not writer.usable)
        await append(writer, 3)
        await turns()
        acknowledged = list(range(writer.last_add_confirmed + 1))
        await writer.close()
    except BookKeeperError as error:
        ledger_id = error.ledger_id if ledger_id is None else ledger_id
    reached, session.calls = session.calls >= at, -1
    if not back:
        await cluster.start_node("c")
    await client.close()
    cluster.clients.remove(client)
    if ledger_id is not None and ledger_id in [i async for i in steady.list_ledgers()]:
        await steady.recover_ledger(ledger_id)
        async with healer(cluster) as one:
            one.start()
            await one.unmarked()
        metadata = await whole(steady, ledger_id)
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry >= len(acknowledged) - 1
        found = await contents(steady, ledger_id)
        assert found == [payload(i) for i in range(metadata.last_entry + 1)]
    return reached


TROUBLES = (REPLY_LOST, REQUEST_LOST, AWAY, "session lost")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("trouble", "attempts", "every"),
    [
        *((trouble, 3, 17) for trouble in TROUBLES),
        *(pytest.param(it, n, 1, marks=pytest.mark.exhaustive) for it in TROUBLES for n in (1, 3)),
    ],
)
async def test_a_creation_and_a_taking_in_in_trouble_at_any_step(
    cluster: InProcess, trouble: str, attempts: int, every: int
) -> None:
    await cluster.client(**FAST)
    for at in count(1, every):
        with naming("store", at, False):
            if not await _create_and_take_in(cluster, at, trouble, metadata_write_attempts_max=attempts):
                break
    assert at > 15


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("abandons", [False, True])
async def test_a_taking_in_that_ends_at_any_step(cluster: InProcess, abandons: bool, late: bool) -> None:
    """It is cancelled, or its writer is abandoned: what was acknowledged is there, and the record until it is whole."""
    never = {"leave_look_interval_s": 1e3, "ensemble_retry_backoff_min_s": 1e3, "ensemble_retry_backoff_max_s": 1e3}
    other = await cluster.client()
    for at in count():
        cluster.refuse("c")
        client = await cluster.client(**never)
        writer = await client.create_ledger()
        await append(writer, 3)
        cluster.admit("c")
        reached = await run_to(taking_in(writer, {"c"}), at, late, writer.abandon if abandons else None)
        if not reached:
            assert not writer.absent
        assert await record(client, writer.ledger_id) is not None
        await client.close()
        cluster.clients.remove(client)
        await other.recover_ledger(writer.ledger_id)
        async with healer(cluster) as one:
            one.start()
            await one.unmarked()
        assert (await whole(other, writer.ledger_id)).last_entry == 2
        if not reached:
            break
    assert at > 1


def test_a_setting_of_a_wrong_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="allow_absent_bookies"):
        client_settings(allow_absent_bookies="perhaps")
