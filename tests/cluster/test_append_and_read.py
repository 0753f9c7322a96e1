"""Appending and reading on a real cluster: what goes in comes out, in order, however it was appended."""

import asyncio
import random

import pytest
from tests.in_process import stored
from tests.waiting import eventually

import bkpy
from bkpy.local import LocalCluster


@pytest.fixture
async def client(cluster: LocalCluster):
    async with bkpy.connect(cluster.connect_string) as connected:
        yield connected


async def read_all(reader: bkpy.LedgerReader, first: int = 0, last: int | None = None) -> list[tuple[int, bytes]]:
    return [(entry.entry_id, entry.data) async for entry in reader.read(first, last)]


@pytest.mark.scenario(33)
@pytest.mark.scenario(39)
@pytest.mark.parametrize("digest", ["crc32c", "hmac-sha256"])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (3, 1, 1), (2, 2, 1), (1, 1, 1), (3, 3, 3), (3, 3, 1)])
async def test_every_shape_of_ledger_reads_back(client: bkpy.Client, sizes: tuple[int, int, int], digest: str) -> None:
    size, write_quorum, ack_quorum = sizes
    payloads = [b"%d" % i * (i % 50) for i in range(400)]
    writer = await client.create_ledger(
        ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, password=b"pw", digest=digest
    )
    ids = await asyncio.gather(*(writer.append(p) for p in payloads[:150]))
    assert list(ids) == list(range(150))
    assert await writer.append_batch(payloads[150:350]) == range(150, 350)
    futures = [writer.append_nowait(p) for p in payloads[350:]]
    await writer.flush()
    assert [f.result() for f in futures] == list(range(350, 400))
    assert writer.last_add_confirmed == 399
    assert writer.length == sum(map(len, payloads))
    await writer.close()
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry, metadata.length) == ("CLOSED", 399, sum(map(len, payloads)))
    reader = await client.open_ledger(writer.ledger_id, password=b"pw")
    assert reader.closed
    assert await read_all(reader) == list(enumerate(payloads))
    assert await read_all(reader, 17, 23) == list(enumerate(payloads))[17:24]
    blocks = [block async for block in reader.read_blocks(5, 390)]
    assert [e.data for block in blocks for e in block] == payloads[5:391]
    assert blocks[0].first_entry == 5
    assert b"".join(block.joined()[1] for block in blocks) == b"".join(payloads[5:391])


async def test_appends_complete_in_id_order(client: bkpy.Client) -> None:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=1)
    done: list[int] = []

    async def append(i: int) -> None:
        done.append(await writer.append(b"%d" % i))

    for _ in range(20):
        await asyncio.gather(*(append(i) for i in range(random.Random(7).randrange(1, 200))))
    assert done == sorted(done)
    await writer.close()


async def test_large_and_empty_entries(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    payloads = [b"", b"x" * (4 << 20), b"", b"y" * 300_000, b"z"]
    for payload in payloads:
        await writer.append(payload)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert [e.data async for e in reader.read()] == payloads


async def test_an_empty_ledger(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    assert writer.last_add_confirmed == -1
    assert await writer.append_batch([]) == range(0)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.length, reader.closed) == (-1, 0, True)
    assert await read_all(reader) == []


async def test_mutable_buffers_are_copied(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    buffer = bytearray(b"before")
    future = writer.append_nowait(buffer)
    batch = [bytearray(b"first"), memoryview(b"second")]
    appending = asyncio.create_task(writer.append_batch(batch))
    await asyncio.sleep(0)
    buffer[:] = b"after!"
    batch[0][:] = b"later"
    await future
    await appending
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert [e.data async for e in reader.read()] == [b"before", b"first", b"second"]


async def test_many_ledgers_at_once(client: bkpy.Client) -> None:
    writers = await asyncio.gather(*(client.create_ledger() for _ in range(50)))
    for round_ in range(5):
        await asyncio.gather(*(w.append(b"%d-%d" % (w.ledger_id, round_)) for w in writers))
    await asyncio.gather(*(w.close() for w in writers))
    for writer in writers:
        reader = await client.open_ledger(writer.ledger_id)
        assert [e.data async for e in reader.read()] == [b"%d-%d" % (writer.ledger_id, r) for r in range(5)]


async def test_custom_metadata_comes_back(client: bkpy.Client) -> None:
    writer = await client.create_ledger(custom_metadata={"app": b"orders", "raw": bytes(range(256))})
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert metadata.custom_metadata == {"app": b"orders", "raw": bytes(range(256))}
    await writer.close()


async def test_list_and_delete(client: bkpy.Client) -> None:
    writers = [await client.create_ledger() for _ in range(3)]
    for writer in writers:
        await writer.close()
    ids = [w.ledger_id for w in writers]
    listed = [i async for i in client.list_ledgers()]
    assert listed == sorted(listed)
    assert set(ids) <= set(listed)
    await client.delete_ledger(ids[1])
    assert ids[1] not in [i async for i in client.list_ledgers()]
    with pytest.raises(bkpy.NoSuchLedgerError, match=f"ledger {ids[1]}"):
        await client.open_ledger(ids[1])


async def test_opening_does_not_disturb_the_writer_and_reads_what_is_confirmed(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    for i in range(10):
        await writer.append(b"%d" % i)
    reader = await client.open_ledger(writer.ledger_id)
    assert not reader.closed
    assert 8 <= reader.last_add_confirmed <= 9  # the last entry carries the confirmation of the one before it
    await eventually(reader.read_last_add_confirmed, "an idle writer publishes", until=lambda last: last == 9)
    assert [e.data async for e in reader.read()] == [b"%d" % i for i in range(10)]
    with pytest.raises(bkpy.NoSuchEntryError, match="past the last add confirmed"):
        await read_all(reader, 0, 10)
    assert await writer.append(b"on") == 10
    await writer.close()


async def test_tail_follows_the_writer_to_the_end(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    seen: list[bytes] = []

    async def follow() -> None:
        async for entry in reader.tail(first=3):
            seen.append(entry.data)

    following = asyncio.create_task(follow())
    for i in range(20):
        await writer.append(b"%d" % i)
        await eventually(lambda confirmed=i: len(seen) >= confirmed - 3)  # an entry confirms the one before it
    await eventually(lambda: len(seen) == 17, "an idle writer publishes its last entry")
    assert not following.done()
    await writer.append(b"last")
    await writer.close()
    async with asyncio.timeout(20):
        await following
    assert seen == [b"%d" % i for i in range(3, 20)] + [b"last"]


async def test_the_window_makes_append_wait_and_append_nowait_raise(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string, write_window_entries=10) as client:
        writer = await client.create_ledger()
        futures = [writer.append_nowait(b"x") for _ in range(10)]
        with pytest.raises(bkpy.WouldBlock) as caught:
            writer.append_nowait(b"x")
        assert caught.value.retriable
        ids = await asyncio.gather(*(writer.append(b"%d" % i) for i in range(100)))
        assert list(ids) == list(range(10, 110))
        assert all(f.done() for f in futures)
        assert await writer.append_batch([b"y"] * 50) == range(110, 160)  # larger than the window: alone
        await writer.close()


async def test_the_window_counts_bytes(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string, write_window_bytes=1000) as client:
        writer = await client.create_ledger()
        writer.append_nowait(b"x" * 900)
        with pytest.raises(bkpy.WouldBlock):
            writer.append_nowait(b"x" * 200)
        assert await writer.append(b"x" * 200) == 1
        await writer.close()


async def test_a_cancelled_append_is_written_all_the_same(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    task = asyncio.create_task(writer.append(b"kept"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await writer.append(b"next") == 1
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    assert [e.data async for e in reader.read()] == [b"kept", b"next"]


async def test_an_append_that_is_cancelled_while_it_waits_for_room_is_not_written(cluster: LocalCluster) -> None:
    async with bkpy.connect(cluster.connect_string, write_window_entries=1) as client:
        writer = await client.create_ledger()
        first = asyncio.create_task(writer.append(b"first"))
        waiting = asyncio.create_task(writer.append(b"never"))
        last = asyncio.create_task(writer.append(b"last"))
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await first, await last) == (0, 1)
        assert waiting.cancelled()
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [e.data async for e in reader.read()] == [b"first", b"last"]


async def test_leaving_a_writer_by_an_exception_leaves_the_ledger_open(client: bkpy.Client) -> None:
    writer = await client.create_ledger()

    async def fail() -> None:
        async with writer:
            await writer.append(b"x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert (await client.ledger_metadata(writer.ledger_id)).state == "OPEN"
    with pytest.raises(bkpy.ClientClosedError):
        await writer.append(b"y")


@pytest.mark.scenario(33)
@pytest.mark.scenario(34)
async def test_close_waits_for_what_is_in_flight_and_closing_twice_is_once(client: bkpy.Client) -> None:
    writer = await client.create_ledger()
    futures = [writer.append_nowait(b"%d" % i) for i in range(1000)]
    await asyncio.gather(writer.close(), writer.close())
    await writer.close()
    assert [f.result() for f in futures] == list(range(1000))
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 999
    with pytest.raises(bkpy.LedgerClosedError):
        await writer.append(b"late")
    with pytest.raises(bkpy.LedgerClosedError):
        writer.append_nowait(b"late")


@pytest.mark.scenario(33)
async def test_closing_a_ledger_that_somebody_else_closed(cluster: LocalCluster, client: bkpy.Client) -> None:
    from bkpy.metadata.cluster import open_cluster
    from bkpy.metadata.connect import connect_store
    from bkpy.runtime.system import real_runtime

    store, root = await connect_store(cluster.connect_string, real_runtime())
    try:
        catalog = (await open_cluster(store, root)).catalog
        for last_entry, length, expected in [(1, 2, None), (0, 1, bkpy.LedgerClosedError)]:
            writer = await client.create_ledger()
            await writer.append_batch([b"a", b"b"])
            metadata, version = await catalog.read(writer.ledger_id)
            stored(await catalog.write(metadata.closed(last_entry, length), version))
            if expected is None:
                await writer.close()
            else:
                with pytest.raises(expected, match="closed the ledger at entry 0"):
                    await writer.close()
        writer = await client.create_ledger()
        metadata, version = await catalog.read(writer.ledger_id)
        stored(await catalog.write(metadata.in_recovery(), version))
        with pytest.raises(bkpy.LedgerFencedError):
            await writer.close()
    finally:
        await store.close()
