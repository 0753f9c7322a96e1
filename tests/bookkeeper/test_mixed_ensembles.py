"""Java's bookies and ours in the same ensembles, under writers of both clients, while all of them are killed."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from tests.bookkeeper.ledgers import closed, entries_of
from tests.bookkeeper.mixed import Ledger, MixedCluster, Writer, compare, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]


ENTRIES = entries_of(7, 5)


def test_what_is_right_is_accepted() -> None:
    compare(Ledger(7, "MAC", acknowledged=3), ENTRIES, closed(ENTRIES))


def test_only_a_recovery_by_java_may_have_counted_too_much() -> None:
    counted = [*closed(ENTRIES)[:2], "1000", closed(ENTRIES)[3]]
    compare(Ledger(7, "MAC", acknowledged=3, recovered_by_java=True), ENTRIES, counted)
    with pytest.raises(AssertionError, match="both clients read"):
        compare(Ledger(7, "MAC", acknowledged=3), ENTRIES, counted)


@pytest.mark.parametrize(
    ("ours", "javas", "what"),
    [
        (ENTRIES[:3], ENTRIES[:3], "ends at 2"),
        ([*ENTRIES[:2], b"other", *ENTRIES[3:]], ENTRIES, r"other bytes at \[2\]"),
        ([*ENTRIES[:3], *reversed(ENTRIES[3:])], ENTRIES, r"other bytes at \[3, 4\]"),
        (ENTRIES, ENTRIES[:4], "both clients read"),
        (ENTRIES, entries_of(8, 5), "both clients read"),
    ],
)
def test_what_is_wrong_is_noticed(ours: Sequence[bytes], javas: Sequence[bytes], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        compare(Ledger(7, "MAC", acknowledged=3), ours, closed(javas))


async def test_half_a_line_of_a_killed_writer_is_not_taken_for_a_whole_one() -> None:
    says = r"print('SAID writing 7\nSAID acknowledged 7 15\nSAID acknowledged 7 2', end='')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", says, stdout=asyncio.subprocess.PIPE)
    writer = Writer("ours", process, "MAC")
    await writer.follow()
    await process.wait()
    assert writer.ledgers == {7: Ledger(7, "MAC", acknowledged=15)}


async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with MixedCluster(tmp_path) as cluster:
        await run(cluster, seed=1, rounds=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
async def test_nothing_acknowledged_is_lost_in_many_rounds(tmp_path: Path, seed: int) -> None:
    async with MixedCluster(tmp_path) as cluster:
        await run(cluster, seed, rounds=6)
