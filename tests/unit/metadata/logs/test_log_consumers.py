"""Consumers of a log: what is registered is kept, whatever others do meanwhile and whatever is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.in_process import runtime_here
from tests.unit.metadata.logs.test_log_lists import LIST, a_list, on, opened, removed
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST, OpeningStep, Troubled

from bkpy.errors import (
    ConfigError,
    ConsumerLockedError,
    CorruptDataError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchConsumerError,
    NoSuchLogError,
    TruncatedError,
    UnsupportedVersionError,
)
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.logs.consumers import ConsumerState, LogConsumers, consumers_of
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Done, Missing
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.log.log_list import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = f"{LIST}/u1/consumers"


@pytest.fixture
async def tree() -> MemoryStore:
    """With a log that has the positions 10 to 29, the last ones of them in an open ledger."""
    tree = MemoryStore(runtime_here())
    await init_cluster(tree.session(), "/ledgers")
    segments = (Segment(1, 10, 0).seal(10, 180, 0), Segment(2, 20, 0))
    await opened(tree).create("orders", a_list(segments=segments, first_position=10))
    return tree


def consumers(tree: MemoryStore, script: Iterable[str | OpeningStep | None] = ()) -> LogConsumers:
    return LogConsumers(opened(tree, script), "orders", "u1")


async def position(tree: MemoryStore, name: str = "billing") -> int | None:
    state = (await consumers(tree).registered()).states.get(name)
    return None if state is None else state.position


async def truncated(tree: MemoryStore, before: int) -> None:
    logs = opened(tree)
    log_list, version = await logs.read("orders", fresh=True)
    assert isinstance(await logs.write_anyway("orders", log_list.truncated(before), version), Done)


async def test_one_is_registered_moves_on_and_back_and_goes(tree: MemoryStore) -> None:
    of = await consumers_of(opened(tree), "orders")
    state = await of.register("billing", None)
    assert state.position == 10
    assert await of.register("billing", 25) == state  # it is there already
    further = await of.commit("billing", 25, state)
    assert await position(tree) == 25
    back = await of.commit("billing", 12, further)
    assert (await of.registered()).states == {"billing": back}
    assert await of.delete("billing")
    assert not await of.delete("billing")
    assert await position(tree) is None


async def test_what_others_may_rely_on_changes_with_every_registration_and_step_back(tree: MemoryStore) -> None:
    of = consumers(tree)
    seen = [(await of.registered()).check]
    state = await of.register("billing", 20)
    seen.append((await of.registered()).check)
    state = await of.commit("billing", 22, state)
    assert (await of.registered()).check == seen[-1]  # on its way it takes nothing from anybody
    await of.commit("billing", 15, state)
    seen.append((await of.registered()).check)
    await of.delete("billing")
    seen.append((await of.registered()).check)
    assert len(set(seen)) == len(seen)
    assert {check.path for check in seen} == {FOLDER}


async def test_a_truncation_that_knows_nothing_of_a_consumer_is_refused(tree: MemoryStore) -> None:
    logs = opened(tree)
    log_list, version = await logs.read("orders")
    check = (await consumers(tree).registered()).check
    await consumers(tree).register("billing", 12)
    assert await logs.write_anyway("orders", log_list.truncated(20), version, check) == Missing(FOLDER, 2)


async def test_a_registration_that_knows_nothing_of_a_truncation_is_refused(tree: MemoryStore) -> None:
    def truncate() -> None:
        log_list = a_list(segments=(Segment(2, 20, 0),), first_position=20, pending_delete=(1,))
        tree.apply(Put(LIST, log_list.encode(), 0), 0)

    # Right before the transaction, when everything has been read.
    with pytest.raises(TruncatedError, match="begins at position 20, not at 12"):
        await consumers(tree, [None] * 8 + [truncate]).register("billing", 12)
    assert await position(tree) is None


async def test_a_step_back_that_knows_nothing_of_a_truncation_is_refused(tree: MemoryStore) -> None:
    state = await consumers(tree).register("billing", 25)

    def truncate() -> None:
        log_list = a_list(segments=(Segment(2, 20, 0),), first_position=20, pending_delete=(1,))
        tree.apply(Put(LIST, log_list.encode(), 0), 0)

    with pytest.raises(TruncatedError):
        await consumers(tree, [None] * 5 + [truncate]).commit("billing", 12, state)
    assert await position(tree) == 25


async def test_only_what_is_in_the_log_can_be_had(tree: MemoryStore) -> None:
    of = consumers(tree)
    with pytest.raises(TruncatedError):
        await of.register("billing", 9)
    with pytest.raises(ConfigError, match="name of a consumer"):
        await of.register("a/b", None)
    state = await of.register("billing", 20)
    await truncated(tree, 15)
    with pytest.raises(TruncatedError):
        await of.commit("billing", 14, state)
    logs = opened(tree)
    log_list, version = await logs.read("orders")
    closed = dataclasses.replace(log_list, segments=(log_list.segments[0],))
    await logs.write("orders", closed, version)
    with pytest.raises(ConfigError, match="ends before position 20, not 21"):
        await of.register("other", 21)


@pytest.mark.parametrize("call", range(9))
async def test_there_are_no_more_than_the_setting_allows(tree: MemoryStore, call: int) -> None:
    """Whoever comes in between, however late."""
    for name in ("a", "b"):
        await consumers(tree).register(name, 12)

    def another() -> None:
        version = tree.node(FOLDER).version
        value = json.dumps({"version": 1, "position": 12, "since_ms": 0, "token": "other"})
        tree.apply_all([Put(FOLDER, b"t", version), Create(f"{FOLDER}/c", value.encode())], 0)

    of = LogConsumers(on(Troubled(tree, [None] * call + [another]), log_consumers_max=3), "orders", "u1")
    with pytest.raises(ConfigError, match="log orders has 3 consumers already, as many as log_consumers_max allows"):
        await of.register("d", 12)
    assert list((await of.registered()).states) == ["a", "b", "c"]
    assert (await of.register("b", None)).position == 12  # one that is there
    assert await of.delete("a")
    assert (await of.register("d", 12)).position == 12


async def test_many_are_read_at_once(tree: MemoryStore) -> None:
    for n in range(7):
        await consumers(tree).register(f"c{n}", 10 + n)

    class Slow(Troubled):
        reading = most = 0

        async def get(self, path: str) -> tuple[bytes, int]:
            self.reading += 1
            self.most = max(self.most, self.reading)
            await asyncio.sleep(0)
            try:
                return await super().get(path)
            finally:
                self.reading -= 1

    def goes() -> None:
        tree.apply(Delete(f"{FOLDER}/c4", None), 0)

    session = Slow(tree, [None] * 5 + [goes])
    states = (await LogConsumers(on(session, log_consumer_reads_at_once=3), "orders", "u1").registered()).states
    assert {name: state.position for name, state in states.items()} == {f"c{n}": 10 + n for n in range(7) if n != 4}
    assert session.most == 3


async def test_two_of_one_name_notice_each_other(tree: MemoryStore) -> None:
    state = await consumers(tree).register("billing", 10)
    same = await consumers(tree).register("billing", None)
    await consumers(tree).commit("billing", 12, state)
    with pytest.raises(MetadataConflictError, match="somebody else uses that name"):
        await consumers(tree).commit("billing", 20, same)
    assert await position(tree) == 12


async def test_one_who_sleeps_moves_no_successor_of_its_name(tree: MemoryStore) -> None:
    state = await consumers(tree).register("billing", 10)
    successor = ""

    def goes_and_comes() -> None:
        tree.apply_all([Put(FOLDER, b"1", 1)], 0)
        tree.apply(Put(f"{FOLDER}/billing", successor.encode(), 0), 0)

    successor = json.dumps({"version": 1, "position": 11, "since_ms": 0, "token": "other"})
    with pytest.raises(MetadataConflictError):
        await consumers(tree, [None] * 3 + [goes_and_comes]).commit("billing", 20, state)
    assert await position(tree) == 11


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("call", range(12))
async def test_a_lost_request_or_reply_changes_nothing(tree: MemoryStore, trouble: str, call: int) -> None:
    script = [None] * call + [trouble]
    state = await consumers(tree, script).register("billing", 12)
    state = await consumers(tree, script).commit("billing", 20, state)
    state = await consumers(tree, script).commit("billing", 15, state)
    assert await position(tree) == 15
    assert await consumers(tree, script).delete("billing")
    assert await position(tree) is None


async def test_an_attempt_whose_reply_was_lost_is_known_again(tree: MemoryStore) -> None:
    state = await consumers(tree).register("billing", 10)

    def another_registers() -> None:  # so that the commit, which was done, is tried again on what there is then
        tree.apply(Put(FOLDER, b"1", 1), 0)

    moved = await consumers(tree, [None] * 3 + [REPLY_LOST, another_registers]).commit("billing", 20, state)
    assert (await consumers(tree).registered()).states == {"billing": moved}


async def test_without_the_store_that_is_said(tree: MemoryStore) -> None:
    with pytest.raises(MetadataUnavailableError) as refused:
        await consumers(tree, [None] * 8 + [AWAY]).register("billing", 12)
    assert not refused.value.outcome_unknown
    with pytest.raises(MetadataUnavailableError) as lost:
        await consumers(tree, [None] * 8 + [REQUEST_LOST] * 2).register("billing", 12)
    assert lost.value.outcome_unknown


async def test_those_of_a_log_that_is_gone_are_gone(tree: MemoryStore) -> None:
    of = consumers(tree)
    removed(tree)
    with pytest.raises(NoSuchLogError):
        await of.registered()
    with pytest.raises(NoSuchLogError):
        await of.register("billing", None)


async def test_one_of_another_log_of_that_name_is_not_registered(tree: MemoryStore) -> None:
    def another() -> None:
        removed(tree)
        for node in ("", "/u2", "/u2/consumers"):
            tree.apply(Create(LIST + node, a_list("u2").encode()), 0)

    with pytest.raises(NoSuchLogError, match="another one of that name"):
        await consumers(tree, [None] * 4 + [another]).register("billing", None)


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"version":1,"position":-1,"since_ms":1,"token":""}', b'{"version":0}', b"[" * 100_000],
)
async def test_a_damaged_one_is_an_error_and_holds_what_it_held(tree: MemoryStore, value: bytes) -> None:
    tree.apply(Create(f"{FOLDER}/billing", value), 0)
    with pytest.raises(CorruptDataError, match="consumer billing of log orders is unreadable"):
        await consumers(tree).registered()
    with pytest.raises(CorruptDataError):
        await consumers(tree).register("billing", None)
    assert await consumers(tree).delete("billing")
    assert await position(tree) is None


async def test_a_newer_one_is_not_guessed_at(tree: MemoryStore) -> None:
    tree.apply(Create(f"{FOLDER}/billing", b'{"version":2}'), 0)
    with pytest.raises(UnsupportedVersionError):
        await consumers(tree).registered()


async def test_unknown_fields_survive(tree: MemoryStore) -> None:
    value = {"version": 1, "position": 12, "since_ms": 0, "token": "t", "newer": 3}
    tree.apply(Create(f"{FOLDER}/billing", json.dumps(value).encode()), 0)
    state = await consumers(tree).register("billing", None)
    await consumers(tree).commit("billing", 20, state)
    assert json.loads(tree.node(f"{FOLDER}/billing").data)["newer"] == 3


async def test_the_stored_form_is_the_golden_one(tree: MemoryStore) -> None:
    stored = (Path(__file__).parents[3] / "golden" / "metadata" / "log-consumer.json").read_bytes()
    tree.apply(Create(f"{FOLDER}/billing", stored), 0)
    state = await consumers(tree).register("billing", None)
    assert (state.position, state.since_ms, state.token) == (12, 1_700_000_000_000, "t")
    await consumers(tree).commit("billing", 13, state)
    written = json.loads(tree.node(f"{FOLDER}/billing").data)
    assert list(written) == list(json.loads(stored))


@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize("positions", [(20, 21, 22), (12, 11, 10)], ids=["on", "back"])
async def test_one_whose_commit_was_not_told_of_goes_on(
    tree: MemoryStore, positions: tuple[int, ...], call: int
) -> None:
    """Nobody else goes by its name: it has to know again what it wrote itself, however often it wasn't told."""
    state = await consumers(tree).register("billing", 15)
    session = Troubled(tree)
    of = LogConsumers(on(session, metadata_write_attempts_max=1), "orders", "u1")
    for there, lost in zip(positions, (REPLY_LOST, REQUEST_LOST, REPLY_LOST), strict=True):
        session.script.extend([None] * call + [lost])
        with contextlib.suppress(MetadataUnavailableError):
            state = await of.commit("billing", there, state)
        session.script.clear()
    state = await of.commit("billing", 16, state)
    assert await position(tree) == 16
    await consumers(tree).commit("billing", 21, state)
    with pytest.raises(MetadataConflictError, match="somebody else"):
        await of.commit("billing", 22, state)


async def test_a_step_back_is_one_from_where_the_consumer_is(tree: MemoryStore) -> None:
    """Though who makes it was never told that it had come so far."""
    state = await consumers(tree).register("billing", 10)
    session = Troubled(tree, [None] * 3 + [REPLY_LOST])
    of = LogConsumers(on(session, metadata_write_attempts_max=1), "orders", "u1")
    with pytest.raises(MetadataUnavailableError):
        await of.commit("billing", 25, state)
    before = (await of.registered()).check
    await of.commit("billing", 20, state)
    assert (await of.registered()).check != before


# --- leases -----------------------------------------------------------------------------------------------------------


class Holder:
    """A client that has a consumer's lease, or wants it."""

    def __init__(self, tree: MemoryStore, script: Iterable[str | OpeningStep | None] = (), **settings: int) -> None:
        self.session = Troubled(tree, script)
        self.of = LogConsumers(on(self.session, **settings), "orders", "u1")

    async def lock(self, label: str = "host-1, pid 1") -> ConsumerState:
        return await self.of.lock("billing", label)

    async def commit(self, at: int, state: ConsumerState) -> ConsumerState:
        return await self.of.commit("billing", at, state)


def leases(tree: MemoryStore) -> list[str]:
    return [path for path in tree.paths if path.startswith(f"{FOLDER}/billing/lease-")]


async def test_one_client_at_a_time_has_the_lease(tree: MemoryStore) -> None:
    first, second = Holder(tree), Holder(tree)
    before = await consumers(tree).register("billing", 12)
    with pytest.raises(NoSuchConsumerError, match="no consumer other: check the name, or register it with create=True"):
        await first.of.lock("other", "host-1, pid 1")
    state = await first.lock("client a on host-1, pid 4711")
    assert (state.position, state.since_ms) == (before.position, before.since_ms)
    assert await first.lock() == state  # again
    holder = await second.of.holder("billing")
    assert holder is not None
    assert holder[:3] == ("host-1", 4711, "a")
    for act in (second.lock(), consumers(tree).commit("billing", 20, before), second.commit(20, state)):
        with pytest.raises(ConsumerLockedError, match="is leased to client a on host-1, pid 4711, since") as locked:
            await act
        assert (locked.value.holder, locked.value.retriable) == (holder, True)
    state = await first.commit(20, state)
    state = await first.commit(15, state)
    await first.of.unlock("billing")
    await first.of.unlock("billing")
    assert await second.of.holder("billing") is None
    with pytest.raises(
        ConsumerLockedError, match="the lease of consumer billing of log orders has ended, and nobody holds"
    ):
        await first.commit(25, state)
    free = await consumers(tree).commit("billing", 16, state)  # by a client without a lease
    assert free.lease == ""
    assert (await second.lock()).position == 16
    assert await consumers(tree).delete("billing")
    assert leases(tree) == []
    with pytest.raises(ConsumerLockedError):
        await second.commit(17, free)


@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
@pytest.mark.parametrize("to", [20, 11], ids=["on", "back"])
@pytest.mark.parametrize("call", range(9))
async def test_a_lease_that_ends_at_any_time_ends_the_commits(
    tree: MemoryStore, call: int, to: int, taken: bool
) -> None:
    """The commit was made before that, or it is refused; a successor has what was committed."""
    await consumers(tree).register("billing", 15)
    first, second = Holder(tree), Holder(tree)
    state = await first.lock()
    ended = False

    def ends() -> None:
        nonlocal ended
        ended = True
        tree.end_session(first.session.session_id)
        if taken:  # as `lock` does it
            node = tree.node(f"{FOLDER}/billing")
            value = json.dumps(json.loads(node.data) | {"token": "s", "lease": "s"})
            put = Put(f"{FOLDER}/billing", value.encode(), node.version)
            tree.apply_all([put, Create(f"{FOLDER}/billing/lease-s", b'{"label":"other, pid 2"}', True)], 99)

    first.session.script.extend([None] * call + [ends])
    (result,) = await asyncio.gather(first.commit(to, state), return_exceptions=True)
    committed = isinstance(result, ConsumerState)
    if isinstance(result, ConsumerLockedError):
        assert (result.retriable, ended, result.holder is None) == (False, True, not taken)
    else:
        assert committed, result
    assert await position(tree) == (to if committed else 15)
    first.session.script.clear()
    if ended:
        with pytest.raises(ConsumerLockedError):
            await first.commit(22, state)
        if not taken:
            assert (await second.lock()).position == (to if committed else 15)


@pytest.mark.parametrize("call", range(8))
async def test_of_two_that_want_the_lease_one_gets_it(tree: MemoryStore, call: int) -> None:
    await consumers(tree).register("billing", 15)

    def taken() -> None:
        node = tree.node(f"{FOLDER}/billing")
        value = json.dumps(json.loads(node.data) | {"token": "s", "lease": "s"})
        put = Put(f"{FOLDER}/billing", value.encode(), node.version)
        tree.apply_all([put, Create(f"{FOLDER}/billing/lease-s", b'{"label":"other, pid 2","since_ms":0}', True)], 99)

    holder = Holder(tree, [None] * call + [taken])
    if call < 6:
        with pytest.raises(ConsumerLockedError, match="leased to other, pid 2"):
            await holder.lock()
        assert len(leases(tree)) == 1
    else:
        await holder.lock()  # it was first


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
@pytest.mark.parametrize("call", range(14))
async def test_a_lost_request_or_reply_takes_nobody_a_lease(tree: MemoryStore, trouble: str, call: int) -> None:
    await consumers(tree).register("billing", 15)
    holder = Holder(tree, [None] * call + [trouble])
    state = await holder.lock()
    state = await holder.commit(20, state)
    state = await holder.commit(12, state)
    await holder.of.unlock("billing")
    assert await position(tree) == 12
    assert leases(tree) == []
    await Holder(tree).lock()


@pytest.mark.parametrize("call", range(10))
async def test_a_lease_whose_outcome_is_unknown_can_be_given_up(tree: MemoryStore, call: int) -> None:
    await consumers(tree).register("billing", 15)
    holder = Holder(tree, [None] * call + [REPLY_LOST], metadata_write_attempts_max=1)
    with contextlib.suppress(MetadataUnavailableError):
        await holder.lock()
    holder.session.script.clear()
    await holder.of.unlock("billing")
    await Holder(tree).lock()


async def test_an_unreadable_lease_is_one_all_the_same(tree: MemoryStore) -> None:
    await consumers(tree).register("billing", 15)
    tree.apply(Create(f"{FOLDER}/billing/lease-x", b"?", True), 99)
    with pytest.raises(ConsumerLockedError, match="leased to a client"):
        await Holder(tree).lock()
    tree.end_session(99)
    await Holder(tree).lock()
