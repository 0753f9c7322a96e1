"""Two keys for one ledger: the metadata decide which one opens it, and a wrong one never keeps the right one out.

A stranger can present any key for an id that is still to come, and so be the first. Nobody proves a key at that time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, collector_of, id_generator_of
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.bookie.connection.raw import Raw, add, frame, make_ledger, record
from tests.waiting import eventually

import bkpy
from bkpy.metadata.ledgers.layout import NewId
from bkpy.protocol.repair.garbage_collection import ProbeState
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import RecordCodec
from bkpy.storage.space.deletion import hide

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.storage.ledgers.info import LedgerInfo

RIGHT, WRONG, OTHER = b"r" * 32, b"w" * 32, b"o" * 32
RECOVERY = int(Flags.RECOVERY)


def present(key: bytes, *ledger_ids: int) -> bytes:
    return frame(Op.PRESENT, [list(ledger_ids), [key] * len(ledger_ids)])


def fence(ledger_id: int, correlation_id: int = 20) -> bytes:
    return frame(Op.READ_LAC, [RECOVERY, ledger_id], correlation_id=correlation_id)


async def present_and_fence(raw: Raw, key: bytes, *ledger_ids: int) -> set[int]:
    """Fence the ledgers with that key; the statuses."""
    raw.send(present(key, *ledger_ids), *(fence(i, 100 + i) for i in ledger_ids))
    return {(await raw.reply(100 + i))[1][0] for i in ledger_ids}


async def state_of(cluster: InProcess, ledger_id: int) -> LedgerInfo:
    state = (await cluster.storage("a").states((ledger_id,)))[ledger_id]
    assert state is not None
    return state


def outcomes(cluster: InProcess) -> dict[str, float]:
    registry = cluster.service("a").metrics.registry
    names = ("accepted", "refused", "undecided", "entries")
    return {name: registry.get_sample_value("bkpy_bookie_key_disputes_total", {"outcome": name}) or 0 for name in names}


async def test_a_stranger_who_is_first_keeps_no_writer_out(cluster: InProcess) -> None:
    stranger, writer = await Raw.connect(cluster), await Raw.connect(cluster)
    assert await present_and_fence(stranger, WRONG, 0, 1) == {Status.OK}
    await make_ledger(cluster, RIGHT)
    writer.send(present(RIGHT, 0), add(0, correlation_id=10))
    assert (await writer.reply(10))[1] == Status.OK
    state = await state_of(cluster, 0)
    assert (state.key, state.fenced) == (RIGHT, False)
    stranger.send(add(0, 1, correlation_id=11))
    assert (await stranger.reply(11))[1] == [Status.UNAUTHORIZED]
    stranger.send(present(WRONG, 0), add(0, 1, correlation_id=12), fence(0, 13))
    assert (await stranger.reply(12))[1] == [Status.UNAUTHORIZED]
    assert (await stranger.reply(13))[1][0] == Status.UNAUTHORIZED
    assert outcomes(cluster) == {"accepted": 1, "refused": 3, "undecided": 0, "entries": 0}


@pytest.mark.parametrize("request_", ["fence", "read", "write_lac", "force", "recovery add"])
async def test_every_request_with_the_right_key_is_served(cluster: InProcess, request_: str) -> None:
    ledger_id = await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, ledger_id)
    frames = {
        "fence": fence(ledger_id),
        "read": frame(Op.READ, [RECOVERY, ledger_id, 0, 9, 1000], correlation_id=20),
        "write_lac": frame(
            Op.WRITE_LAC, [ledger_id], bytes(RecordCodec(ledger_id).explicit_lac(-1, 0)), correlation_id=20
        ),
        "force": frame(Op.FORCE, [ledger_id], correlation_id=20),
        "recovery add": add(ledger_id, flags=RECOVERY, correlation_id=20),
    }
    owner.send(present(RIGHT, ledger_id), frames[request_])
    head = (await owner.reply(20))[1]
    assert (head if isinstance(head, int) else head[0]) == Status.OK
    state = await state_of(cluster, ledger_id)
    assert (state.key, state.fenced) == (RIGHT, request_ in ("fence", "read"))


async def test_what_a_stranger_published_goes_with_its_key(cluster: InProcess) -> None:
    ledger_id = await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await cluster.storage("a").states((ledger_id,))
    cluster.storage("a").create(ledger_id, WRONG)
    forged = bytes(RecordCodec(ledger_id).explicit_lac(41, 4000))
    stranger.send(present(WRONG, ledger_id), frame(Op.WRITE_LAC, [ledger_id], forged, correlation_id=9))
    assert (await stranger.reply(9))[1][0] == Status.OK
    owner.send(present(RIGHT, ledger_id), add(ledger_id, correlation_id=10))
    assert (await owner.reply(10))[1] == Status.OK
    assert (await state_of(cluster, ledger_id)).explicit_lac == b""


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_the_right_key_survives_a_restart_and_the_wrong_fence_does_not(
    cluster: InProcess, checkpointed: bool
) -> None:
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, 0, 1, 2)
    if checkpointed:
        await cluster.storage("a").checkpoint()
    for _ in range(3):
        await make_ledger(cluster, RIGHT)
    owner.send(present(RIGHT, 0, 1, 2), add(0, correlation_id=10), fence(1), frame(Op.FORCE, [2], correlation_id=30))
    assert (await owner.reply(10))[1] == Status.OK
    assert [(await owner.reply(20))[1][0], (await owner.reply(30))[1][0]] == [Status.OK] * 2
    if checkpointed:
        await cluster.storage("a").checkpoint()
    await cluster.restart("a")
    states = [await state_of(cluster, i) for i in range(3)]
    assert [(state.key, state.fenced) for state in states] == [(RIGHT, False), (RIGHT, True), (RIGHT, False)]
    cluster.storage("a").check_invariants()


async def test_a_ledger_that_was_deleted_here_stays_fenced(cluster: InProcess) -> None:
    """A copy that was collected is no reason to believe a writer that was cut off for long."""
    ledger_id = await make_ledger(cluster, RIGHT)
    storage = cluster.storage("a")
    owner, stranger = await Raw.connect(cluster), await Raw.connect(cluster)
    owner.send(present(RIGHT, ledger_id), add(ledger_id, correlation_id=10))
    await owner.reply(10)
    hidden = await hide(storage, ledger_id)
    assert hidden is not None
    assert await hidden.delete()
    assert await present_and_fence(stranger, WRONG, ledger_id) == {Status.OK}
    owner.send(present(RIGHT, ledger_id), add(ledger_id, 1, correlation_id=11))
    assert (await owner.reply(11))[1] == [Status.FENCED]
    assert (await state_of(cluster, ledger_id)).key == RIGHT
    await cluster.restart("a")
    state = await state_of(cluster, ledger_id)
    assert (state.key, state.fenced) == (RIGHT, True)


async def test_entries_under_a_wrong_key_stay_and_an_operator_hears_of_it(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    stranger.send(present(WRONG, 0), add(0, payload=b"forged", correlation_id=9))
    assert (await stranger.reply(9))[1] == Status.OK
    await make_ledger(cluster, RIGHT)
    owner.send(present(RIGHT, 0), add(0, correlation_id=10), fence(0))
    assert (await owner.reply(10))[1] == [Status.UNKNOWN]
    assert (await owner.reply(20))[1][0] == Status.UNKNOWN
    state = await state_of(cluster, 0)
    assert (state.key, state.fenced) == (WRONG, False)
    assert outcomes(cluster)["entries"] == 2
    assert "ledger 0 has entries here under a key that is not the one in its metadata" in caplog.text


async def lose_key(cluster: InProcess, ledger_id: int) -> None:
    """The bookie has an entry of the ledger, and its index and journal have lost whose it is."""
    owner = await Raw.connect(cluster)
    owner.send(present(RIGHT, ledger_id), add(ledger_id, correlation_id=10))
    assert (await owner.reply(10))[1] == Status.OK
    owner.close()
    state = await state_of(cluster, ledger_id)
    state.key, state.limbo, state.fenced, state.fence_of_limbo = b"", True, True, True


async def test_a_ledger_whose_key_was_lost_is_fenced_for_whom_the_metadata_know_and_shows_nothing(
    cluster: InProcess,
) -> None:
    ledger_id = await make_ledger(cluster, RIGHT)
    await lose_key(cluster, ledger_id)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    stranger.send(present(WRONG, ledger_id), fence(ledger_id))
    assert (await stranger.reply(20))[1] == [Status.UNKNOWN, f"fencing ledger {ledger_id} was refused"]
    owner.send(fence(ledger_id))
    assert (await owner.reply(20))[1][0] == Status.KEY_REQUIRED
    owner.send(present(RIGHT, ledger_id), fence(ledger_id, 21))
    assert (await owner.reply(21))[1] == [Status.UNKNOWN, 0, True]
    owner.send(add(ledger_id, 1, correlation_id=22))
    assert (await owner.reply(22))[1] != Status.OK
    owner.send(frame(Op.READ, [RECOVERY, ledger_id, 0, 9, 1000], correlation_id=23))
    assert (await owner.reply(23))[1][0] == Status.UNKNOWN


async def test_while_the_metadata_are_away_nobody_is_believed_or_refused(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.settings["key_lookup_timeout_s"] = 0.05
    await cluster.restart("a")
    ledger_id = await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, ledger_id)
    metadata = cluster.service("a").key_authority.metadata

    async def never(ledger_id: int, lock: Any = None) -> Any:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(metadata, "look", never)
        owner.send(present(RIGHT, ledger_id), add(ledger_id, correlation_id=10), fence(ledger_id))
        assert (await owner.reply(10))[1] == [Status.UNAVAILABLE]
        assert (await owner.reply(20))[1][0] == Status.UNAVAILABLE
        assert (await state_of(cluster, ledger_id)).key == WRONG
    owner.send(add(ledger_id, correlation_id=11))
    assert (await owner.reply(11))[1] == Status.OK


async def test_a_lookup_holds_up_no_other_ledger_of_the_connection(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    disputed = await make_ledger(cluster, RIGHT)
    calm = await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, disputed)
    metadata = cluster.service("a").key_authority.metadata
    look, asked, go_on = metadata.look, [], asyncio.Event()

    async def late(ledger_id: int, lock: Any = None) -> Any:
        asked.append(ledger_id)
        await go_on.wait()
        return await look(ledger_id, lock)

    monkeypatch.setattr(metadata, "look", late)
    charged = cluster.service("a").receive_budget.used
    owner.send(present(RIGHT, disputed, calm))
    owner.send(*(add(disputed, i, correlation_id=10 + i) for i in range(5)))
    owner.send(add(calm, correlation_id=30), present(OTHER, disputed), add(calm, 1, correlation_id=31))
    assert [(await owner.reply(30))[1], (await owner.reply(31))[1]] == [Status.OK] * 2
    assert asked == [disputed]  # one lookup for all that wait
    assert owner.near.busy
    assert cluster.service("a").receive_budget.used > charged
    go_on.set()
    assert [(await owner.reply(10 + i))[1] for i in range(5)] == [Status.OK] * 5
    await eventually(lambda: not owner.near.busy)
    assert cluster.service("a").receive_budget.used == charged


async def test_lookups_are_bounded(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.settings["key_lookups_at_once"] = 2
    await cluster.restart("a")
    ids = [await make_ledger(cluster, RIGHT) for _ in range(6)]
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, *ids)
    metadata = cluster.service("a").key_authority.metadata
    look, at_once, most = metadata.look, 0, 0

    async def counted(ledger_id: int, lock: Any = None) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        try:
            return await look(ledger_id, lock)
        finally:
            at_once -= 1

    monkeypatch.setattr(metadata, "look", counted)
    assert await present_and_fence(owner, RIGHT, *ids) == {Status.OK}
    assert most == 2


async def test_a_request_that_waits_does_not_fence_with_a_key_that_was_found_wrong(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's fence that was on its way when its key gave way."""
    ledger_id = await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, ledger_id)
    stranger.send(present(WRONG, ledger_id))
    await eventually(lambda: ledger_id in stranger.near.keys.authorised)
    storage, go_on, reached = cluster.storage("a"), asyncio.Event(), asyncio.Event()
    states = storage.states

    async def late(ledger_ids: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await states(ledger_ids)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "states", late)
        stranger.send(fence(ledger_id, 40))
        async with asyncio.timeout(DEADLINE_S):
            await reached.wait()
    owner.send(present(RIGHT, ledger_id), add(ledger_id, correlation_id=10))
    assert (await owner.reply(10))[1] == Status.OK
    go_on.set()
    assert (await stranger.reply(40))[1][0] == Status.KEY_REQUIRED
    assert not (await state_of(cluster, ledger_id)).fenced


# --- collection -------------------------------------------------------------------------------------------------------


async def collected(cluster: InProcess) -> Any:
    collector = collector_of(cluster.node("a"))
    run = collector.begin()
    assert run is not None
    await eventually(lambda: run.seconds is not None)
    return run


async def test_a_strangers_key_for_an_id_far_ahead_stops_no_collection(cluster: InProcess) -> None:
    gone = await make_ledger(cluster, RIGHT)
    owner, stranger = await Raw.connect(cluster), await Raw.connect(cluster)
    owner.send(present(RIGHT, gone), add(gone, correlation_id=10))
    await owner.reply(10)
    await present_and_fence(stranger, WRONG, *range(50, 60), 1 << 40)
    await (await cluster.client()).delete_ledger(gone)
    run = await collected(cluster)
    assert (run.failed, run.gone, dict(run.kept)) == ("", 1, {ProbeState.NOT_MADE: 11})
    stranger.send(present(WRONG, 70), add(70, correlation_id=11))  # with an entry it may be what a lost cluster had
    await stranger.reply(11)
    assert (await collected(cluster)).failed == "older"


async def test_a_strangers_key_is_not_collected_between_the_drawing_of_its_id_and_the_creation(
    cluster: InProcess,
) -> None:
    """What is deleted stays fenced for good, and this ledger's writer is only about to begin."""
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, 0)
    catalog = cluster_of(await cluster.client()).catalog
    drawn = await id_generator_of(catalog).next()
    assert isinstance(drawn, NewId)
    run = await collected(cluster)
    assert (run.failed, run.gone, dict(run.kept)) == ("", 0, {ProbeState.NOT_MADE: 1})
    store = cluster.tree.session()
    await store.delete(drawn.node)
    assert (await collected(cluster)).gone == 1  # nobody can create it any more
    owner.send(present(RIGHT, 0), add(0, correlation_id=10))
    assert (await owner.reply(10))[1] == [Status.FENCED]


# --- clients ----------------------------------------------------------------------------------------------------------


async def poison(cluster: InProcess, names: str, *, entries: bool) -> None:
    """A stranger is the first at these bookies for the next hundred ids."""
    for name in names:
        raw = await Raw.connect(cluster, name)
        ids = list(range(100))
        raw.send(present(WRONG, *ids))
        if entries:
            raw.send(*(add(i, payload=b"forged", correlation_id=1000 + i) for i in ids))
            for i in ids:
                await raw.reply(1000 + i)
        else:
            raw.send(*(fence(i, 1000 + i) for i in ids))
            for i in ids:
                await raw.reply(1000 + i)
        raw.close()


async def test_a_log_rolls_and_opens_and_goes_though_a_stranger_was_first_everywhere(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc")
    await poison(cluster, "abc", entries=False)
    client = await cluster.client()
    log = await client.open_log("orders", create=True, password=b"secret", roll_entries=2)
    for i in range(6):
        await log.append(b"%d" % i)
    again = await client.open_log("orders", password=b"secret")
    assert again.next_position == 6
    await again.close()
    await client.delete_log("orders")
    await cluster.stop()


async def test_a_bookie_with_entries_under_another_key_counts_as_failed(tmp_path: Path) -> None:
    """For that ledger alone, of a writer and of a recovery."""
    cluster = InProcess(tmp_path)
    await cluster.start("abcd")
    await poison(cluster, "a", entries=True)
    client, other = await cluster.client(), await cluster.client()
    for _ in range(4):  # with and without the bookie in the first ensemble
        writer = await client.create_ledger(password=b"secret", digest="hmac-sha256")
        await writer.append_batch([b"0", b"1"])
        assert await other.recover_ledger(writer.ledger_id, password=b"secret")
        with pytest.raises(bkpy.LedgerFencedError):
            await writer.append(b"2")
        assert await contents(other, writer.ledger_id, b"secret") == [b"0", b"1"]
    await cluster.stop()


async def hold_up(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, held_up: int
) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold up the look at the metadata of one ledger: (it has begun, it may go on)."""
    metadata = cluster.service("a").key_authority.metadata
    look, begun, go_on = metadata.look, asyncio.Event(), asyncio.Event()

    async def late(ledger_id: int, lock: Any = None) -> Any:
        if ledger_id == held_up:
            begun.set()
            await go_on.wait()
        return await look(ledger_id, lock)

    monkeypatch.setattr(metadata, "look", late)
    return begun, go_on


def add_to_both(*ledger_ids: int, correlation_id: int, payload: bytes) -> bytes:
    records = [record(ledger_id, 0, payload) for ledger_id in ledger_ids]
    count = len(ledger_ids)
    head = [0, list(ledger_ids), [0] * count, [1] * count, 1, [len(one) for one in records]]
    return frame(Op.ADD, head, b"".join(records), correlation_id)


async def test_an_append_that_waits_is_not_stored_with_a_key_that_was_found_wrong(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's append to two ledgers waits for the metadata of one, while the owner of the other comes."""
    one, other = await make_ledger(cluster, RIGHT), await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    owner.send(present(RIGHT, one), add(one, correlation_id=9))
    assert (await owner.reply(9))[1] == Status.OK
    await present_and_fence(stranger, WRONG, other)
    stranger.send(present(WRONG, one, other))
    await eventually(lambda: other in stranger.near.keys.authorised)
    begun, go_on = await hold_up(cluster, monkeypatch, one)
    stranger.send(add_to_both(one, other, correlation_id=10, payload=b"forged"))
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
    owner.send(present(RIGHT, other), frame(Op.FORCE, [other], correlation_id=11))
    assert (await owner.reply(11))[1][0] == Status.OK
    assert (await state_of(cluster, other)).key == RIGHT
    go_on.set()
    assert Status.OK not in (await stranger.reply(10))[1]
    assert not await cluster.storage("a").has_entries(other)


async def test_an_append_that_waits_is_not_refused_for_another_ledger_that_a_stranger_opens_meanwhile(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await make_ledger(cluster, RIGHT), await make_ledger(cluster, RIGHT)
    stranger, owner = await Raw.connect(cluster), await Raw.connect(cluster)
    await present_and_fence(stranger, WRONG, one)
    begun, go_on = await hold_up(cluster, monkeypatch, one)
    owner.send(present(RIGHT, one, other), add_to_both(one, other, correlation_id=10, payload=b"x"))
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
    await present_and_fence(stranger, WRONG, other)
    go_on.set()
    assert (await owner.reply(10))[1] == Status.OK
