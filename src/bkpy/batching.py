"""Cuts a sequence, or a listing that is still going on, into batches of a bounded size.

Invariant: every item is in exactly one batch, in order; no batch is empty, and only the last one has fewer than `size`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`. Python 3.12 has this as `itertools.batched`."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


async def batched_async(items: AsyncIterable[T], size: int) -> AsyncIterator[list[T]]:
    """The same of items that come one after the other."""
    batch: list[T] = []
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
