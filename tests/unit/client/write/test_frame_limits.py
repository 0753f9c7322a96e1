"""Bookies that take smaller frames than the client would make: nothing larger is sent to them, whatever it is."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import (
    channels_of,
    failed_bookies,
    pool_of,
    present_keys,
    presented_to,
    unanswered_adds,
)
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.client.support import check_closed
from tests.waiting import eventually

import bkpy
from bkpy.client.client import replication_context
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op
from bkpy.protocol.wire.records import HEADER_BYTES, MAC_BYTES, walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bkpy.client.client import Client

ENTRY_BYTES_MAX = 100 << 10
SMALL = {"entry_bytes_max": ENTRY_BYTES_MAX, "frame_bytes_max": ENTRY_BYTES_MAX + (64 << 10)}
TINY = {"entry_bytes_max": 1, "frame_bytes_max": 1 + (64 << 10)}
USUAL = {"entry_bytes_max": 4 << 20, "frame_bytes_max": 8 << 20}


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Three bookies that take frames of 164 KiB, where a batch of the client has 256 KiB."""
    local = InProcess(tmp_path)
    await local.start("abc", **SMALL)
    yield local
    await local.stop()


@pytest.fixture
async def mixed(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Three bookies that take frames of 8 MiB, and one, d, that takes those of 164 KiB."""
    local = InProcess(tmp_path)
    await local.start("abc")
    local.settings = SMALL
    await local.start_node("d")
    yield local
    await local.stop()


def never_lost(client: Client) -> bool:
    return {channel.generation for channel in channels_of(client).values()} == {1}


async def test_a_large_batch_is_cut(small: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    client = await small.client()
    writer = await client.create_ledger()
    entries = [bytes([i % 256]) * 1000 for i in range(300)]
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append_batch(entries) == range(300)
        assert await asyncio.gather(*map(writer.append, entries)) == list(range(300, 600))
    assert never_lost(client)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "nothing was refused"
    await writer.close()
    assert await contents(client, writer.ledger_id) == 2 * entries


@pytest.mark.thorough
async def test_a_turn_of_many_writers_is_cut(small: InProcess) -> None:
    """Each batch takes more in the frame's head than it has bytes."""
    client = await small.client(batch_bytes_max=8 << 20, flush_threshold_bytes=8 << 20)
    writers = [await client.create_ledger() for _ in range(50)]
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(2):
            futures = [writer.append_nowait(b"") for writer in writers for _ in range(200)]
            await asyncio.gather(*futures)
    assert never_lost(client)


@pytest.mark.thorough
async def test_so_are_the_keys_of_many_ledgers(tmp_path: Path) -> None:
    local = InProcess(tmp_path)
    await local.start("abc", **TINY)
    client = await local.client(batch_bytes_max=8 << 20, flush_threshold_bytes=8 << 20)
    keys = TINY["frame_bytes_max"] // m.KEY_BYTES
    writers = [await client.create_ledger() for _ in range(keys)]
    async with asyncio.timeout(DEADLINE_S):
        futures = [writer.append_nowait(b"x") for writer in writers]
        assert set(await asyncio.gather(*futures)) == {0}
    assert never_lost(client)
    for bookie_id in "abc":
        channel = pool_of(client).channel(bookie_id)
        presented_to(channel).clear()
        present_keys(channel, {writer.ledger_id for writer in writers})  # all at once
        reply = await channel.call(Op.READ_LAC, m.pack([0, writers[0].ledger_id]), timeout_s=DEADLINE_S)
        assert m.reply_status(reply.head) == m.Status.OK
    assert never_lost(client)
    await local.stop()


@pytest.mark.parametrize("frame_bytes_max", [200, 1000, 65_537, 168_000, 8 << 20])
@pytest.mark.parametrize("digest_bytes", [0, MAC_BYTES])
def test_what_is_said_to_fit_fits(frame_bytes_max: int, digest_bytes: int) -> None:
    highest = m.I64_MAX

    def frame(sizes: list[int]) -> int:
        count = len(sizes)
        columns = [highest, [highest] * count, [highest] * count, [1] * count, [highest] * count, sizes]
        return len(wire.encode(Op.ADD, highest, m.pack(columns))[0]) + sum(sizes)

    assert frame([m.payload_bytes_max(frame_bytes_max) + HEADER_BYTES + digest_bytes]) <= frame_bytes_max
    records = m.batches_bytes_max(frame_bytes_max)
    batches = max(1, records // HEADER_BYTES)
    sizes = [records - (batches - 1) * HEADER_BYTES] + [HEADER_BYTES] * (batches - 1)
    assert records < HEADER_BYTES or frame(sizes) <= frame_bytes_max
    assert batches <= m.BATCHES_MAX
    keys = m.keys_max(frame_bytes_max)
    present = m.pack([[highest] * keys, [bytes(m.KEY_BYTES)] * keys])
    assert len(wire.encode(Op.PRESENT, highest, present)[0]) <= frame_bytes_max


async def test_the_largest_entry_fits_and_a_larger_one_fails_at_the_call(small: InProcess) -> None:
    client = await small.client()
    for digest in ("crc32c", "hmac-sha256"):
        writer = await client.create_ledger(digest=digest, password=b"p")
        async with asyncio.timeout(DEADLINE_S):
            assert await writer.append(bytes(ENTRY_BYTES_MAX)) == 0
            for call in (writer.append, writer.append_nowait, lambda data, w=writer: w.append_batch([b"", data])):
                with pytest.raises(bkpy.FrameTooLargeError, match=f"over the limit of {ENTRY_BYTES_MAX} bytes"):
                    await call(bytes(ENTRY_BYTES_MAX + 1))  # type: ignore[operator]
            assert await writer.append(b"on") == 1
        await writer.close()
    assert never_lost(client)


async def pending(
    cluster: InProcess, client: Client, entries: list[bytes]
) -> tuple[bkpy.LedgerWriter, list[asyncio.Future[int]]]:
    """A writer on a, b and c that needs all three, of which one hangs, and the futures of appends of one turn."""
    await pool_of(client).channel("d").connect()
    replication_context(client).parts.ensembles.failed("d")  # taken last
    writer = await client.create_ledger(ack_quorum=3)
    assert set(writer.ensemble) == set("abc")
    await writer.append(b"first")
    cluster.hang("a")
    futures = [writer.append_nowait(data) for data in entries]
    await asyncio.sleep(0)  # they leave
    return writer, futures


async def test_what_was_sent_to_others_is_cut_for_the_bookie_that_takes_their_place(mixed: InProcess) -> None:
    client = await mixed.client(add_timeout_s=2 * DEADLINE_S)
    entries = [bytes([i]) * 25_000 for i in range(40)]
    writer, futures = await pending(mixed, client, entries)
    mixed.kill("a")
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*futures) == list(range(1, 41))
    assert "d" in writer.ensemble
    assert pool_of(client).channel("d").generation == 1
    with pytest.raises(bkpy.FrameTooLargeError):
        await writer.append(bytes(ENTRY_BYTES_MAX + 1))
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"first", *entries]
    result = await mixed.storage("d").read(writer.ledger_id, 1, 100, 4 << 20)
    assert [header.entry_id for header in walk(b"".join(result.segments))] == list(range(1, 41))


async def test_a_bookie_that_can_not_take_what_is_pending_is_not_sent_it(mixed: InProcess) -> None:
    client = await mixed.client(add_timeout_s=2 * DEADLINE_S, no_bookies_timeout_s=0.2)
    writer, futures = await pending(mixed, client, [bytes(1 << 20)])
    mixed.kill("a")
    with pytest.raises(bkpy.BookieUnavailableError, match=r"takes frames of \d+ bytes"):
        async with asyncio.timeout(DEADLINE_S):
            await futures[0]
    assert pool_of(client).channel("d").generation == 1
    writer.abandon()


@pytest.mark.parametrize("count", [1, 20])
async def test_what_a_recovery_writes_back_is_cut_for_a_bookie_that_has_come_in(mixed: InProcess, count: int) -> None:
    client = await mixed.client()
    replication_context(client).parts.ensembles.failed("d")
    writer = await client.create_ledger(ack_quorum=3)
    entries = [bytes([i]) * 25_000 for i in range(count)]
    await asyncio.gather(*map(writer.append, entries))
    writer.abandon()
    mixed.kill("a")
    async with asyncio.timeout(DEADLINE_S):
        reader = await client.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == count - 1
    assert await contents(client, writer.ledger_id) == entries
    assert pool_of(client).channel("d").generation == 1


@pytest.mark.parametrize("entries", [[bytes(25_000)] * 20, [bytes(ENTRY_BYTES_MAX)] * 3])
async def test_bookies_that_come_back_with_a_smaller_limit(tmp_path: Path, entries: list[bytes]) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("abc", **USUAL)
    client = await cluster.client(no_bookies_timeout_s=DEADLINE_S)
    writer = await client.create_ledger()
    await writer.append(b"first")
    cluster.settings = SMALL
    for name in "abc":
        await cluster.restart(name)
        await pool_of(client).channel(name).connect(again=True)
    before = {name: pool_of(client).channel(name).generation for name in "abc"}
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append_batch(entries) == range(1, len(entries) + 1)
    assert {name: pool_of(client).channel(name).generation for name in "abc"} == before
    await eventually(lambda: not failed_bookies(writer))
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"first", *entries]
    await cluster.stop()


async def test_a_ledger_without_an_entry_that_fits_says_so(small: InProcess) -> None:
    client = await small.client()
    await pool_of(client).channel("a").connect()
    pool_of(client).channel("a").frame_bytes_max = 10
    pool_of(client).channel("a").entry_bytes_max = 0
    writer = await client.create_ledger()
    with pytest.raises(bkpy.FrameTooLargeError, match="over the limit of 0 bytes"):
        await writer.append(b"x")
    await writer.close()
    await check_closed(client, writer.ledger_id, 0)


async def test_a_batch_in_pieces_is_accepted_with_the_last_of_them(
    mixed: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie that has come in answers the first frame, and keeps the others back."""
    client = await mixed.client(add_timeout_s=2 * DEADLINE_S)
    entries = [bytes([i]) * 25_000 for i in range(9)]  # one batch, of more bytes than d takes in one frame
    writer, futures = await pending(mixed, client, entries)
    storage = mixed.storage("d")
    add_to_storage = storage.add
    held: list[tuple[Any, ...]] = []
    stored: list[Any] = []

    def one(columns: Any, head: Any, body: Any, done: Callable[[], None]) -> None:
        if stored:
            held.append((columns, head, body, done))
            return
        stored.append(columns)
        add_to_storage(columns, head, body, done)

    monkeypatch.setattr(storage, "add", one)
    mixed.kill("a")
    await eventually(lambda: len(held) > 1 and unanswered_adds(pool_of(client).channel("d")) == len(held))
    assert not any(future.done() for future in futures)
    for args in held:
        add_to_storage(*args)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*futures) == list(range(1, 10))
    await writer.close()
