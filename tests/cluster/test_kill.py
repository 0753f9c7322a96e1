"""kill -9 of any or all processes while writing: every acknowledged entry is there afterwards."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.command import PRELOADED
from tests.conftest import run_elsewhere
from tests.hooks import children_started_by, pool_of
from tests.preloaded import Fork
from tests.waiting import eventually

import bkpy
from bkpy.local import LocalCluster

DEADLINE_S = 60
PAUSE_S = 0.005  # leaves the processor to what starts meanwhile


async def write_until_told(writer: bkpy.LedgerWriter, acknowledged: dict[int, bytes], stop: asyncio.Event) -> None:
    """Append until told to stop, or until the writer fails; remember what was acknowledged."""

    async def one(i: int) -> None:
        payload = b"%d:%d" % (writer.ledger_id, i) * 100
        acknowledged[await writer.append(payload)] = payload

    i = 0
    while not stop.is_set():
        results = await asyncio.gather(*(one(i + k) for k in range(50)), return_exceptions=True)
        i += 50
        await asyncio.sleep(PAUSE_S)
        for result in results:
            if isinstance(result, bkpy.BookKeeperError):
                assert isinstance(result, bkpy.BookieUnavailableError), result
                return
            if isinstance(result, BaseException):
                raise result


async def check(client: bkpy.Client, ledger_id: int, acknowledged: dict[int, bytes]) -> None:
    """All that was acknowledged is readable with equal bytes, once the writer has closed its ledger."""
    reader = await client.open_ledger(ledger_id)
    found = {entry.entry_id: entry.data async for entry in reader.read()}
    assert {i: found.get(i) for i in acknowledged} == acknowledged


async def until(count: int, acknowledged: dict[int, bytes]) -> None:
    await eventually(lambda: len(acknowledged) >= count, f"{count} entries are acknowledged")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Small files: the journal rolls and checkpoints happen within a test.
    config = {"journal_max_size_mb": 1, "memtable_bytes_max": 1 << 20, "checkpoint_interval_s": 0.5}
    local = LocalCluster(tmp_path_factory.mktemp("cluster"), bookies=3, config=config)
    try:
        run_elsewhere(local.start())
        yield local
    finally:
        run_elsewhere(local.stop())


@pytest.fixture
async def cluster(shared: LocalCluster) -> LocalCluster:
    """The cluster, with everything running that was killed before."""
    for bookie in shared.bookies:
        bookie.resume()
    await shared.start()
    return shared


async def test_one_bookie_dies_and_comes_back(cluster: LocalCluster) -> None:
    """Appends go on, and the entries that only two bookies have are read from those."""
    async with bkpy.connect(cluster.connect_string) as client:
        writer = await client.create_ledger()
        acknowledged: dict[int, bytes] = {}
        stop = asyncio.Event()
        writing = asyncio.create_task(write_until_told(writer, acknowledged, stop))
        await until(500, acknowledged)
        await cluster.bookies[1].kill()
        await until(len(acknowledged) + 500, acknowledged)
        await cluster.bookies[1].start()
        await until(len(acknowledged) + 500, acknowledged)
        stop.set()
        await writing
        await writer.close()
        await check(client, writer.ledger_id, acknowledged)
        assert max(acknowledged) == writer.last_add_confirmed


@pytest.mark.scenario(34)
async def test_two_bookies_die_and_the_writer_fails_with_the_outcome_unknown(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string, no_bookies_timeout_s=1.0) as client:
        writer = await client.create_ledger()
        acknowledged: dict[int, bytes] = {}
        writing = asyncio.create_task(write_until_told(writer, acknowledged, asyncio.Event()))
        await until(500, acknowledged)
        await asyncio.gather(cluster.bookies[0].kill(), cluster.bookies[2].kill())
        async with asyncio.timeout(DEADLINE_S):
            await writing
        with pytest.raises(bkpy.BookieUnavailableError, match=f"ledger {writer.ledger_id}"):
            await writer.append(b"more")
        await writer.close()  # behind the last acknowledged entry
        await asyncio.gather(cluster.bookies[0].start(), cluster.bookies[2].start())
        await check(client, writer.ledger_id, acknowledged)


def but_the_first(command: Sequence[str], **others: Any) -> Fork | None:
    """Fork all bookies but one, which is started as it is for users; a test after this one kills it."""
    return None if any("bookie-1/" in word for word in command) else PRELOADED.bookie(command, **others)


async def test_all_processes_die_while_several_ledgers_are_written(cluster: LocalCluster) -> None:
    acknowledged: list[dict[int, bytes]] = [{} for _ in range(4)]
    client = await bkpy.connect(cluster.connect_string, no_bookies_timeout_s=1.0)
    writers = [await client.create_ledger() for _ in acknowledged]
    writing = [
        asyncio.create_task(write_until_told(writer, acked, asyncio.Event()))
        for writer, acked in zip(writers, acknowledged, strict=True)
    ]
    await until(1000, acknowledged[0])
    await cluster.kill()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*writing)
    with children_started_by(but_the_first):
        await cluster.start()
    for writer in writers:
        await writer.close()  # the same client: its session and its connections have come back
    for writer, acked in zip(writers, acknowledged, strict=True):
        assert acked
        await check(client, writer.ledger_id, acked)
    await client.close()


@pytest.mark.exhaustive
async def test_killed_again_and_again(cluster: LocalCluster) -> None:
    """One bookie after the other is killed and started, and then again; nothing acknowledged is lost."""
    async with bkpy.connect(cluster.connect_string) as client:
        everything: dict[int, dict[int, bytes]] = {}
        for round_ in range(2):
            writer = await client.create_ledger()
            acknowledged = everything[writer.ledger_id] = {}
            stop = asyncio.Event()
            writing = asyncio.create_task(write_until_told(writer, acknowledged, stop))
            for bookie in cluster.bookies:
                await until(len(acknowledged) + 200, acknowledged)
                await bookie.kill()
                await bookie.start()
                # The writer has to reach it again before the next one goes.
                await eventually(lambda bookie_id=bookie.id: pool_of(client).channel(bookie_id).up)
            stop.set()
            await writing
            await writer.close()
            assert len(acknowledged) >= 600, f"round {round_}"
        for ledger_id, acknowledged in everything.items():
            await check(client, ledger_id, acknowledged)


async def test_a_suspended_bookie_stops_nobody_and_is_caught_up_with(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string, add_timeout_s=60.0) as client:
        writer = await client.create_ledger()
        acknowledged: dict[int, bytes] = {}
        stop = asyncio.Event()
        writing = asyncio.create_task(write_until_told(writer, acknowledged, stop))
        await until(500, acknowledged)
        cluster.bookies[0].suspend()
        await until(len(acknowledged) + 1000, acknowledged)
        cluster.bookies[0].resume()
        await until(len(acknowledged) + 500, acknowledged)
        stop.set()
        await writing
        await writer.close()
        await check(client, writer.ledger_id, acknowledged)


async def test_zookeeper_dies_and_appends_go_on(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string) as client:
        writer = await client.create_ledger()
        await writer.append(b"before")
        await cluster.zookeeper.kill()
        for _ in range(100):
            await writer.append(b"meanwhile")
        await cluster.zookeeper.start()
        await writer.close()
        assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 100


@pytest.mark.scenario(34)
async def test_sigterm_answers_what_is_in_flight_and_leaves_nothing_to_replay(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string) as client:
        writer = await client.create_ledger(ack_quorum=3)
        futures = [writer.append_nowait(b"%d" % i) for i in range(5000)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bookie = cluster.bookies[0]
        await bookie.stop()
        assert bookie.exit_status == 0
        logged = len(bookie.log_path.read_bytes())
        done = await asyncio.gather(*futures, return_exceptions=True)
        acknowledged = {i: b"%d" % i for i in done if isinstance(i, int)}
        await writer.close()
        await bookie.start()
        await check(client, writer.ledger_id, acknowledged)
        assert b", 0 bytes of journal" in bookie.log_path.read_bytes()[logged:]
