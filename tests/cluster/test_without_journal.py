"""Bookies without a journal, or without its syncs: what they say at a start, and what is true of them after kill -9."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hooks import pool_of

import bkpy
from bkpy.local import LocalCluster
from bkpy.local.process import poll
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import walk

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalBookie

PATIENCE_S = 60.0
SIZES = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
STORED = [b"stored %d" % i for i in range(100)]
LAST = [b"last %d" % i for i in range(100)]
NEVER_SEEN = 1 << 40


def cluster_with(directory: Path, setting: str) -> LocalCluster:
    """One bookie that checkpoints only when it is stopped."""
    # What it lost can't come back from anywhere, and isn't given up meanwhile.
    config = {setting: False, "checkpoint_interval_s": 3600, "open_ledger_grace_s": 3600}
    return LocalCluster(directory, bookies=1, config=config)


async def written(client: bkpy.Client, payloads: list[bytes], *, close: bool) -> int:
    writer = await client.create_ledger(**SIZES)
    await writer.append_batch(payloads)
    if close:
        await writer.close()
    return writer.ledger_id


async def asked(client: bkpy.Client, bookie: LocalBookie, ledger_id: int) -> tuple[int, set[int], set[int]]:
    """What the bookie answers about a ledger's entries 0 to 99: (status, ids that it has, ids that are unknown)."""
    found: set[int] = set()
    unknown: set[int] = set()
    first = 0
    while first < 100:  # a reply may end where one piece of what is stored does
        head = m.pack([0, ledger_id, first, 99, 1 << 20])
        reply = await pool_of(client).channel(bookie.id).call(Op.READ, head, timeout_s=PATIENCE_S, again=True)
        status = m.reply_status(reply.head)
        if status != Status.OK:
            return status, set(), set()
        answer = m.decode_read_reply(reply.head)
        assert answer.examined_to >= first
        unknown |= {i for low, high in answer.unknown for i in range(low, high + 1)}
        found |= {header.entry_id for header in walk(reply.body)}
        first = answer.examined_to + 1
    return Status.OK, found, unknown - found  # a range may cover what is known all the same


@pytest.mark.exhaustive
@pytest.mark.scenario(55)
async def test_without_a_journal_kill_9_puts_everything_in_limbo(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, "journal_write_data") as cluster:
        (bookie,) = cluster.bookies
        assert bookie.log_path.read_text().count("journal_write_data = false: entries are acknowledged") == 1
        async with bkpy.connect(cluster.connect_string, no_bookies_timeout_s=0.0) as client:
            stored = await written(client, STORED, close=True)
            await bookie.stop()
            await bookie.start()
            assert "may be lost" not in bookie.log_path.read_text()
            assert await poll(lambda: _in(client.bookies, bookie), PATIENCE_S)
            lost = await written(client, LAST, close=False)
            await bookie.kill()
        await bookie.start()
        log = bookie.log_path.read_text()
        assert log.count("journal_write_data = false: entries are acknowledged") == 3
        assert log.count("in a run without a journal (journal_write_data = false)") == 1
        assert log.count("all its ledgers are fenced and in limbo") == 1
        everything = set(range(100))
        async with bkpy.connect(cluster.connect_string, no_bookies_timeout_s=0.0) as client:
            assert await poll(lambda: _in(client.read_only_bookies, bookie), PATIENCE_S)
            assert await asked(client, bookie, stored) == (Status.OK, everything, set())
            for ledger_id in (lost, NEVER_SEEN):
                assert await asked(client, bookie, ledger_id) == (Status.OK, set(), everything)
            reader = await client.open_ledger(stored)
            assert [entry.data async for entry in reader.read()] == STORED
            with pytest.raises(bkpy.BookKeeperError) as caught:
                await client.recover_ledger(lost)
            assert not isinstance(caught.value, (bkpy.NoSuchEntryError, bkpy.NoSuchLedgerError))
            assert (await client.ledger_metadata(lost)).state != "CLOSED", "it would have been cut short"


@pytest.mark.exhaustive
@pytest.mark.scenario(55)
async def test_without_syncs_kill_9_loses_nothing(tmp_path: Path) -> None:
    """What was written outlives the process, in the page cache."""
    async with cluster_with(tmp_path, "journal_sync_data") as cluster:
        (bookie,) = cluster.bookies
        async with bkpy.connect(cluster.connect_string) as client:
            ledger_id = await written(client, LAST, close=False)
            await bookie.kill()
        await bookie.start()
        log = bookie.log_path.read_text()
        assert log.count("journal_sync_data = false: entries are acknowledged before a disk has them") == 2
        assert "limbo" not in log
        async with bkpy.connect(cluster.connect_string) as client:
            reader = await client.recover_ledger(ledger_id)
            assert [entry.data async for entry in reader.read()] == LAST
            assert await poll(lambda: _in(client.bookies, bookie), PATIENCE_S)
            assert (await asked(client, bookie, NEVER_SEEN))[2] == set()


async def _in(bookies: object, bookie: LocalBookie) -> bool:
    return bookie.id in bookies  # type: ignore[operator]
