"""The check of a whole cluster covers each bookie, leaves no ledger, and says which bookie failed, on virtual time."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, InProcess, runtime_here

from bkpy.admin.cluster_check import CheckRound, check_cluster, rounds
from bkpy.client.client import open_client
from bkpy.config.client import client_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.client.bookies.placement import Placement
    from bkpy.client.client import Client


@pytest.mark.parametrize("count", range(12))
def test_rounds_have_every_bookie_and_overlap(count: int) -> None:
    names = [f"b{i:02}" for i in range(count)]
    found = rounds(names)
    assert {name for one in found for name in one} == set(names)
    assert all(len(set(one)) == len(one) == min(3, count) for one in found)
    for before, after in itertools.pairwise(found):
        assert set(before) & set(after)


@contextlib.asynccontextmanager
async def client_of(cluster: InProcess, placement: Placement) -> AsyncIterator[Client]:
    settings = client_settings(add_quorum_timeout_s=1.0, no_bookies_timeout_s=0.5)
    client = await open_client(cluster.tree.session(), ROOT, runtime_here(), settings, placement=placement)
    try:
        yield client
    finally:
        await client.close()


async def checked(cluster: InProcess) -> list[CheckRound]:
    writable = (await cluster.client()).bookies

    def connect(placement: Placement) -> contextlib.AbstractAsyncContextManager[Client]:
        return client_of(cluster, placement)

    return [one async for one in check_cluster(connect, runtime_here().clock, writable)]


async def ledgers_of(cluster: InProcess) -> list[int]:
    return [ledger_id async for ledger_id in (await cluster.client()).list_ledgers()]


async def test_each_bookie_is_written_read_fenced_recovered_and_cleared(five: InProcess) -> None:
    found = await checked(five)
    assert [(one.bookies, one.error) for one in found] == [
        (("a", "b", "c"), ""),
        (("c", "d", "e"), ""),
        (("e", "a", "b"), ""),
    ]
    for one in found:
        times = (one.created_s, one.appended_s, one.read_s, one.recovered_s, one.deleted_s)
        assert all(time is not None for time in times)
        assert one.ledger_id is not None
    assert await ledgers_of(five) == []


@pytest.mark.parametrize("fault", ["kill", "hang", "refuse"])
async def test_a_bookie_that_fails_is_named_by_its_rounds_and_no_ledger_is_left(five: InProcess, fault: str) -> None:
    getattr(five, fault)("d")
    found = await checked(five)
    assert [bool(one.error) for one in found] == [False, True, False]
    assert "d" in found[1].error
    assert await ledgers_of(five) == []
