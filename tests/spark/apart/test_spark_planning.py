"""Plans: ranges that cover exactly what was asked for, each in one fragment, and what a query's conditions leave."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not

from bkpy.errors import ConfigError, NoSuchEntryError, UnauthorizedError
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.wire.records import HEADER_BYTES, ledger_key
from bkpy.spark.log_view import grouped
from bkpy.spark.options import SourceOptions
from bkpy.spark.planning import EntryRange, Selection, plan, select
from bkpy.spark.pushdown import Conditions

if TYPE_CHECKING:
    from pathlib import Path


def closed(
    ledger_id: int,
    entries: int,
    *,
    entry_bytes: int = 100,
    firsts: tuple[int, ...] = (0,),
    ensemble_size: int = 1,
    write_quorum: int = 1,
    password: bytes = b"",
) -> LedgerMetadata:
    """A closed ledger; a fragment begins at each of `firsts`."""
    return LedgerMetadata(
        ledger_id=ledger_id,
        state=LedgerState.CLOSED,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=ledger_key(password),
        fragments=tuple(
            Fragment(first, tuple(f"bookie-{i}-{k}" for k in range(ensemble_size))) for i, first in enumerate(firsts)
        ),
        last_entry=entries - 1,
        length=entries * entry_bytes,
    )


def options(**given: Any) -> SourceOptions:
    return SourceOptions("zk://127.0.0.1:2181/ledgers", None, **given)


def spans(parts: list[EntryRange]) -> list[tuple[int, int, int]]:
    return [(part.ledger_id, part.first, part.last) for part in parts]


def test_one_range_for_each_fragment() -> None:
    ledgers = [closed(1, 10), closed(2, 0), closed(5, 10, firsts=(0, 4, 9))]
    assert spans(plan(ledgers, options())) == [(1, 0, 9), (5, 0, 3), (5, 4, 8), (5, 9, 9)]
    assert plan([closed(2, 0)], options(partitions_min=8)) == []


@pytest.mark.parametrize(("ensemble_size", "write_quorum"), [(1, 1), (3, 3), (3, 2), (5, 1)])
def test_a_striped_ledger_is_planned_to_its_last_entry(ensemble_size: int, write_quorum: int) -> None:
    ledger = closed(5, 10, firsts=(0, 4, 9), ensemble_size=ensemble_size, write_quorum=write_quorum)
    assert spans(plan([ledger], options())) == [(5, 0, 3), (5, 4, 8), (5, 9, 9)]
    assert spans(plan([ledger], options(partitions_min=5))) == [(5, 0, 1), (5, 2, 3), (5, 4, 5), (5, 6, 8), (5, 9, 9)]
    assert spans(plan([ledger], options(ends={5: 7}))) == [(5, 0, 3), (5, 4, 6)]


def test_every_ledger_with_another_password_is_named_or_left_out(tmp_path: Path) -> None:
    ledgers = [closed(i, 10, password=b"sesame" if i in (2, 3, 4, 8) else b"") for i in range(1, 10)]
    with pytest.raises(UnauthorizedError) as refused:
        select(ledgers, options())
    assert str(refused.value) == ("4 of the 9 closed ledgers have a password, and none was given [ledgers 2-4,8]")
    (tmp_path / "password").write_text("sesame")
    given = options(password_file=str(tmp_path / "password"))
    with pytest.raises(UnauthorizedError, match=r"5 of .* another password than the one given \[ledgers 1,5-7,9\]"):
        select(ledgers, given)
    with pytest.raises(UnauthorizedError, match=r"password, and none was given \[ledger 8\]"):
        select(ledgers[4:], options())
    left = select(ledgers, options(skip_unauthorized=True))
    assert [ledger.ledger_id for ledger in left.ledgers] == [1, 5, 6, 7, 9]
    assert left.unauthorized == [2, 3, 4, 8]
    assert select(ledgers[4:7], options()) == Selection(ledgers[4:7], [])


def test_ranges_are_bounded_in_bytes() -> None:
    record = 100 + HEADER_BYTES
    parts = plan([closed(1, 1000)], options(partition_bytes_max=10 * record))
    assert len(parts) == 100
    assert {part.entries for part in parts} == {10}
    assert {part.bytes for part in parts} == {10 * record}
    # An entry is never cut.
    assert len(plan([closed(1, 7)], options(partition_bytes_max=1))) == 7


def test_a_plan_is_bounded_whatever_the_size_of_a_range_is() -> None:
    """As for bytes that were meant to be MiB: the driver's memory would be full of ranges of one entry."""
    ledgers = [closed(1, 600_000), closed(2, 600_000)]
    with pytest.raises(ConfigError, match=r"^option maxBytesPerPartition = 64 makes 1,200,000 tasks, .* 1,000,000"):
        plan(ledgers, options(partition_bytes_max=64))
    assert len(plan([closed(1, 999_999_999)], options(partition_bytes_max=1 << 30))) < 1000


def test_the_largest_ranges_are_cut_for_more_partitions() -> None:
    ledgers = [closed(1, 1000), closed(2, 10)]
    assert spans(plan(ledgers, options(partitions_min=3))) == [(1, 0, 499), (1, 500, 999), (2, 0, 9)]
    assert len(plan(ledgers, options(partitions_min=5000))) == 1010


def test_offsets() -> None:
    ledgers = [closed(1, 10, firsts=(0, 5)), closed(2, 10)]
    parts = plan(ledgers, options(starts={1: 3, 2: 10}, ends={1: 5}))
    assert spans(parts) == [(1, 3, 4)]
    with pytest.raises(NoSuchEntryError, match=r"offset 11 .* 10 entries .*ledger 2"):
        plan(ledgers, options(ends={2: 11}))
    with pytest.raises(ConfigError, match=r"startingOffsets names a ledger that isn't read .*ledger 3"):
        plan(ledgers, options(starts={3: 0}))
    assert spans(plan(ledgers[1:], options(starts={3: 0}, fail_on_data_loss=False))) == [(2, 0, 9)]


@given(
    entries=st.integers(0, 300),
    cuts=st.sets(st.integers(1, 299), max_size=4),
    start=st.integers(0, 300),
    length=st.integers(0, 300),
    bytes_max=st.integers(1, 20_000),
    partitions_min=st.integers(1, 50),
    bookies=st.sampled_from([(1, 1), (3, 3), (3, 2), (5, 2)]),
)
def test_plans_cover_what_was_asked_for(
    entries: int,
    cuts: set[int],
    start: int,
    length: int,
    bytes_max: int,
    partitions_min: int,
    bookies: tuple[int, int],
) -> None:
    start = min(start, entries)
    end = min(start + length, entries)
    firsts = (0, *sorted(cut for cut in cuts if cut < entries))
    wanted = options(starts={9: start}, ends={9: end}, partition_bytes_max=bytes_max, partitions_min=partitions_min)
    ledger = closed(9, entries, firsts=firsts, ensemble_size=bookies[0], write_quorum=bookies[1])
    parts = plan([ledger], wanted)
    assert [i for part in parts for i in range(part.first, part.last + 1)] == list(range(start, end))
    assert len(parts) >= min(partitions_min, end - start)
    fragments = list(pairwise((*firsts, entries)))
    for part in parts:
        assert any(low <= part.first and part.last < high for low, high in fragments)
        assert part.entries == 1 or part.bytes <= bytes_max + 100 + HEADER_BYTES


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 100), st.integers(1, 30))
def test_short_neighbours_share_a_task(sizes: list[int], bytes_max: int, count_min: int) -> None:
    parts = [EntryRange(i, 0, 0, size) for i, size in enumerate(sizes)]
    tasks = grouped(parts, bytes_max, count_min)
    assert [part for task in tasks for part in task] == parts
    assert len(tasks) >= min(count_min, len(parts))
    assert all(len(task) == 1 or sum(part.bytes for part in task) <= bytes_max for task in tasks)
    if len(tasks) > count_min:  # no more of them than the size asks for
        firsts = [task[0].bytes for task in tasks[1:]]
        wholes = [sum(part.bytes for part in task) for task in tasks]
        assert all(whole + first > bytes_max for whole, first in zip(wholes, firsts, strict=False))


LEDGER, ENTRY = ("ledger_id",), ("entry_id",)


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ([], [(1, 0, 9), (2, 0, 9), (3, 0, 9)]),
        ([EqualTo(LEDGER, 2)], [(2, 0, 9)]),
        ([In(LEDGER, [1, 3, 8]), GreaterThan(LEDGER, 1)], [(3, 0, 9)]),
        ([In(LEDGER, (1, 2)), In(LEDGER, (2, 3))], [(2, 0, 9)]),
        ([LessThan(LEDGER, 2), GreaterThanOrEqual(ENTRY, 4), LessThan(ENTRY, 6)], [(1, 4, 5)]),
        ([LessThanOrEqual(ENTRY, 0), LessThanOrEqual(LEDGER, 1)], [(1, 0, 0)]),
        ([GreaterThan(ENTRY, 9)], []),
        ([LessThan(ENTRY, 3), GreaterThan(ENTRY, 5)], []),
        ([EqualTo(LEDGER, -1)], []),
    ],
)
def test_conditions_narrow_a_plan(conditions: list[Filter], left: list[tuple[int, int, int]]) -> None:
    taken = Conditions()
    for condition in conditions:
        both = taken.and_also(condition)
        assert both is not None
        taken = both
    assert spans(plan([closed(i, 10) for i in (1, 2, 3)], options(), taken.narrow)) == left


@pytest.mark.parametrize(
    "condition",
    [
        Not(EqualTo(LEDGER, 1)),
        EqualTo(("length",), 1),
        EqualTo(LEDGER, None),
        EqualTo(("payload", "entry_id"), 1),
        In(LEDGER, (1, None)),
        In(ENTRY, (1, 2)),
    ],
)
def test_other_conditions_are_left_to_spark(condition: Filter) -> None:
    assert Conditions().and_also(condition) is None
