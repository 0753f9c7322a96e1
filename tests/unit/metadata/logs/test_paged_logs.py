"""Logs with more ledgers than their lists have, in pages of two: written, searched, truncated and deleted.

Whatever goes wrong at whichever call to the store: nothing that is needed goes, and nothing that isn't is forgotten.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples import stride
from tests.stepping import run_to
from tests.unit.metadata.logs.log_world import LIST, NAME, OLD_UID, UID, LogWorld
from tests.unit.metadata.store.troubled import AWAY, CLOSED, REPLY_LOST, REQUEST_LOST, OpeningStep

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, DiskError, MetadataConflictError, NoSuchLogError
from bkpy.metadata.logs.maintenance import Swept
from bkpy.metadata.logs.pages import PageMissingError, RangeWalk
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Unknown
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.log.log_list import LogList, PageRef, Segment
from bkpy.protocol.log.log_pages import Page, decoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.logs.maintenance import LogMaintenance
    from bkpy.protocol.log.log_pages import Row

SEALED = 13  # ledgers of ten entries each, and an open one behind them
PAGES = f"{LIST}/{UID}/pages"
GRACE_S = 100.0
CALLS = 80  # more than any act makes


class PagedWorld(LogWorld):
    """The log has positions 0 to 139: thirteen sealed ledgers of ten each, and an open one, in pages of two."""

    def _parts(self, store: Any, given: dict[str, Any]) -> Any:
        return super()._parts(store, {"log_page_rows": 2, **given})

    def logs_of(self, script: Sequence[str | OpeningStep | None] = (), **given: Any) -> LogStore:
        """Those of another client, whose calls go wrong as the script says."""
        self.opened(script, **given)
        return self._parts(self.troubled, given)[1]  # type: ignore[no-any-return]

    async def begin(self, **fields: Any) -> PagedWorld:
        await super().begin(**fields)
        while len(self.segments) <= SEALED:
            await self.grow()
        return self

    async def grow(self) -> None:
        """A roll, as a client does it."""
        log_list, version = await self.logs.read(NAME, fresh=True)
        self.segments.append(await self.ledger())
        assert isinstance(await self.logs.write(NAME, self.rolled(log_list, self.segments[-1]), version), Done)

    def rolled(self, log_list: LogList, ledger_id: int) -> LogList:
        *others, last = log_list.segments
        begun_ms = last.begun_ms + 1000
        segments = (*others, last.seal(10, 180, begun_ms), Segment(ledger_id, last.first_position + 10, begun_ms))
        return dataclasses.replace(log_list, segments=segments)

    def page(self, ref: PageRef) -> Page | None:
        path = f"{PAGES}/{ref.number}"
        return decoded(NAME, UID, ref, self.tree.node(path).data) if path in self.tree.paths else None

    def named(self, rows: Sequence[Row]) -> list[Segment]:
        """Those of the rows, and of the pages that are there."""
        found: list[Segment] = []
        for row in rows:
            if isinstance(row, Segment):
                found.append(row)
            elif (page := self.page(row)) is not None:
                found += self.named(page.rows)
        return found

    def page_nodes(self) -> set[str]:
        return {path for path in self.tree.paths if path.startswith(f"{PAGES}/")}

    def check(self) -> None:
        self.tree.check_invariants()
        log_list = self.log_list()
        if log_list is None:
            assert not set(self.segments) & self.ledgers(), "a ledger was forgotten that is there"
            assert not [path for path in self.tree.paths if path.startswith(LIST)]
            return
        named = self.named(log_list.rows)
        needed = [segment for segment in named if not log_list.is_pending(segment)]
        assert {segment.ledger_id for segment in needed} <= self.ledgers(), "a ledger that the log needs was deleted"
        if not log_list.deleted:
            position = log_list.first_position
            for segment in needed:
                assert segment.first_position <= position, f"nothing says where position {position} is"
                position = segment.end_position if segment.sealed else position
        known = {segment.ledger_id for segment in named} | set(log_list.pending_delete)
        assert self.ledgers() & set(self.segments) <= known, "a ledger was forgotten that is there"

    async def check_all_is_done(self, first: int) -> None:
        """Exactly what begins at or behind `first`, or holds it, is left."""
        log_list = self.log_list()
        assert log_list is not None
        assert (log_list.first_position, log_list.pending_delete, log_list.pages_pending) == (first, (), False)
        left = set(self.segments[first // 10 :])
        assert self.ledgers() & set(self.segments) == left
        numbers = {int(path.rsplit("/", 1)[1]) for path in self.page_nodes()}
        assert numbers == self.numbers(log_list.pages, log_list.reclaimed)

    def numbers(self, refs: Sequence[Row], reclaimed: int) -> set[int]:
        """Those of the pages that must be there."""
        found: set[int] = set()
        for ref in refs:
            if isinstance(ref, PageRef) and ref.end_position > reclaimed:
                page = self.page(ref)
                assert page is not None
                found |= {ref.number} | self.numbers(page.rows, reclaimed)
        return found


@pytest.fixture
async def world() -> PagedWorld:
    return await PagedWorld().begin()


# --- writing ----------------------------------------------------------------------------------------------------------


async def test_a_log_has_pages_from_its_seventh_ledger_on() -> None:
    world = PagedWorld()
    await LogWorld.begin(world)
    for count in range(5, 30):
        await world.grow()
        log_list = world.log_list()
        assert log_list is not None
        assert bool(log_list.pages) == (PAGES in world.tree.paths) == (count > 6)
        assert [segment.ledger_id for segment in world.named(log_list.rows)] == world.segments
        assert len(world.page_nodes()) == log_list.next_page
        world.check()


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST])
async def test_a_lost_request_or_reply_makes_no_page_twice(trouble: str) -> None:
    for call in range(8):
        world = await PagedWorld().begin()
        log_list, version = await world.logs.read(NAME)
        ledger_id = await world.ledger()
        logs = world.logs_of([None] * call + [trouble])
        assert await logs.write(NAME, world.rolled(log_list, ledger_id), version) == Done(version + 1)
        world.segments.append(ledger_id)
        world.check()
        await world.check_all_is_done(0)


async def test_a_write_that_is_repeated_after_an_unknown_outcome_is_the_same() -> None:
    """As one that rolls repeats it, with the same token."""
    for call in range(8):
        world = await PagedWorld().begin()
        log_list, version = await world.logs.read(NAME)
        wanted = world.rolled(log_list, await world.ledger())
        logs = world.logs_of([None] * call + [REPLY_LOST] * 3, metadata_write_attempts_max=1)
        outcomes = [await logs.write(NAME, wanted, version, token="t" * 32) for _ in range(5)]
        assert Done(version + 1) in outcomes or Changed() in outcomes
        found = world.log_list()
        assert found == dataclasses.replace(logs.stored_form(wanted), write_token="t" * 32)
        await world.check_all_is_done(0)


async def test_a_refused_write_leaves_no_page(world: PagedWorld) -> None:
    log_list, version = await world.logs.read(NAME)
    before = world.page_nodes()
    check = world.logs.ledger_check(await world.ledger(), 7)
    wanted = world.rolled(log_list, 99)
    outcome = await world.logs.write(NAME, wanted, version, check)
    assert isinstance(outcome, Missing)
    assert outcome.node == check.path
    assert await world.logs.write(NAME, wanted, version - 1) == Changed()
    other = dataclasses.replace(wanted, uid=OLD_UID)
    assert await world.logs.write(NAME, other, version) == Missing(LIST)
    assert world.page_nodes() == before
    world.check()


def long(world: PagedWorld, log_list: LogList, count: int, ledger_id: int = 1000) -> LogList:
    """With so many more segments, in one write, as a sink adds them."""
    position, begun_ms = log_list.segments[-1].first_position, world.now_ms
    last = log_list.segments[-1].seal(10, 180, begun_ms)
    more = tuple(Segment(ledger_id + n, position + 10 + n, begun_ms).seal(1, 18, begun_ms) for n in range(count))
    return dataclasses.replace(log_list, segments=(*log_list.segments[:-1], last, *more))


async def test_a_large_write_is_done_in_small_transactions(world: PagedWorld) -> None:
    log_list, version = await world.logs.read(NAME)
    wanted = long(world, log_list, 200)
    sizes = largest_transactions(world)
    logs = world.logs_of(log_write_bytes_max=4000)
    assert await logs.write(NAME, wanted, version) == Done(version + 1)
    found = world.log_list()
    assert found is not None
    assert world.named(found.rows)[-200:] == list(wanted.segments[-200:])
    assert len(world.page_nodes()) == found.next_page
    assert max(sizes) < 4000 + 1000
    assert len(sizes) > 5


def largest_transactions(world: PagedWorld) -> list[int]:
    """The bytes of values of each transaction from now on."""
    sizes: list[int] = []
    apply_all = world.tree.apply_all

    def measured(operations: Any, session_id: int) -> Any:
        sizes.append(sum(len(one.data) for one in operations if isinstance(one, Create | Put)))
        return apply_all(operations, session_id)

    world.tree.apply_all = measured  # type: ignore[method-assign]
    return sizes


@pytest.mark.thorough
@pytest.mark.parametrize("trouble", [AWAY, REQUEST_LOST, REPLY_LOST])
async def test_a_large_write_that_was_cut_short_anywhere_is_done_by_another(trouble: str) -> None:
    for call in range(0, 150, 4):
        world = await PagedWorld().begin()
        log_list, version = await world.logs.read(NAME)
        wanted = long(world, log_list, 30)
        script: list[str | OpeningStep | None] = [None] * call + [trouble] * (CALLS if trouble == AWAY else 1)
        logs = world.logs_of(script, log_write_bytes_max=2500, metadata_write_attempts_max=1)
        try:
            outcome: object = await logs.write(NAME, wanted, version)
        except BookKeeperError as error:
            outcome = error
        if isinstance(outcome, Done):
            break
        assert trouble != REPLY_LOST or isinstance(outcome, Unknown), outcome
        assert isinstance(outcome, NotDone | Unknown | BookKeeperError)
        if world.tree.node(LIST).version == version:  # another one writes something else: it needs other pages
            other = long(world, log_list, 20, 2000)
            assert await world.logs_of(log_write_bytes_max=2500).write(NAME, other, version) == Done(version + 1)
            found = world.log_list()
            assert found is not None
            assert len(world.named(found.rows)) == len(world.named(other.rows))
    else:
        pytest.fail("it was never done")


@pytest.mark.thorough
async def test_of_two_large_writes_at_once_one_is_refused_and_its_pages_do_no_harm() -> None:
    """The other one comes between any two calls of the first, and may have written pages of the same numbers."""
    quiet = await PagedWorld().begin()
    log_list, version = await quiet.logs.read(NAME)
    await quiet.logs_of(log_write_bytes_max=2500).write(NAME, long(quiet, log_list, 30), version)
    calls = quiet.troubled.calls
    for call in (*range(0, calls, 9), *range(calls - 4, calls)):
        world = await PagedWorld().begin()
        log_list, version = await world.logs.read(NAME)
        mine, other = long(world, log_list, 30), long(world, log_list, 20, 2000)
        written: list[object] = []

        def ahead(world: PagedWorld = world, other: LogList = other, written: list[object] = written) -> None:
            stored, pages = pages_of(world, other)
            for page in pages:
                path = f"{PAGES}/{page.number}"
                if path in world.tree.paths:
                    world.tree.apply(Put(path, page.encode(), world.tree.node(path).version), 0)
                else:
                    world.tree.apply(Create(path, page.encode()), 0)
            written.append(stored)

        logs = world.logs_of([None] * call + [ahead], log_write_bytes_max=2500, log_conflicts_max=9)
        assert await logs.write(NAME, mine, version) == Done(version + 1)
        found = world.log_list()
        assert found is not None
        assert world.named(found.rows)[-30:] == list(mine.segments[-30:]), call
        assert written


def pages_of(world: PagedWorld, log_list: LogList) -> tuple[LogList, tuple[Page, ...]]:
    from bkpy.protocol.log.log_pages import paged

    return paged(dataclasses.replace(log_list, write_token="o" * 32), world.logs.settings.log_page_rows)


async def test_a_refused_large_write_changes_no_page(world: PagedWorld) -> None:
    """The list has changed, and refers to a page with the first number that this write would give."""
    log_list, version = await world.logs.read(NAME)
    while len(world.page_nodes()) == log_list.next_page:
        await world.grow()
    before = {path: world.tree.node(path).data for path in world.page_nodes()}
    logs = world.logs_of(log_write_bytes_max=2500)
    assert await logs.write(NAME, long(world, log_list, 60), version) == Changed()
    assert {path: world.tree.node(path).data for path in world.page_nodes()} == before


@pytest.mark.thorough
async def test_a_full_list_of_the_former_format_moves_into_pages_in_small_steps() -> None:
    world = PagedWorld()
    await LogWorld.begin(world)
    log_list = world.log_list()
    assert log_list is not None
    full = long(world, log_list, 11_000)
    former = full.encode().replace(b'"version":2', b'"version":1', 1).replace(b'"reclaimed":0,', b"", 1)
    former = former.replace(b'"pages":[],"next_page":0,', b"", 1)
    former = former.replace(b'"producers":{}', b'"sinks":{}', 1)
    world.tree.apply(Put(LIST, former, 0), 0)
    assert LogList.decode(NAME, former).segments == full.segments
    sizes = largest_transactions(world)
    logs = world.logs_of(log_page_rows=128)
    read, version = await logs.read(NAME)
    assert await logs.write(NAME, read.truncated(25), version) == Done(version + 1)
    found = world.log_list()
    assert found is not None
    assert max(sizes) <= 256 * 1024
    assert len(found.encode()) < 50_000
    assert world.named(found.rows) == list(full.segments[2:])


# --- searching --------------------------------------------------------------------------------------------------------


async def test_segments_are_found_by_position_time_and_ledger(world: PagedWorld) -> None:
    log_list, _ = await world.logs.read(NAME)
    everything = world.named(log_list.rows)
    pages = world.logs_of().pages
    for position in range(0, 150, 3):
        assert await pages.segment_at(NAME, log_list, position) == everything[min(position // 10, SEALED)]
    assert await pages.segment_at(NAME, log_list, -1) is None
    for segment in everything:
        assert await pages.segment_of(NAME, log_list, segment.ledger_id) == segment
        found = await pages.segment_before(NAME, log_list, (segment.begun_ms + 1) / 1000)
        assert found is not None
        assert found[0].begun_ms == segment.begun_ms
    assert await pages.segment_of(NAME, log_list, 98) is None
    assert await pages.segment_before(NAME, log_list, 0.0) is None
    assert [segment async for segment in pages.segments(NAME, log_list)] == everything
    assert [segment async for segment in pages.segments(NAME, log_list.truncated(35))] == everything[3:]


async def test_a_search_reads_one_page_of_each_level_and_keeps_few(world: PagedWorld) -> None:
    log_list, _ = await world.logs.read(NAME)
    pages = world.logs_of(log_pages_cached_max=2).pages
    await pages.segment_at(NAME, log_list, 0)
    assert world.troubled.calls == log_list.pages[0].level == 2
    await pages.segment_at(NAME, log_list, 5)
    assert world.troubled.calls == 2
    await pages.segment_at(NAME, log_list, log_list.pages[-1].first_position)
    await pages.segment_at(NAME, log_list, 5)
    assert world.troubled.calls > 3


@pytest.mark.parametrize("first", [0, 5, 19, 20, 75, 130])
@pytest.mark.parametrize("last", [5, 19, 20, 41, 129])
async def test_ranges_come_in_order_and_without_gaps(world: PagedWorld, first: int, last: int) -> None:
    log_list, _ = await world.logs.read(NAME)
    walk = RangeWalk(world.logs.pages, NAME, log_list, first, last)
    positions: list[int] = []
    while True:
        await walk.load()
        part = walk.take()
        if part is None and walk.ready:
            break
        if part is not None:
            assert world.segments[part.first_position // 10] == part.ledger_id
            assert part.first_entry == part.first_position % 10
            positions += range(part.first_position, part.first_position + part.entries)
    assert positions == list(range(first, last + 1))


async def test_what_lies_behind_a_position_is_counted_by_one_page_of_each_level(world: PagedWorld) -> None:
    log_list, _ = await world.logs.read(NAME)
    for position in range(0, 140, 3):
        pages = world.logs_of().pages
        assert await pages.sealed_from(NAME, log_list, position) == (
            max(0, 130 - position),
            max(0, 130 - position) * 10,
        )
        assert world.troubled.calls <= log_list.pages[0].level


async def test_a_walk_that_fails_goes_on_where_it_was(world: PagedWorld) -> None:
    log_list, _ = await world.logs.read(NAME)
    found: list[int] = []
    pages = world.logs_of([None, AWAY, AWAY, None, AWAY] * 10, log_pages_cached_max=1).pages
    walk = RangeWalk(pages, NAME, log_list, 0, 129)
    while not (walk.ready and found and found[-1] == world.segments[SEALED - 1]):
        try:
            await walk.load()
        except BookKeeperError:
            continue
        part = walk.take()
        if part is not None:
            found.append(part.ledger_id)
    assert found == world.segments[:SEALED]


async def test_a_page_that_is_missing_or_unreadable_is_an_error(world: PagedWorld) -> None:
    log_list, _ = await world.logs.read(NAME)
    ref = log_list.pages[-1]
    path = f"{PAGES}/{ref.number}"
    world.tree.apply(Put(path, b"?", 0), 0)
    with pytest.raises(CorruptDataError, match=f"page {ref.number} of the list of log orders is unreadable"):
        await world.logs_of().pages.segment_at(NAME, log_list, ref.first_position)
    world.tree.apply(Delete(path), 0)
    with pytest.raises(PageMissingError, match=f"page {ref.number} of the list of log orders is missing") as error:
        await world.logs_of().pages.segment_at(NAME, log_list, ref.first_position)
    assert error.value.end_position == ref.end_position


# --- what is taken out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [3, 10, 15, 20, 40, 45, 79, 80, 110, 135])
async def test_a_truncation_deletes_ledgers_and_pages(world: PagedWorld, before: int) -> None:
    log_list = await world.maintenance.truncate(NAME, before, end=140)
    assert log_list.first_position == before
    await world.check_all_is_done(before)
    await world.maintenance.truncate(NAME, before + 1, end=140)
    await world.check_all_is_done(before + 1)
    for _ in range(12):
        await world.grow()
    await world.check_all_is_done(before + 1)


@pytest.mark.parametrize("consumer", [None, 25, 90])
@pytest.mark.parametrize(("age_s", "first"), [(0, 0), (12.0, 30), (17.0, 70), (900.0, 130)])
async def test_retention_drops_whole_pages(consumer: int | None, age_s: float, first: int) -> None:
    world = await PagedWorld().begin(retention_s=10.0)
    if consumer is not None:
        await world.consumer("billing", consumer)
        first = min(first, consumer // 10 * 10)
    world.clock.now += age_s
    assert (await world.maintenance.retain(NAME)).first_position == first
    await world.check_all_is_done(first)


async def test_retention_reads_no_page_that_is_dropped_or_kept_as_a_whole() -> None:
    world = await PagedWorld().begin(retention_s=10.0)
    log_list = world.log_list()
    assert log_list is not None
    boundary = log_list.pages[1]
    world.clock.now += 10.0 + (log_list.pages[0].last_ms - world.now_ms) / 1000
    context = world.opened()
    await context.retain(NAME)
    read = set(world.troubled.read)
    assert f"{PAGES}/{boundary.number}" in read  # the edge
    assert not read & {f"{PAGES}/{ref.number}" for ref in log_list.pages[2:]}
    await world.check_all_is_done(boundary.first_position)


async def test_a_consumer_holds_back_a_truncation_of_pages(world: PagedWorld) -> None:
    await world.consumer("billing", 12)
    with pytest.raises(ConfigError, match=r"from 12 on: billing\. Let them go on"):
        await world.maintenance.truncate(NAME, 20)
    await world.maintenance.truncate(NAME, 20, ignore_consumers=True)
    await world.check_all_is_done(20)


async def test_a_ledger_that_can_not_be_deleted_keeps_no_page(
    world: PagedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    path = world.catalog.path_of(world.segments[1])
    world.tree.apply(Create(f"{path}/somebody", b""), 0)
    with pytest.raises(MetadataConflictError, match="nodes below the ledger's"):
        await world.maintenance.truncate(NAME, 80)
    log_list = world.log_list()
    assert log_list is not None
    assert (log_list.pending_delete, log_list.pages_pending) == ((world.segments[1],), False)
    assert world.ledgers() & set(world.segments[:8]) == {world.segments[1]}
    world.tree.apply(Delete(f"{path}/somebody"), 0)
    with caplog.at_level(logging.INFO, "bkpy.metadata.logs.maintenance"):
        await world.maintenance.finish(NAME)
    assert "1 ledgers of log orders" in caplog.text
    await world.check_all_is_done(80)


async def test_a_page_that_was_lost_ends_no_truncation(world: PagedWorld) -> None:
    """Its ledgers are orphans then."""
    log_list = world.log_list()
    assert log_list is not None
    upper = world.page(log_list.pages[0])
    assert upper is not None
    lost = world.page(upper.rows[0])  # type: ignore[arg-type]
    assert lost is not None
    world.tree.apply(Delete(f"{PAGES}/{lost.number}"), 0)
    orphans = {row.ledger_id for row in lost.rows if isinstance(row, Segment)}
    log_list = await world.maintenance.truncate(NAME, 80)
    assert (log_list.first_position, log_list.pages_pending) == (80, False)
    assert world.ledgers() & set(world.segments[:8]) == orphans
    world.clock.now += GRACE_S + 30
    await sweep(world.opened(), world)
    await world.check_all_is_done(80)


# --- orphans ----------------------------------------------------------------------------------------------------------


async def sweep(context: LogMaintenance, world: LogWorld) -> None:
    """Of all ledgers, as the auditor does it."""
    for ledger_id in sorted(world.ledgers()):
        await context.sweep(await world.metadata(ledger_id), GRACE_S)


async def test_a_ledger_in_a_page_is_no_orphan(world: PagedWorld) -> None:
    orphan = await world.ledger()
    world.clock.now += GRACE_S
    for ledger_id in world.segments:
        assert await world.opened().sweep(await world.metadata(ledger_id), GRACE_S) is Swept.KEPT
    context = world.opened()
    await sweep(context, world)
    assert world.ledgers() == set(world.segments)
    assert orphan not in world.ledgers()
    assert world.troubled.calls < 3 * (len(world.segments) + 1)  # the list isn't read for each


@pytest.mark.parametrize("missing", [True, False])
async def test_an_unreadable_page_keeps_every_ledger_that_it_may_name(world: PagedWorld, missing: bool) -> None:
    log_list = world.log_list()
    assert log_list is not None
    ref = log_list.pages[-1]
    orphan = await world.ledger()
    world.clock.now += GRACE_S
    path = f"{PAGES}/{ref.number}"
    world.tree.apply(Delete(path) if missing else Put(path, b"?", 0), 0)
    for ledger_id in range(ref.lowest_ledger, ref.highest_ledger + 1):
        metadata = await world.metadata(ledger_id)
        with pytest.raises(DiskError, match=f"page {ref.number} of the list"):
            await world.opened().sweep(metadata, GRACE_S)
        with pytest.raises(DiskError, match=f"page {ref.number} of the list"):
            await world.opened().delete_ledger(metadata)
    assert await world.opened().sweep(await world.metadata(orphan), GRACE_S) is Swept.DELETED
    assert world.ledgers() == set(world.segments)


async def test_an_orphan_goes_though_a_page_of_the_list_as_it_was_is_gone() -> None:
    """The list that the search has read last was truncated since, and the page would tell of ledgers around it."""
    world = PagedWorld()
    await world.begin()
    orphans = [await world.ledger()]
    while len(world.segments) <= 2 * SEALED:
        await world.grow()
        orphans += [await world.ledger()] if len(orphans) < 4 else []
    auditor = world.opened()
    assert await auditor.sweep(await world.metadata(world.segments[-1]), GRACE_S) is Swept.KEPT  # it knows the list
    await world.opened().truncate(NAME, 230)
    world.clock.now += GRACE_S
    for orphan in orphans:
        assert await auditor.sweep(await world.metadata(orphan), GRACE_S) is Swept.DELETED


async def test_a_ledger_that_gets_into_a_page_at_that_moment_is_not_deleted(world: PagedWorld) -> None:
    spare = await world.ledger()
    world.clock.now += GRACE_S
    metadata = await world.metadata(spare)

    def adds() -> None:
        log_list = world.log_list()
        assert log_list is not None
        version = world.tree.node(LIST).version
        if any(segment.ledger_id == spare for segment in world.named(log_list.rows)):
            return
        stored, pages = pages_of(world, long(world, world.rolled(log_list, spare), 8))
        world.tree.apply(Put(LIST, stored.encode(), version), 0)
        for page in pages:
            world.tree.apply(Create(f"{PAGES}/{page.number}", page.encode()), 0)

    for call in range(6):
        assert await world.opened([None] * call + [adds]).sweep(metadata, GRACE_S) is Swept.KEPT
        assert spare in world.ledgers()
    with pytest.raises(ConfigError, match="part of log orders"):
        await world.opened().delete_ledger(metadata)


async def test_ledger_delete_looks_into_pages(world: PagedWorld) -> None:
    for ledger_id in world.segments:
        with pytest.raises(ConfigError, match="the ledger is a part of log orders: truncate that"):
            await world.opened().delete_ledger(await world.metadata(ledger_id))
    assert await world.opened().delete_ledger(await world.metadata(await world.ledger())) == Gone()
    log_list, version = await world.logs.read(NAME)
    await world.logs.write_anyway(NAME, log_list.truncated(25), version)
    assert await world.opened().delete_ledger(await world.metadata(world.segments[1])) == Gone()


# --- cut short anywhere -----------------------------------------------------------------------------------------------

ACTS: dict[str, Any] = {
    "truncate": lambda context, _: context.truncate(NAME, 90),
    "truncate within": lambda context, _: context.truncate(NAME, 75),
    "retain": lambda context, _: context.retain(NAME),
    "delete": lambda context, world: context.delete(NAME, world.fence),
}


async def a_world() -> PagedWorld:
    world = await PagedWorld().begin(retention_s=50.0)
    await world.consumer("billing", 90)
    world.clock.now += GRACE_S + 5
    return world


@pytest.mark.thorough
@pytest.mark.parametrize(
    "trouble",
    [
        AWAY,
        pytest.param(CLOSED, marks=pytest.mark.exhaustive),
        pytest.param(REQUEST_LOST, marks=pytest.mark.exhaustive),
        REPLY_LOST,
    ],
)
@pytest.mark.parametrize("act", ["truncate", pytest.param("truncate within", marks=pytest.mark.exhaustive), "delete"])
async def test_what_is_cut_short_anywhere_is_finished_by_the_auditor(act: str, trouble: str) -> None:
    run: Callable[[LogMaintenance, LogWorld], Awaitable[object]] = ACTS[act]
    cut, call = 0, -1
    while cut == call + 1:
        call += 1
        world = await a_world()
        script: list[str | OpeningStep | None] = [None] * call + [trouble]
        if trouble in (AWAY, CLOSED):
            script += [trouble] * CALLS
        context = world.opened(script, metadata_write_attempts_max=1)
        try:
            await run(context, world)
        except BookKeeperError:
            cut += 1
        else:
            cut += call < world.troubled.calls  # a read lost nothing
        world.check()
        await world.maintenance.maintain(NAME, world.fence)
        world.check()
        log_list = world.log_list()
        if log_list is None:
            assert act == "delete"
        else:
            assert log_list.first_position >= 90  # retention goes on
            assert not log_list.pages_pending
    assert call > 15


@pytest.mark.thorough
@pytest.mark.parametrize(
    "other", ["rolls", pytest.param("truncates", marks=pytest.mark.exhaustive), "finishes", "deletes"]
)
@pytest.mark.parametrize(
    "act",
    [
        "truncate",
        *(pytest.param(act, marks=pytest.mark.exhaustive) for act in ("truncate within", "retain", "delete")),
    ],
)
async def test_whatever_another_does_meanwhile_nothing_is_lost(act: str, other: str) -> None:
    """The other one acts between any two calls to the store."""
    call, came = 0, True
    while came:
        world = await a_world()
        came = False
        spare = await world.ledger()

        async def meanwhile(world: PagedWorld = world, spare: int = spare) -> None:
            log_list = world.log_list()
            if log_list is None or log_list.deleted:
                return
            if other == "rolls" and world.catalog.path_of(spare) in world.tree.paths:
                _, version = await world.logs.read(NAME)
                await world.logs.write(NAME, world.rolled(log_list, spare), version)
                world.segments.append(spare)
            elif other == "truncates" and log_list.first_position < 80:
                await world.maintenance.truncate(NAME, 80)
            elif other == "deletes":
                await world.maintenance.delete(NAME, world.fence)
            else:
                await world.maintenance.finish(NAME)

        context = world.opened(log_conflicts_max=6)
        moment = iter([None] * call + [meanwhile])

        async def before_each() -> None:
            nonlocal came
            if (act_of_other := next(moment, None)) is not None:  # noqa: B023
                came = True
                await act_of_other()

        world.troubled.before_each = before_each
        try:
            await ACTS[act](context, world)
        except (NoSuchLogError, ConfigError):
            assert other in ("deletes", "truncates")
        world.check()
        await world.maintenance.maintain(NAME, world.fence)
        world.check()
        call += stride()
    assert call > 15


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "act", ["truncate", *(pytest.param(act, marks=pytest.mark.exhaustive) for act in ("retain", "delete"))]
)
async def test_what_is_cancelled_anywhere_is_finished_by_the_auditor(act: str, late: bool) -> None:
    for at in itertools.count():
        world = await a_world()
        reached = await run_to(ACTS[act](world.opened(log_deletes_at_once=1), world), at, late, None)
        world.check()
        await world.maintenance.maintain(NAME, world.fence)
        world.check()
        log_list = world.log_list()
        assert log_list is None or not log_list.pages_pending
        if not reached:
            break
    assert at > 15


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("bound", [2500, 256 * 1024])
async def test_a_write_of_pages_that_is_cancelled_anywhere_is_done_or_not(bound: int, late: bool) -> None:
    for at in itertools.count(0, stride()):
        world = await PagedWorld().begin()
        log_list, version = await world.logs.read(NAME)
        wanted, other = long(world, log_list, 12), long(world, log_list, 9, 2000)
        reached = await run_to(world.logs_of(log_write_bytes_max=bound).write(NAME, wanted, version), at, late, None)
        outcome = await world.logs.write(NAME, other, version)
        found = world.log_list()
        assert found is not None
        there = wanted if outcome == Changed() else other
        assert world.named(found.rows)[-9:] == list(there.segments[-9:])
        if not reached:
            break
    assert at >= (20 if bound == 2500 else 8)
