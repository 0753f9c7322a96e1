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
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bkpy.client.read.reader import LedgerReader
    from bkpy.log.reader import LogReader


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


CALLS: dict[str, Callable[[Client, LedgerReader, LogReader], Awaitable[object]]] = {
    "open_ledger": lambda client, reader, log: client.open_ledger(reader.ledger_id),
    "recover_ledger": lambda client, reader, log: client.recover_ledger(reader.ledger_id),
    "read_last_add_confirmed": lambda client, reader, log: reader.read_last_add_confirmed(),
    "read": lambda client, reader, log: anext(reader.read()),
    "read_log": lambda client, reader, log: client.read_log(log.name),
    "open_log": lambda client, reader, log: client.open_log(log.name),
    "refresh": lambda client, reader, log: log.refresh(),
    "lag_at": lambda client, reader, log: log.lag_at(0),
    "close_ledger": lambda client, reader, log: bkpy.AdminClient(client).close_ledger(reader.ledger_id),
}


@pytest.mark.parametrize("away", ["", "a"])
async def test_a_call_under_way_says_that_the_client_was_closed_and_not_that_bookies_are_away(
    cluster: InProcess, away: str
) -> None:
    """Nobody need try that again; one bookie had failed before, or none."""
    other = await cluster.client()
    writer = await other.create_ledger(ensemble_size=3)
    for _ in range(2):  # the second one tells that the first is confirmed
        await writer.append(b"x")
    log = await other.open_log("orders", create=True)
    await log.append(b"x")
    for name, call in CALLS.items():
        client = await new_client(cluster)
        reader = await client.open_ledger(writer.ledger_id)
        log_reader = await client.read_log("orders")
        for bookie in "abc":
            if bookie in away:
                cluster.kill(bookie)
            else:
                cluster.hang(bookie)
        under_way = asyncio.ensure_future(call(client, reader, log_reader))
        await asyncio.sleep(0.5)
        assert not under_way.done(), name
        await client.close()
        with pytest.raises(bkpy.ClientClosedError) as raised:
            await under_way
        assert not raised.value.retriable, name
        for bookie in "abc":
            await cluster.restart(bookie)


async def test_an_acknowledgement_of_durability_under_way_says_that_the_client_was_closed(cluster: InProcess) -> None:
    client = await new_client(cluster)
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"x")
    for name in "abc":
        cluster.hang(name)
    forcing = asyncio.ensure_future(writer.force())
    await asyncio.sleep(0.5)
    with pytest.warns(ResourceWarning):
        await client.close()
    with pytest.raises(bkpy.ClientClosedError):
        await forcing
