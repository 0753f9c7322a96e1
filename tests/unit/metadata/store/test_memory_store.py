"""The metadata store in memory, where it could do what no store's server does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.in_process import runtime_here

from bkpy.metadata.store.memory import MemorySession, MemoryStore
from bkpy.metadata.store.store import Check, Put, StoreRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class LateSession(MemorySession):
    """Its calls take effect at once, and return when `answered` is set."""

    def __init__(self, tree: MemoryStore) -> None:
        super().__init__(tree, 10.0, 10.0)
        self.answered = asyncio.Event()

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        result = await super()._call(function, write=write)
        await self.answered.wait()
        return result


async def test_a_transaction_that_fails_is_seen_by_nobody_whose_answer_is_on_its_way() -> None:
    tree = MemoryStore(runtime_here())
    one, late = tree.session(), LateSession(tree)
    await one.create("/node", b"before")
    reading = asyncio.create_task(late.get("/node"))
    await asyncio.sleep(0.01)
    with pytest.raises(StoreRefusal):
        await one.multi([Put("/node", b"never", 0), Check("/missing", 0)])
    late.answered.set()
    assert await reading == (b"before", 0)
