"""Rules 28 and 37, what the auditor takes for lost: each part of them with a story that needs it.

Each story is told with the rule, and then with the real auditor robbed of that part, which must be noticed. The other
rules of re-replication are switched off in `tests/sim`: `ablations/` and `test_draining_rules.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.unit.replication.auditor.auditing import DELAY_S, SETTLE_S, Auditing, auditing, lose

from bkpy.metadata.bookies.membership import look_at_bookies
from bkpy.metadata.replication.audit_record import AuditRecords
from bkpy.protocol.repair import lost_bookies as decisions
from bkpy.protocol.repair.lost_bookies import AuditRecord, Presence, audit
from bkpy.replication.auditor import auditor, ledger_scan

if TYPE_CHECKING:
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.repair.lost_bookies import BookieStatus, Findings

ROUNDS = 4


async def one_bookie_is_restarted(cluster: Auditing) -> bool:
    """One loss has a delay: nothing is marked."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "a", for_s=DELAY_S - 1)
    await cluster.rounds(ROUNDS)
    return await cluster.marked() == {}


async def two_bookies_are_away_for_a_moment(cluster: Auditing) -> bool:
    """What is seen has to settle: nothing is marked."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "a", "b", for_s=SETTLE_S - 1)
    await cluster.rounds(ROUNDS)
    return await cluster.marked() == {}


async def two_bookies_stay_away(cluster: Auditing) -> bool:
    """Two losses are acted on at once."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "a", "b", for_s=SETTLE_S)
    await cluster.rounds(ROUNDS)
    return [*(await cluster.marked()).values()] == [{"a", "b"}]


async def most_bookies_are_cut_off(cluster: Auditing) -> bool:
    """Nothing is marked."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "a", "b", "c", for_s=10 * DELAY_S)
    await cluster.rounds(ROUNDS)
    return await cluster.marked() == {}


async def a_bookie_is_read_only(cluster: Auditing) -> bool:
    """It isn't lost."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await cluster.rounds()
    cluster.leave("a")
    cluster.bookie("a", read_only=True)
    await cluster.rounds(ROUNDS)
    cluster.clock.now += 2 * DELAY_S
    await cluster.rounds(ROUNDS)
    return await cluster.marked() == {}


async def the_auditor_is_another_one(cluster: Auditing) -> bool:
    """It goes on with the clocks of the one before."""
    await cluster.ledger("a b c")
    first = await cluster.auditor()
    await lose(cluster, "a", for_s=DELAY_S - 1)
    await cluster.rounds()
    await first.kill()
    await cluster.auditor(name="b")
    await cluster.rounds(ROUNDS)
    cluster.clock.now += 1
    await cluster.rounds(ROUNDS)
    return [*(await cluster.marked()).values()] == [{"a"}]


async def a_lost_bookie_returns_empty(cluster: Auditing) -> bool:
    """Its marks stay."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "a")
    await cluster.until(lambda: bool(cluster.absent().get("a", {}).get("marked")))
    cluster.bookie("a", "2")
    await cluster.rounds(ROUNDS)
    return [*(await cluster.marked()).values()] == [{"a"}]


async def a_lost_bookie_returns_in_limbo(cluster: Auditing) -> bool:
    """The same."""
    await cluster.ledger("a b c")
    await cluster.auditor()
    await lose(cluster, "a")
    await cluster.until(lambda: bool(cluster.absent().get("a", {}).get("marked")))
    cluster.bookie("a", in_limbo=True)
    await cluster.rounds(ROUNDS)
    return [*(await cluster.marked()).values()] == [{"a"}]


# --- what is left out -----------------------------------------------------------------------------------------------


def timed(settle_ms: int | None = None, delay_ms: int | None = None) -> AbstractContextManager[Any]:
    def otherwise(*look: Any, **times: int) -> Findings:
        given = {"settle_ms": settle_ms, "delay_ms": delay_ms}
        return audit(*look, **{**times, **{name: ms for name, ms in given.items() if ms is not None}})

    return patch.object(auditor, "audit", otherwise)


def without_a_delay() -> AbstractContextManager[Any]:
    return timed(delay_ms=0)


def without_settling() -> AbstractContextManager[Any]:
    return timed(settle_ms=0)


def with_the_delay_for_each() -> AbstractContextManager[Any]:
    return timed(settle_ms=int(DELAY_S * 1000))


def whatever_is_absent() -> AbstractContextManager[Any]:
    def bold(record: AuditRecord, seen: dict[str, BookieStatus], *rest: Any, **times: int) -> Findings:
        others = {f"{name}'s double": _HERE for name in seen}
        found = audit(record, {**seen, **others}, *rest, **times)
        known = {name: instance for name, instance in found.record.instances.items() if name in seen}
        return replace(found, record=replace(found.record, instances=known))

    return patch.object(auditor, "audit", bold)


def by_the_writable_ones() -> AbstractContextManager[Any]:
    async def look(store: MetadataStore, root: str, **how: Any) -> dict[str, BookieStatus]:
        seen = await look_at_bookies(store, root, **how)
        writable = await store.children(f"{root}/available")
        return {b: one if b in writable else replace(one, presence=Presence.ABSENT) for b, one in seen.items()}

    return patch.object(auditor, "look_at_bookies", look)


def without_the_record() -> AbstractContextManager[Any]:
    async def read(records: AuditRecords) -> AuditRecord:
        return AuditRecord()

    return patch.object(AuditRecords, "read", read)


def whatever_storage_it_has() -> AbstractContextManager[Any]:
    def all_the_same(now: str, before: str) -> bool:
        return True

    patches = ExitStack()
    patches.enter_context(patch.object(decisions, "covers", all_the_same))
    patches.enter_context(patch.object(ledger_scan, "covers", all_the_same))
    return patches


def limbo_taken_for_health() -> AbstractContextManager[Any]:
    async def look(store: MetadataStore, root: str, **how: Any) -> dict[str, BookieStatus]:
        seen = await look_at_bookies(store, root, **how)
        return {
            b: replace(one, presence=Presence.HERE) if one.presence is Presence.LIMBO else one
            for b, one in seen.items()
        }

    return patch.object(auditor, "look_at_bookies", look)


_HERE = decisions.BookieStatus(Presence.HERE)
Story = Callable[[Auditing], Awaitable[bool]]


async def told(story: Story) -> bool:
    """Whether it ends as it should."""
    cluster = await auditing()
    try:
        return await story(cluster)
    finally:
        await cluster.close()


@pytest.mark.scenario(57)
@pytest.mark.parametrize(
    ("story", "without"),
    [
        (one_bookie_is_restarted, without_a_delay),
        (two_bookies_are_away_for_a_moment, without_settling),
        (two_bookies_stay_away, with_the_delay_for_each),
        (most_bookies_are_cut_off, whatever_is_absent),
        (a_bookie_is_read_only, by_the_writable_ones),
        (the_auditor_is_another_one, without_the_record),
        (a_lost_bookie_returns_empty, whatever_storage_it_has),
        (a_lost_bookie_returns_in_limbo, limbo_taken_for_health),
    ],
)
async def test_the_rule_holds_and_is_needed(story: Story, without: Callable[[], AbstractContextManager[Any]]) -> None:
    assert await told(story)
    with without():
        assert not await told(story)
