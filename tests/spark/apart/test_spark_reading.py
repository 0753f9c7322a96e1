"""What a task makes of the blocks it reads: every entry once and in order, or an error, without any cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructField, StructType
from tests.in_process import DEADLINE_S
from tests.spark.apart.test_spark_batches import block_of

from bkpy.errors import BookKeeperError, CorruptDataError, DigestMismatchError, NoSuchEntryError, NoSuchLedgerError
from bkpy.spark import source
from bkpy.spark.options import SourceOptions
from bkpy.spark.planning import EntryRange
from bkpy.spark.schema import TYPES
from bkpy.spark.source import LazyClient, LedgerSourceReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from bkpy.client.read.block import Block


def reader(ledgers: tuple[int, ...] = (3,), *, fail_on_data_loss: bool = True) -> LedgerSourceReader:
    """Of the ids of entries."""
    options = SourceOptions("zk://127.0.0.1:2181/ledgers", ledgers, fail_on_data_loss=fail_on_data_loss)
    return LedgerSourceReader(options, StructType([StructField("entry_id", TYPES["entry_id"])]))


def entries_read(
    monkeypatch: pytest.MonkeyPatch,
    blocks: list[Block],
    error: BookKeeperError | None = None,
    *,
    fail_on_data_loss: bool = True,
    exists: bool = False,
) -> list[int]:
    """The ids of entries that a task for 0..9 yields, whose blocks are these and then this error."""

    async def some(connection: LazyClient, part: EntryRange) -> AsyncGenerator[tuple[Block, str | None], None]:
        for block in blocks:
            yield block, None
        if error is not None:
            raise error

    async def has_ledger(connection: LazyClient, ledger_id: int) -> bool:
        return exists

    monkeypatch.setattr(source, "blocks_of", some)
    monkeypatch.setattr(LazyClient, "has_ledger", has_ledger)
    made = reader((3,), fail_on_data_loss=fail_on_data_loss).read(InputPartition((EntryRange(3, 0, 9, 100),)))
    return [entry_id for batch in made for entry_id in batch.column(0).to_pylist()]


def blocks(*sizes: int) -> list[Block]:
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [block_of([b"x"] * size, 3, first) for size, first in zip(sizes, firsts, strict=True)]


def test_all_entries_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entries_read(monkeypatch, blocks(4, 5, 1)) == list(range(10))


@pytest.mark.parametrize("partition", [None, InputPartition(None)])
def test_an_empty_plan_is_read_as_each_version_of_spark_hands_it_over(partition: InputPartition | None) -> None:
    assert list(reader(()).read(partition)) == []


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("before", [(), (4,), (4, 6)])
def test_damaged_entries_always_are_an_error(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, ...], fail_on_data_loss: bool
) -> None:
    damage = DigestMismatchError("no replica is intact", ledger_id=3, entry_id=sum(before))
    with pytest.raises(DigestMismatchError, match="no replica is intact"):
        entries_read(monkeypatch, blocks(*before), damage, fail_on_data_loss=fail_on_data_loss)


@pytest.mark.parametrize("lost", [NoSuchEntryError("gone"), NoSuchLedgerError("gone")])
def test_what_was_deleted_is_an_error_unless_that_is_accepted(
    monkeypatch: pytest.MonkeyPatch, lost: BookKeeperError
) -> None:
    with pytest.raises(type(lost), match="gone"):
        entries_read(monkeypatch, blocks(4), lost)
    assert entries_read(monkeypatch, blocks(4), lost, fail_on_data_loss=False) == [0, 1, 2, 3]


@pytest.mark.parametrize("lost", [NoSuchEntryError("gone"), NoSuchLedgerError("gone")])
def test_what_is_missing_of_a_ledger_that_exists_always_is_an_error(
    monkeypatch: pytest.MonkeyPatch, lost: BookKeeperError
) -> None:
    with pytest.raises(type(lost), match="gone"):
        entries_read(monkeypatch, blocks(4), lost, fail_on_data_loss=False, exists=True)


@pytest.mark.parametrize("found", [blocks(4), blocks(4, 5, 1)[::2], blocks(4, 6)[1:], [*blocks(4), *blocks(4)], []])
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_entries_that_are_missing_or_come_twice_are_an_error(
    monkeypatch: pytest.MonkeyPatch, found: list[Block], fail_on_data_loss: bool
) -> None:
    with pytest.raises(CorruptDataError, match="ledger 3, entry"):
        entries_read(monkeypatch, found, fail_on_data_loss=fail_on_data_loss)


def test_the_client_works_on_while_a_query_uses_the_rows_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise answers to what was asked for ahead would be late, and bookies would end connections that stall."""
    arrived = threading.Event()

    async def some(connection: LazyClient, part: EntryRange) -> AsyncGenerator[tuple[Block, str | None], None]:
        async def arrive() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            arrived.set()

        ahead = asyncio.create_task(arrive())
        for block in blocks(4, 6):
            yield block, None
            await ahead

    monkeypatch.setattr(source, "blocks_of", some)
    rows = reader().read(InputPartition((EntryRange(3, 0, 9, 100),)))
    assert len(next(rows)) == 4
    assert arrived.wait(DEADLINE_S)
    assert len(next(rows)) == 6
    assert list(rows) == []
    assert "read for Spark" not in {thread.name for thread in threading.enumerate()}


def test_a_query_that_needs_no_more_rows_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    async def some(connection: LazyClient, part: EntryRange) -> AsyncGenerator[tuple[Block, str | None], None]:
        try:
            for block in blocks(4, 6):
                yield block, None
        finally:
            closed.set()

    monkeypatch.setattr(source, "blocks_of", some)
    rows = reader().read(InputPartition((EntryRange(3, 0, 9, 100),)))
    next(rows)
    cast("Generator[Any]", rows).close()
    assert closed.is_set()
    assert "read for Spark" not in {thread.name for thread in threading.enumerate()}


def test_so_they_are_where_python_runs_without_assertions() -> None:
    script = (
        "from bkpy.spark.planning import EntryRange; from bkpy.spark.source import _check; "
        "_check(EntryRange(3, 0, 9, 100), 4, 10)"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True)
    assert done.returncode == 1
    assert b"CorruptDataError: the read went on, or ended, at entry 10 [ledger 3, entry 4]" in done.stderr
