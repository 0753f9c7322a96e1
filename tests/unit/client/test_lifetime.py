"""Clients and writers that are forgotten are told of, those that are closed aren't; none goes to another process."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import warnings
import weakref
from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, InProcess, runtime_here

import bkpy
from bkpy.client.client import Client, open_client
from bkpy.config.client import client_settings

if TYPE_CHECKING:
    from pathlib import Path


async def new_client(cluster: InProcess) -> Client:
    """One that nobody else closes."""
    return await open_client(cluster.tree.session(), ROOT, runtime_here(), client_settings(), owns_store=True)


@pytest.mark.thorough
def test_a_client_and_a_writer_that_are_forgotten_are_told_of(tmp_path: Path) -> None:
    async def forget() -> None:
        cluster = InProcess(tmp_path)
        await cluster.start("abc")
        client = await new_client(cluster)
        writer = await client.create_ledger()
        await writer.append(b"x")
        await cluster.stop()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(forget())
        gc.collect()
    told = [str(warning.message) for warning in caught]
    assert any("LedgerWriter ledger=0" in text and "not closed" in text for text in told)
    assert any("bkpy.client.client.Client" in text and "not closed" in text for text in told)


async def test_a_client_that_is_closed_tells_of_writers_that_were_not(cluster: InProcess) -> None:
    client = await new_client(cluster)
    writers = [await client.create_ledger() for _ in range(13)]
    closed, abandoned, failed, *left = writers
    await closed.close()
    abandoned.abandon()
    failed.pending.replication.failed(bkpy.LedgerFencedError("fenced"))
    with pytest.warns(ResourceWarning) as caught:
        await client.close()
    (warning,) = [w for w in caught if "writers of" in str(w.message)]
    assert str(warning.message) == "writers of 10 ledgers were not closed: " + ", ".join(str(w.ledger_id) for w in left)
    assert warning.filename == __file__


async def test_what_is_closed_properly_is_not_told_of(cluster: InProcess) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        async with await new_client(cluster) as client:
            async with await client.create_ledger() as writer:
                await writer.append(b"x")
            other = await client.create_ledger()
            await other.append(b"x")
            other.abandon()
        await client.close()
        del client, writer, other
        gc.collect()


async def test_an_error_is_not_hidden_behind_what_it_left_open(cluster: InProcess) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        client = await new_client(cluster)

        async def fail() -> None:
            async with client:
                await client.create_ledger()
                raise RuntimeError("the reason")

        with pytest.raises(RuntimeError, match="the reason"):
            await fail()


async def test_nothing_is_told_of_what_could_not_be_made() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError):
            Client()  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            bkpy.LedgerWriter()  # type: ignore[call-arg]
        gc.collect()


async def test_none_of_them_can_be_pickled(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    for one, name in ((client, "Client"), (writer, "LedgerWriter"), (reader, "LedgerReader")):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"a {name} can't be pickled, .*: send the cluster's URI"):
                attempt(one)
    assert pickle.loads(pickle.dumps(writer.metadata)) == writer.metadata
    await writer.close()


@pytest.mark.parametrize("end", ["close", "abandon", "fail"])
async def test_a_writer_that_has_ended_needs_no_cycle_collector(cluster: InProcess, end: str) -> None:
    client = await cluster.client()

    async def use() -> weakref.ref[object]:
        writer = await client.create_ledger()
        await writer.append(b"x")
        if end == "fail":
            writer.pending.replication.failed(bkpy.LedgerFencedError("fenced"))
        if end == "close":
            await writer.close()
        else:
            writer.abandon()
        return weakref.ref(writer)

    gc.disable()
    try:
        assert (await use())() is None
    finally:
        gc.enable()
