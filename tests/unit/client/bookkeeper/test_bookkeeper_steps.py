"""Calls on a BookKeeper cluster that are cancelled at each point at which they wait."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from tests.in_process import contents
from tests.stepping import naming, run_to

if TYPE_CHECKING:
    from tests.unit.client.bookkeeper.their_bookies import TheirCluster


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, True])
async def test_a_recovery_that_ends_at_any_step_is_finished_by_the_next_one(theirs: TheirCluster, late: bool) -> None:
    for at in itertools.count():
        client = await theirs.client()
        payloads = theirs.write(at, 30, closed=False, at_once=True)
        with naming("recovery", at, late):
            reached = await run_to(client.recover_ledger(at), at, late, None)
            reader = await (await theirs.client()).recover_ledger(at)
            assert [entry.data async for entry in reader.read()] == payloads
        if not reached:
            break
    assert at > 5


@pytest.mark.parametrize("late", [False, True])
async def test_a_creation_that_ends_at_any_step_leaves_nothing(theirs: TheirCluster, late: bool) -> None:
    client = await theirs.client()
    for at in itertools.count():
        with naming("creation", at, late):
            reached = await run_to(client.create_ledger(), at, late, None)
            if not reached:
                break
            async with asyncio.timeout(30):
                while [ledger_id async for ledger_id in client.list_ledgers()]:
                    await asyncio.sleep(0.01)
    assert at > 1


@pytest.mark.parametrize("late", [False, True])
async def test_a_read_that_ends_at_any_step_disturbs_no_other(theirs: TheirCluster, late: bool) -> None:
    payloads = theirs.write(7, 60)
    client = await theirs.client(read_bytes=300)
    for at in itertools.count():
        with naming("read", at, late):
            reached = await run_to(contents(client, 7), at, late, None)
            assert await contents(client, 7) == payloads
        if not reached:
            break
    assert at > 3
