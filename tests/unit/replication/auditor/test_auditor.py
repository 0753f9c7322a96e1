"""The auditor: what bookies had is marked when they are lost, whatever happens to the auditor meanwhile."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples import stride
from tests.unit.metadata.store.troubled import AWAY, REPLY_LOST, REQUEST_LOST
from tests.unit.replication.auditor.auditing import (
    DELAY_S,
    ROOT,
    SETTLE_S,
    Auditing,
    auditing,
    lose,
    replicate,
    until_marked,
)

from bkpy.errors import MetadataConflictError
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.replication.audit_record import AuditRecords
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.lost_bookies import AuditRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.metadata.ledgers.layout import NewId


@pytest.fixture
async def cluster() -> AsyncIterator[Auditing]:
    made = await auditing()
    yield made
    await made.close()


# --- who is lost ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario(57)
async def test_the_ledgers_of_a_lost_bookie_are_marked_after_the_delay(cluster: Auditing) -> None:
    named = [await cluster.ledger("a b c"), await cluster.ledger("b c d", "b a d")]
    other = await cluster.ledger("b c d")
    opened = await cluster.ledger("a c", state=LedgerState.OPEN)
    auditor = await cluster.auditor()
    await lose(cluster, "a", for_s=DELAY_S - 1)
    await cluster.rounds()
    assert await cluster.marked() == {}
    assert auditor.metric("bookies", state="absent") == 1
    cluster.clock.now += 1
    await until_marked(cluster, "a")
    assert await cluster.marked() == {ledger_id: {"a"} for ledger_id in (*named, opened)}
    assert other not in await cluster.marked()
    since = int(cluster.clock.now - DELAY_S) * 1000
    mark = await cluster.mark(named[0])
    assert mark.lost == {"a": LostBookie(since, "lost", "1")}
    assert mark.node_version == 0, "it was marked once"
    await cluster.rounds(5)
    assert (await cluster.mark(named[0])).node_version == 0
    assert auditor.metric("bookies", state="lost") == 1
    assert auditor.metric("marked_ledgers") == 3
    assert auditor.metric("marks_total") == 3


@pytest.mark.scenario(57)
async def test_two_lost_bookies_are_acted_on_when_they_have_settled(cluster: Auditing) -> None:
    first, both = await cluster.ledger("a c"), await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "a", "b", for_s=SETTLE_S - 1)
    await cluster.rounds()
    assert await cluster.marked() == {}
    cluster.clock.now += 1
    await until_marked(cluster, "a", "b")
    assert await cluster.marked() == {first: {"a"}, both: {"a", "b"}}


@pytest.mark.scenario(57)
async def test_a_second_loss_merges_into_the_marks(cluster: Auditing) -> None:
    first, both, second = [await cluster.ledger(names) for names in ("a c", "a b", "b c")]
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await lose(cluster, "b", for_s=SETTLE_S)
    await until_marked(cluster, "b")
    assert await cluster.marked() == {first: {"a"}, both: {"a", "b"}, second: {"b"}}


@pytest.mark.scenario(57)
@pytest.mark.parametrize("marked", [False, True])
async def test_a_bookie_that_comes_back_as_it_was_is_not_lost(cluster: Auditing, marked: bool) -> None:
    one, both = await cluster.ledger("a b"), await cluster.ledger("a c")
    await cluster.auditor()
    await cluster.marks.add(both, {"c": LostBookie(5, LossReason.CHECK)})
    await lose(cluster, "a", for_s=DELAY_S if marked else DELAY_S - 1)
    if marked:
        await until_marked(cluster, "a")
        assert await cluster.marked() == {one: {"a"}, both: {"a", "c"}}
    cluster.bookie("a", "1 2")  # it has got a directory more
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {both: {"c"}}
    cluster.clock.now += 10 * DELAY_S
    await cluster.rounds()
    assert await cluster.marked() == {both: {"c"}}


async def test_a_bookie_that_ledgers_name_and_nobody_knows_is_lost(cluster: Auditing) -> None:
    """One that was decommissioned, and that a client with an old list of bookies has chosen since."""
    named, other = await cluster.ledger("gone b"), await cluster.ledger("a b")
    await cluster.ledger("e c")
    await cluster.auditor()
    await lose(cluster, "e")  # so that all ledgers are read
    await until_marked(cluster, "e")
    await cluster.until(lambda: "gone" in cluster.absent())
    cluster.clock.now += DELAY_S
    await until_marked(cluster, "gone")
    marked = await cluster.marked()
    assert marked[named] == {"gone"}
    assert other not in marked
    for ledger_id in marked:
        await replicate(cluster, ledger_id, "a b")
    await cluster.until(lambda: "gone" not in cluster.absent())


async def test_one_that_nobody_knows_and_that_is_registered_is_not_lost(cluster: Auditing) -> None:
    await cluster.ledger("gone b")
    cluster.put(f"{ROOT}/available/readonly/gone", {"version": 1, "address": "h:1"})
    await cluster.auditor()
    await lose(cluster, "e")
    await until_marked(cluster, "e")
    await cluster.rounds(3)
    assert "gone" not in cluster.absent()


@pytest.mark.parametrize("another_auditor", [False, True])
async def test_one_whose_cookie_is_removed_and_that_goes_then_is_lost(cluster: Auditing, another_auditor: bool) -> None:
    """The ledgers that name it are the same; and without the marks, only a check in a week would find them."""
    named = await cluster.ledger("a b")
    auditor = await cluster.auditor()
    await cluster.until(lambda: "a" in cluster.record().get("bookies", ()))
    cluster.tree.apply(Delete(f"{ROOT}/cookies/a"), 0)
    await cluster.rounds(3)
    assert not cluster.absent(), "it is registered"
    if another_auditor:
        await auditor.kill()
        await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {named: {"a"}}
    await replicate(cluster, named, "b c")
    await cluster.until(lambda: "a" not in cluster.absent() and "a" not in cluster.record()["bookies"])
    assert cluster.record()["bookies"] == dict.fromkeys("bcde", "1")


async def test_a_registered_one_that_no_record_knows_is_lost_when_it_goes(cluster: Auditing) -> None:
    """The auditor's record was damaged, or an earlier version's auditor wrote it."""
    named = await cluster.ledger("a b")
    cluster.tree.apply(Delete(f"{ROOT}/cookies/a"), 0)
    await cluster.auditor()
    await cluster.until(lambda: "a" in cluster.record().get("bookies", ()))
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {named: {"a"}}


async def test_bookies_whose_cookies_were_removed_are_remembered_while_records_name_them() -> None:
    """Their ledgers can't be repaired. Forgotten and found again, they would count as ones that may come back."""
    cluster = await auditing("abcdefg")
    for bookie in "abcd":
        await cluster.ledger(f"{bookie} e")
    auditor = await cluster.auditor()
    await cluster.until(lambda: "g" in cluster.record().get("bookies", ()))
    for bookie in "abcd":
        cluster.tree.apply(Delete(f"{ROOT}/cookies/{bookie}"), 0)
    await lose(cluster, *"abcd")
    await until_marked(cluster, *"abcd")
    cluster.clock.now += 13 * DELAY_S
    await cluster.until(lambda: all(absence["worked_off"] for absence in cluster.absent().values()))
    await cluster.rounds(3)
    await auditor.kill()
    await cluster.auditor()
    await lose(cluster, "f")
    await until_marked(cluster, "f")
    assert not cluster.record()["most_absent"]
    assert cluster.absent().keys() == set("abcdf")
    await cluster.close()


async def test_those_that_nobody_knows_count_among_the_half_that_is_absent(cluster: Auditing) -> None:
    await cluster.ledger(*(f"gone-{n} a" for n in range(8)))
    await cluster.auditor()
    await lose(cluster, "e")
    await cluster.until(lambda: bool(cluster.record().get("most_absent")))
    cluster.clock.now += DELAY_S
    await cluster.rounds(3)
    assert not cluster.absent()["gone-0"]["marked"]


async def test_what_was_not_closed_when_a_bookie_was_lost_is_verified_when_it_returns(cluster: Auditing) -> None:
    before, written, opened = [await cluster.ledger("a b") for _ in range(3)]
    await cluster.rewrite(opened, "a b", state=LedgerState.OPEN)
    cluster.written_ago(opened, 3600)  # its writer goes on without a change of the metadata
    await cluster.auditor()
    await lose(cluster, "a")
    await cluster.rewrite(written, "a b")  # it is closed while the bookie is away
    await until_marked(cluster, "a")
    assert (await cluster.marked()).keys() == {before, written, opened}
    announced = await cluster.marks.announced()
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {written: {"a"}, opened: {"a"}}
    assert {(await cluster.mark(i)).lost["a"].reason for i in (written, opened)} == {LossReason.RETURNED}
    assert await cluster.marks.announced() > announced
    # Lost once more, and back: the marks still say so.
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert {(await cluster.mark(i)).lost["a"].reason for i in (before, written, opened)} == {LossReason.LOST}
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {written: {"a"}, opened: {"a"}}


@pytest.mark.parametrize("enabled", [True, False])
async def test_an_auditors_clock_that_is_ahead_ends_no_record_too_early(cluster: Auditing, enabled: bool) -> None:
    """What was closed while the bookie was away is older than its absence by the auditor's clock alone."""
    before, written = [await cluster.ledger("a b") for _ in range(2)]
    await cluster.auditor(ahead_s=3600.0)
    if not enabled:
        await cluster.marks.set_enabled(False)
        await cluster.rounds()
    cluster.leave("a")
    await cluster.until(lambda: "a" in cluster.absent())
    await cluster.rounds()
    await cluster.marks.set_enabled(True)
    cluster.clock.now += 1
    await cluster.rewrite(written, "a b")
    cluster.clock.now += DELAY_S - 2
    await cluster.rounds()
    assert await cluster.marked() == {}  # it has the whole delay all the same
    cluster.clock.now += 1
    await until_marked(cluster, "a")
    assert (await cluster.marked()).keys() == {before, written}
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {written: {"a"}}


async def test_who_finds_no_audit_record_where_it_wrote_one_is_no_auditor_any_more(cluster: Auditing) -> None:
    cluster.tree.apply(Create(f"{ROOT}/underreplication", b""), 0)
    records = AuditRecords(cluster.tree.session(), ROOT, guard=f"{ROOT}/cookies/a")
    assert await records.read() == AuditRecord()
    await records.write(AuditRecord())
    cluster.tree.apply(Delete(f"{ROOT}/underreplication/audit"), 0)
    with pytest.raises(MetadataConflictError, match="another auditor"):
        await records.written_ms()


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_bookie_in_limbo_that_moves_or_leaves_while_it_is_looked_at_has_not_come_back(
    cluster: Auditing, comes_back: bool
) -> None:
    """Its registration is listed, and gone when it is read."""
    named = await cluster.ledger("a b")
    auditor = await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    get, node = auditor.store.get, f"{ROOT}/available/a"

    async def move_first(path: str) -> tuple[bytes, int]:
        if path == node and node in cluster.tree.paths:
            cluster.leave("a")
            if comes_back:
                cluster.bookie("a", read_only=True, in_limbo=True)
        return await get(path)

    auditor.store.get = move_first  # type: ignore[method-assign]
    cluster.bookie("a", in_limbo=True)
    await cluster.until(lambda: node not in cluster.tree.paths)
    await cluster.rounds(3)
    assert await cluster.marked() == {named: {"a"}}
    assert "a" in cluster.absent()


async def test_a_registration_that_says_nothing_brings_nobody_back(cluster: Auditing) -> None:
    named = await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    cluster.tree.apply(Create(f"{ROOT}/available/a", b"{"), 0)
    await cluster.rounds(3)
    assert await cluster.marked() == {named: {"a"}}


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_bookie_that_moves_between_the_lists_is_not_lost(cluster: Auditing, read_only: bool) -> None:
    await cluster.ledger("a b")
    if not read_only:
        cluster.leave("a")
        cluster.bookie("a", read_only=True)
    await cluster.auditor()
    cluster.leave("a")
    cluster.bookie("a", read_only=read_only)
    await cluster.rounds()
    cluster.clock.now += 10 * DELAY_S
    await cluster.rounds()
    assert await cluster.marked() == {}
    assert cluster.absent() == {}


async def test_a_bookie_that_comes_back_with_another_storage_has_lost_what_it_had(cluster: Auditing) -> None:
    one = await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "a", for_s=0)
    cluster.bookie("a", "2")
    await cluster.until(lambda: "a" not in cluster.absent())
    assert (await cluster.mark(one)).lost["a"] == dataclasses.replace(
        LostBookie(int(cluster.clock.now * 1000)), reason="rebuilding", instance="1"
    )
    await cluster.rounds(3)
    assert await cluster.marked() == {one: {"a"}}


async def test_marks_of_a_bookie_that_is_back_with_another_storage_stay(cluster: Auditing) -> None:
    one = await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    cluster.bookie("a", "2")
    await cluster.until(lambda: "a" not in cluster.absent())
    assert (await cluster.mark(one)).lost["a"].reason == "rebuilding"
    cluster.leave("a")
    cluster.bookie("a", "2")
    await cluster.rounds(3)
    assert await cluster.marked() == {one: {"a"}}


async def test_a_lost_bookie_that_got_back_all_it_had_on_another_storage_is_verified(cluster: Auditing) -> None:
    """Its limbo has ended, and then its process, before it dropped the records: the storage that they name is gone."""
    one, with_others = await cluster.ledger("a b"), await cluster.ledger("a c")
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await lose(cluster, "c", for_s=DELAY_S)
    await until_marked(cluster, "c")
    cluster.bookie("a", "2", in_limbo=True)
    await cluster.rounds(3)
    assert (await cluster.mark(one)).lost["a"].reason == "lost"
    cluster.bookie("a", "2")
    cluster.bookie("c")
    await cluster.until(lambda: not cluster.absent())
    assert {name: loss.reason for name, loss in (await cluster.mark(one)).lost.items()} == {"a": "returned"}
    assert {name: loss.reason for name, loss in (await cluster.mark(with_others)).lost.items()} == {"a": "returned"}


async def test_a_bookie_in_limbo_is_lost_though_it_is_there(cluster: Auditing) -> None:
    one = await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "a", for_s=0)
    cluster.bookie("a", in_limbo=True)
    await cluster.rounds()
    cluster.clock.now += DELAY_S
    await until_marked(cluster, "a")
    assert (await cluster.mark(one)).lost["a"].reason == "rebuilding"
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {one: {"a"}}, "a worker has to look what it has"


@pytest.mark.scenario(57)
async def test_while_most_are_absent_nothing_is_marked_and_it_is_said(
    cluster: Auditing, caplog: pytest.LogCaptureFixture
) -> None:
    one = await cluster.ledger("a b c")
    auditor = await cluster.auditor()
    await lose(cluster, "a", "b", "c", for_s=10 * DELAY_S)
    await cluster.rounds()
    assert await cluster.marked() == {}
    assert "3 of 5 bookies are absent, most of them: re-replication is suspended" in caplog.text
    assert auditor.metric("suspended") == auditor.metric("most_absent") == 1  # under its former name, too
    cluster.bookie("b")
    await cluster.until(lambda: not cluster.record()["most_absent"])
    assert await cluster.marked() == {}, "the clocks of the others begin again"
    cluster.clock.now += SETTLE_S
    await until_marked(cluster, "a", "c")
    assert await cluster.marked() == {one: {"a", "c"}}


async def test_what_was_written_while_most_were_absent_is_verified_when_its_bookie_returns(cluster: Auditing) -> None:
    """The time that a bookie may take begins again when most are back: what it has missed does not."""
    before, written = await cluster.ledger("a d e"), await cluster.ledger("a d e", state=LedgerState.OPEN)
    first = await cluster.auditor()
    await lose(cluster, "a", "b", "c", for_s=DELAY_S)
    await cluster.rewrite(written, "a d e")  # it is recovered, and two of three bookies have all of it
    cluster.clock.now += DELAY_S
    cluster.bookie("b")
    await cluster.until(lambda: not cluster.record()["most_absent"])
    await first.kill()
    await cluster.auditor(name="b")
    cluster.clock.now += SETTLE_S
    await until_marked(cluster, "a")
    assert (await cluster.marked()).keys() == {before, written}
    cluster.bookie("a")
    await cluster.until(lambda: "a" not in cluster.absent())
    assert await cluster.marked() == {written: {"a"}}
    assert (await cluster.mark(written)).lost["a"].reason == LossReason.RETURNED


@pytest.mark.scenario(57)
async def test_a_rolling_restart_marks_nothing(cluster: Auditing) -> None:
    await cluster.ledger("a b c")
    auditor = await cluster.auditor()
    for name in "abcde":
        await lose(cluster, name, for_s=DELAY_S - 1)
        await cluster.rounds()
        cluster.bookie(name)
        await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {}
    assert auditor.metric("marks_total") == 0


async def test_a_ledger_that_cannot_be_read_is_told_of_and_holds_up_no_other(
    cluster: Auditing, caplog: pytest.LogCaptureFixture
) -> None:
    bad, newer, good = [await cluster.ledger("a b") for _ in range(3)]
    cluster.tree.apply(Put(cluster.cluster.catalog.path_of(bad), b"{", 1), 0)
    cluster.tree.apply(Put(cluster.cluster.catalog.path_of(newer), b'{"version": 9}', 1), 0)
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {good: {"a"}}
    assert f"can't tell which bookies ledger {bad} names" in caplog.text
    assert f"can't tell which bookies ledger {newer} names" in caplog.text


async def test_a_ledger_that_the_auditor_may_not_read_holds_up_no_other_and_is_marked_once_it_may(
    cluster: Auditing, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden, good = [await cluster.ledger("a b") for _ in range(2)]
    auditor = await cluster.auditor()
    path = cluster.cluster.catalog.path_of(forbidden)
    auditor.store.forbidden.add(path)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await cluster.rounds(3)
    assert await cluster.marked() == {good: {"a"}}
    assert caplog.text.count(f"can't tell which bookies ledger {forbidden} names") == 1, "each ledger is reported once"
    assert "gives up its term" not in caplog.text
    auditor.store.forbidden.remove(path)
    await cluster.rounds(3)
    assert await cluster.marked() == {forbidden: {"a"}, good: {"a"}}


async def test_a_bookie_that_returns_is_verified_where_the_ledger_cannot_be_read_at_that_moment(
    cluster: Auditing,
) -> None:
    """Nobody drops it later from a record of its absence."""
    forbidden, _ = [await cluster.ledger("a b") for _ in range(2)]
    auditor = await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    auditor.store.forbidden.add(path := cluster.cluster.catalog.path_of(forbidden))
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    auditor.store.forbidden.remove(path)
    await cluster.rounds(3)
    assert await cluster.marked() == {forbidden: {"a"}}
    assert (await cluster.mark(forbidden)).lost["a"].reason == LossReason.RETURNED


async def test_a_partition_that_the_auditor_may_not_list_holds_up_no_other(
    cluster: Auditing, caplog: pytest.LogCaptureFixture
) -> None:
    good = await cluster.ledger("a b")
    partition = f"{ROOT}/000/0000/0000/0001"
    cluster.tree.apply(Create(partition, b""), 0)
    auditor = await cluster.auditor()
    auditor.store.forbidden.add(partition)
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {good: {"a"}}
    assert f"can't tell which bookies the ledgers below {partition} name" in caplog.text


async def test_a_mark_that_the_auditor_may_not_read_holds_up_no_other(cluster: Auditing) -> None:
    hidden, other = [await cluster.ledger("a b") for _ in range(2)]
    await cluster.marks.add(hidden, {"b": LostBookie(5, LossReason.CHECK)})
    auditor = await cluster.auditor()
    auditor.store.forbidden.add(f"{ROOT}/underreplication/ledgers/000/0000/0000/0000/L{hidden:04d}")
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {hidden: {"b"}, other: {"a"}}
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {hidden: {"b"}}


async def test_a_draining_that_the_auditor_may_not_read_is_one_all_the_same(cluster: Auditing) -> None:
    named = await cluster.ledger("a b")
    auditor = await cluster.auditor()
    auditor.store.forbidden.add(f"{ROOT}/underreplication/draining/a")
    assert isinstance(await Drains(cluster.tree.session(), ROOT, cluster.runtime).begin("a"), Done)
    await cluster.rounds(5)
    assert await cluster.marked() == {named: {"a"}}


# --- switched off ---------------------------------------------------------------------------------------------------


async def test_while_it_is_switched_off_nothing_is_marked_or_dropped(cluster: Auditing) -> None:
    one, two = await cluster.ledger("a b"), await cluster.ledger("c d")
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await cluster.marks.set_enabled(False)
    cluster.bookie("a")
    await lose(cluster, "c")
    await cluster.rounds(3)
    assert await cluster.marked() == {one: {"a"}}
    await cluster.marks.set_enabled(True)
    await until_marked(cluster, "c")
    assert await cluster.marked() == {two: {"c"}}


async def test_switched_off_in_the_middle_it_ends_and_does_all_of_it_later(cluster: Auditing) -> None:
    ledgers = [await cluster.ledger("a b") for _ in range(3)]
    auditor = await cluster.auditor(audit_reads_at_once=1)
    add = cluster.put

    def off() -> None:
        add(f"{ROOT}/underreplication/disable", {})

    await lose(cluster, "a", for_s=0)
    auditor.store.script.extend([None] * 14)
    auditor.store.script.append(off)
    cluster.clock.now += DELAY_S
    await cluster.until(lambda: not auditor.store.script)
    await cluster.rounds(3)
    before = await cluster.marked()
    cluster.tree.apply(Delete(f"{ROOT}/underreplication/disable"), 0)
    await until_marked(cluster, "a")
    assert await cluster.marked() == {ledger_id: {"a"} for ledger_id in ledgers}
    assert len(before) <= 3


async def lose_and_switch_off(cluster: Auditing, monkeypatch: pytest.MonkeyPatch, bookie: str) -> str:
    """It is lost, and re-replication disabled behind its first records; the node that says so."""
    add_new, switch = UnderreplicationQueue.add_new, f"{ROOT}/underreplication/disable"

    async def add_and_switch_off(marks: UnderreplicationQueue, *mark: Any) -> Any:
        outcome = await add_new(marks, *mark)
        cluster.put(switch, {})
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(UnderreplicationQueue, "add_new", add_and_switch_off)
        await lose(cluster, bookie)
        await cluster.until(lambda: switch in cluster.tree.paths)
        await cluster.rounds(3)
    return switch


async def test_switched_off_while_it_marks_from_memory_it_ends_as_well(
    cluster: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [await cluster.ledger("a b") for _ in range(5)]
    other = await cluster.ledger("c d")
    await cluster.auditor(audit_reads_at_once=1, audit_follow_interval_s=1000.0)
    await lose(cluster, "c")
    await until_marked(cluster, "c")
    switch = await lose_and_switch_off(cluster, monkeypatch, "a")
    assert await cluster.marked() == {named[0]: {"a"}, other: {"c"}}
    cluster.tree.apply(Delete(switch), 0)
    await until_marked(cluster, "a")
    assert await cluster.marked() == {**{ledger_id: {"a"} for ledger_id in named}, other: {"c"}}


async def test_a_bookie_that_is_back_before_all_is_marked_and_that_was_switched_off_is_dropped(
    cluster: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [await cluster.ledger("a b") for _ in range(5)]
    other = await cluster.ledger("c d")
    await cluster.auditor(audit_reads_at_once=1)
    await lose(cluster, "c")
    await until_marked(cluster, "c")
    switch = await lose_and_switch_off(cluster, monkeypatch, "a")
    assert await cluster.marked() == {named[0]: {"a"}, other: {"c"}}
    cluster.bookie("a")
    await cluster.rounds(3)
    cluster.tree.apply(Delete(switch), 0)
    await cluster.until(lambda: "a" not in cluster.absent())
    assert await cluster.marked() == {other: {"c"}}


# --- another auditor ------------------------------------------------------------------------------------------------


@pytest.mark.scenario(57)
async def test_a_new_auditor_does_not_begin_the_clocks_again(cluster: Auditing) -> None:
    one = await cluster.ledger("a b")
    first = await cluster.auditor()
    await lose(cluster, "a", for_s=DELAY_S - 1)
    await cluster.rounds()
    await first.kill()
    await cluster.auditor(name="b")
    await cluster.rounds()
    assert await cluster.marked() == {}
    cluster.clock.now += 1
    await until_marked(cluster, "a")
    assert await cluster.marked() == {one: {"a"}}


Trouble = str
TROUBLES = ["killed", "expired", "suspended", "deposed", REQUEST_LOST, REPLY_LOST, AWAY]


@pytest.mark.thorough
@pytest.mark.scenario(57)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("after", range(0, 60, 3 * stride()))
async def test_whatever_happens_to_the_auditor_at_any_call_all_is_marked(
    cluster: Auditing, trouble: Trouble, after: int
) -> None:
    """From the moment when one of two is due, to the return of the one and the marks of the other."""
    first, both, second = [await cluster.ledger(names) for names in ("a c", "a b", "b c")]
    auditor = await cluster.auditor(audit_reads_at_once=2)
    await lose(cluster, "a", "b", for_s=0)
    successor = await cluster.auditor(name="b", audit_reads_at_once=2)

    def act() -> None:
        if trouble == "killed":
            auditor.task.cancel()
            cluster.tree.end_session(auditor.store.session_id)
        elif trouble == "expired":
            auditor.store.expire()
        elif trouble == "suspended":
            auditor.store.suspend()
            cluster.runtime.spawn(resume(), name="resume")
        else:
            cluster.tree.end_session(auditor.store.session_id)  # and nobody tells it

    async def resume() -> None:
        await cluster.until(lambda: not auditor.election.leading)
        auditor.store.resume()

    auditor.store.script.extend([*[None] * after, trouble if trouble in (REQUEST_LOST, REPLY_LOST, AWAY) else act])
    cluster.clock.now += SETTLE_S
    await until_marked(cluster, "a", "b")
    assert await cluster.marked() == {first: {"a"}, both: {"a", "b"}, second: {"b"}}
    cluster.bookie("a")
    await cluster.until(lambda: "a" not in cluster.absent())
    await cluster.until(lambda: not auditor.store.script or auditor.store.calls > 1000)
    await cluster.until(lambda: auditor.election.leading or successor.election.leading)
    assert await cluster.marked() == {both: {"b"}, second: {"b"}}


@pytest.mark.scenario(57)
@pytest.mark.parametrize("after", range(60, 100, 2))
async def test_a_bookie_that_comes_back_while_it_is_marked_is_dropped_by_the_next_auditor(
    cluster: Auditing, after: int
) -> None:
    """Wherever the one before has ended: it may have added some of the records, or all of them and not said so."""
    for _ in range(6):
        await cluster.ledger("a b")
    auditor = await cluster.auditor(audit_reads_at_once=2)
    await lose(cluster, "a", for_s=0)

    def end() -> None:
        auditor.task.cancel()
        cluster.tree.end_session(auditor.store.session_id)

    auditor.store.script.extend([*[None] * after, end])
    cluster.clock.now += DELAY_S
    await cluster.until(lambda: not auditor.store.script or cluster.absent()["a"]["marked"])
    auditor.store.script.clear()
    await auditor.kill()
    cluster.bookie("a")
    await cluster.auditor(name="b")
    await cluster.until(lambda: not cluster.absent())
    assert await cluster.marked() == {}


async def test_a_record_of_the_version_before_is_read(cluster: Auditing) -> None:
    """0.2.0 didn't say that it had begun."""
    first = await cluster.auditor()
    await lose(cluster, "a", for_s=0)
    await first.kill()
    record = cluster.record()
    del record["absent"]["a"]["begun"]
    cluster.put(f"{ROOT}/underreplication/audit", record)
    cluster.clock.now += 1
    await cluster.auditor(name="b")
    await cluster.rounds()
    assert cluster.absent()["a"]["since_ms"] == record["absent"]["a"]["since_ms"]


@pytest.mark.scenario(57)
async def test_one_that_was_deposed_while_it_marked_marks_nothing_more(cluster: Auditing) -> None:
    for _ in range(20):
        await cluster.ledger("a b")
    auditor = await cluster.auditor(audit_reads_at_once=1)
    await lose(cluster, "a", for_s=0)
    await cluster.marks.set_enabled(False)  # so that no successor marks them
    await cluster.rounds()
    cluster.tree.apply(Delete(f"{ROOT}/underreplication/disable"), 0)
    auditor.store.script.extend(
        [*[None] * 40, lambda: (cluster.tree.end_session(auditor.store.session_id), auditor.task.cancel())]
    )
    cluster.clock.now += DELAY_S
    await cluster.until(lambda: not auditor.store.script)
    left = await cluster.marked()
    assert not cluster.absent()["a"]["marked"]
    for _ in range(100):
        await cluster.marks.read(0)
    assert await cluster.marked() == left
    assert len(left) < 20


# --- records that stay or go ------------------------------------------------------------------------------------------


async def test_a_lost_bookie_that_nothing_misses_any_more_is_no_second_loss(cluster: Auditing) -> None:
    one, two = await cluster.ledger("a c"), await cluster.ledger("b c")
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await replicate(cluster, one, "d c")
    await cluster.until(lambda: cluster.absent()["a"]["worked_off"])
    await lose(cluster, "b", for_s=SETTLE_S)
    await cluster.rounds()
    assert await cluster.marked() == {}
    cluster.clock.now += DELAY_S
    await until_marked(cluster, "b")
    assert await cluster.marked() == {two: {"b"}}


async def test_marks_that_stay_leave_others_the_time_to_restart(cluster: Auditing) -> None:
    """Ledgers that can't be repaired make no other absence urgent: of one lost bookie for an hour, of others never."""
    stuck, one, other = await cluster.ledger("a d"), await cluster.ledger("b d"), await cluster.ledger("c d")
    await cluster.auditor()
    await lose(cluster, "a", "b")
    await cluster.until(lambda: bool(cluster.absent()["b"]["marked"] and cluster.absent()["a"]["marked"]))
    await replicate(cluster, one, "e d")
    await cluster.until(lambda: cluster.absent()["b"]["worked_off"])  # each bookie by itself
    assert not cluster.absent()["a"]["worked_off"]
    cluster.clock.now += 12 * DELAY_S
    await cluster.until(lambda: cluster.absent()["a"]["worked_off"])
    await lose(cluster, "c", for_s=SETTLE_S)
    await cluster.rounds()
    assert await cluster.marked() == {stuck: {"a"}}
    cluster.clock.now += DELAY_S
    await until_marked(cluster, "c")
    assert await cluster.marked() == {stuck: {"a"}, other: {"c"}}


async def test_while_marks_go_a_second_loss_is_urgent(cluster: Auditing) -> None:
    """However long the first one was ago."""
    ledgers = [await cluster.ledger("a d") for _ in range(3)]
    other = await cluster.ledger("c d")
    auditor = await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    for ledger_id in ledgers[:2]:
        cluster.clock.now += 11 * DELAY_S
        await replicate(cluster, ledger_id, "e d")
        enough = auditor.store.ledger_reads + 40  # of several scans, some ledgers in each
        await cluster.until(lambda enough=enough: auditor.store.ledger_reads > enough)
    assert not cluster.absent()["a"]["worked_off"]
    await lose(cluster, "c", for_s=SETTLE_S)
    await until_marked(cluster, "c")
    assert await cluster.marked() == {ledgers[2]: {"a"}, other: {"c"}}


@pytest.mark.parametrize("seed", range(6))
async def test_no_ledger_that_names_a_lost_bookie_stays_without_a_mark(seed: int) -> None:
    """Writers, workers, losses and returns at random, and nodes that only others may read for a while; then quiet."""
    rng = random.Random(seed)
    cluster = await auditing("abcdefgh")
    script: list[Callable[[], None] | str | None] = []
    auditor = await cluster.auditor(script, audit_reads_at_once=rng.choice([1, 3]))
    here, opened, ledgers = set("abcdefgh"), set[int](), [await cluster.ledger("a b")]
    drawn: list[NewId] = []
    for _ in range(60):
        act = rng.randrange(8)
        if act == 0:
            ledgers.append(await cluster.ledger(" ".join(rng.sample("abcdefgh", 2)), state=LedgerState.OPEN))
            opened.add(ledgers[-1])
        elif act == 1 and opened:
            closing = rng.choice(sorted(opened))
            opened.discard(closing)
            await cluster.rewrite(closing, "a b", " ".join(rng.sample("abcdefgh", 2)))
        elif act == 2 and len(here) > 6:
            cluster.leave(gone := rng.choice(sorted(here)))
            here.discard(gone)
        elif act == 3 and len(here) < 8:
            back = rng.choice(sorted(set("abcdefgh") - here))
            cluster.bookie(back)
            here.add(back)
        elif act == 4:
            for ledger_id, lost in (await cluster.marked()).items():
                if rng.random() < 0.5 and ledger_id not in opened:
                    mark = await cluster.marks.read(ledger_id)
                    if mark is None or not mark.lost.keys() <= lost:
                        continue
                    await cluster.rewrite(ledger_id, " ".join(rng.sample("abcdefgh", 2)))
                    await cluster.marks.remove(mark, mark.lost)
        elif act == 5:
            if drawn and rng.random() < 0.5:
                cluster.create_drawn(new := drawn.pop(rng.randrange(len(drawn))), " ".join(rng.sample("abcdefgh", 2)))
                ledgers.append(new.ledger_id)
            else:
                drawn.append(await cluster.draw_id())
        elif act == 6 and ledgers:
            auditor.store.forbidden = {cluster.cluster.catalog.path_of(rng.choice(ledgers))}
        else:
            cluster.clock.now += rng.choice([SETTLE_S, DELAY_S])
        if rng.random() < 0.2:
            auditor.store.script.append(rng.choice([REQUEST_LOST, REPLY_LOST, AWAY]))
        for _ in range(rng.randrange(20)):
            await cluster.marks.enabled()
    cluster.clock.now += DELAY_S
    await cluster.rounds(6)
    gone = set("abcdefgh") - here
    cluster.clock.now += DELAY_S
    await cluster.rounds(6)
    await until_marked(cluster, *gone)
    await cluster.rounds(6)
    marked = await cluster.marked()
    hidden = [i for i in ledgers if cluster.cluster.catalog.path_of(i) in auditor.store.forbidden]
    for ledger_id in ledgers:
        assert ledger_id in (*marked, *hidden) or not cluster.names(ledger_id) & gone
    auditor.store.forbidden = set()
    await cluster.rounds(6)
    marked = await cluster.marked()
    while marked:  # workers that have come to rest leave nothing on lost bookies
        for ledger_id in marked:
            await replicate(cluster, ledger_id, " ".join(rng.sample(sorted(here), 2)))
        await cluster.rounds(6)
        marked = await cluster.marked()
    assert not [ledger_id for ledger_id in ledgers if cluster.names(ledger_id) & gone]
    await cluster.close()


@pytest.mark.parametrize("layout", ["flat", "hierarchical"])
async def test_other_layouts(layout: str) -> None:
    cluster = await auditing(layout=layout)
    one = await cluster.ledger("a b")
    await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {one: {"a"}}
    await cluster.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "bookies": {}, "absent": {"a": 1}}',
        b'{"version": 1, "most_absent": false, "bookies": {}, "absent": {"a": {"since_ms": 1e999, "instance": "", '
        b'"replaced": false, "marked": false, "worked_off": false}}}',
        pytest.param(b"[" * 100_000, id="nested deeply"),
    ],
)
async def test_a_record_that_is_damaged_is_written_anew(cluster: Auditing, data: bytes) -> None:
    one = await cluster.ledger("a b")
    cluster.tree.apply(Create(f"{ROOT}/underreplication", b""), 0)
    cluster.tree.apply(Create(f"{ROOT}/underreplication/audit", data), 0)
    await cluster.auditor()
    await cluster.rounds()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    assert await cluster.marked() == {one: {"a"}}


async def test_a_record_of_a_newer_version_stops_the_audit(cluster: Auditing, caplog: pytest.LogCaptureFixture) -> None:
    cluster.tree.apply(Create(f"{ROOT}/underreplication", b""), 0)
    cluster.tree.apply(Create(f"{ROOT}/underreplication/audit", b'{"version": 2}'), 0)
    await cluster.auditor()
    await cluster.until(lambda: "upgrade it" in caplog.text)
    assert cluster.record() == {"version": 2}, "it was written over"


async def test_unknown_fields_of_the_record_survive(cluster: Auditing) -> None:
    first = await cluster.auditor()
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    await first.kill()
    cluster.put(f"{ROOT}/underreplication/audit", {**cluster.record(), "newer": [1]})
    await cluster.auditor(name="b")
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    assert cluster.record()["newer"] == [1]


# --- who is to leave --------------------------------------------------------------------------------------------------


async def marks_of(cluster: Auditing, *ledger_ids: int) -> set[str]:
    """The reasons why these miss "a"; "" for one that has no mark."""
    marks = [await cluster.marks.read(ledger_id) for ledger_id in ledger_ids]
    return {"" if mark is None else mark.lost["a"].reason for mark in marks}


@pytest.mark.scenario(60)
async def test_what_a_bookie_has_that_is_to_leave_is_marked_and_stays_so_when_it_returns(cluster: Auditing) -> None:
    named = [await cluster.ledger("a b c"), await cluster.ledger("b c d", "b a d")]
    await cluster.ledger("b c d")
    auditor = await cluster.auditor()
    await cluster.rounds()
    assert await cluster.marked() == {}
    drains = Drains(cluster.tree.session(), ROOT, cluster.runtime)
    assert isinstance(await drains.begin("a"), Done)
    await cluster.until(lambda: auditor.metric("marks_total") == 2)
    await cluster.rounds()
    assert await cluster.marked() == {ledger_id: {"a"} for ledger_id in named}
    assert await marks_of(cluster, *named) == {LossReason.DRAINING}
    assert (await cluster.mark(named[0])).lost["a"].instance == "1"
    # It comes to be named by another one, as what was decided before is stored now.
    late = await cluster.ledger("a d")
    await cluster.until(lambda: auditor.metric("marks_total") == 3)
    # It dies, is lost, and comes back: it is to leave all the same.
    await lose(cluster, "a")
    await until_marked(cluster, "a")
    cluster.bookie("a")
    await cluster.until(lambda: not cluster.absent())
    await cluster.rounds()
    assert await marks_of(cluster, *named, late) == {LossReason.DRAINING}


async def test_a_new_auditor_marks_what_the_one_before_may_not_have(cluster: Auditing) -> None:
    drains = Drains(cluster.tree.session(), ROOT, cluster.runtime)
    await drains.begin("a")
    first = await cluster.auditor()
    ledger_id = await cluster.ledger("a b")
    await cluster.until(lambda: first.metric("marks_total") >= 1)
    await cluster.marks.remove(await cluster.mark(ledger_id), ["a"])
    await first.kill()
    second = await cluster.auditor(name="b")
    await cluster.until(lambda: second.metric("marks_total") >= 1)
    assert await marks_of(cluster, ledger_id) == {LossReason.DRAINING}
