"""Batches have the given size, keep the order, and are never empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bkpy.batching import batched, batched_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CASES = [
    (0, 3, []),
    (2, 3, [[0, 1]]),
    (3, 3, [[0, 1, 2]]),
    (7, 3, [[0, 1, 2], [3, 4, 5], [6]]),
    (3, 1, [[0], [1], [2]]),
]


@pytest.mark.parametrize(("count", "size", "expected"), CASES)
async def test_all_items_are_in_batches_in_order(count: int, size: int, expected: list[list[int]]) -> None:
    async def items() -> AsyncIterator[int]:
        for item in range(count):
            yield item

    assert list(batched(range(count), size)) == expected
    assert list(batched(iter(range(count)), size)) == expected
    assert [batch async for batch in batched_async(items(), size)] == expected


async def test_a_batch_is_there_before_the_items_behind_it() -> None:
    taken: list[int] = []

    async def items() -> AsyncIterator[int]:
        for item in range(5):
            taken.append(item)
            yield item

    async for batch in batched_async(items(), 2):
        assert taken[-1] == batch[-1]
