"""Batches that are sent once more: to bookies that others are replaced by, to those that refused, by recoveries."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import (
    NEXT_PAUSE,
    failed_bookies,
    is_held,
    pool_of,
    unanswered_adds,
)
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.client.support import fail_adds, payload
from tests.waiting import eventually

import bkpy
from bkpy.client.client import replication_context
from bkpy.client.write.batch import PendingEntry
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.recovery.write_back import RecoveredEntry, WriteBack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.client.write.replication import Replication
    from bkpy.client.write.writer import LedgerWriter

ENTRY_BYTES_MAX = 1 << 20


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Four bookies, a to d, that take no frame larger than one that the largest entry needs."""
    local = InProcess(tmp_path)
    await local.start("abcd", entry_bytes_max=ENTRY_BYTES_MAX, frame_bytes_max=ENTRY_BYTES_MAX + (64 << 10))
    yield local
    await local.stop()


async def pending_on_two(cluster: InProcess, client: Client, turns: list[list[bytes]]) -> tuple[LedgerWriter, Any]:
    """A writer that needs three bookies, of which the last hangs, and the futures of appends made turn by turn."""
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"first")
    cluster.hang(writer.ensemble[2])
    futures = []
    for turn in turns:
        futures += [writer.append_nowait(data) for data in turn]
        await asyncio.sleep(0)  # each leaves by itself
    await eventually(lambda: not any(unanswered_adds(pool_of(client).channel(name)) for name in writer.ensemble[:2]))
    return writer, futures


@pytest.mark.scenario(24)
async def test_resent_batches_fit_the_frames_that_bookies_take(four: InProcess) -> None:
    """Two that are together larger than a frame may be."""
    client = await four.client(add_timeout_s=2 * DEADLINE_S)
    turns = [[bytes(200_000)], [bytes(ENTRY_BYTES_MAX)], [b"small"], [bytes(ENTRY_BYTES_MAX)]]
    writer, futures = await pending_on_two(four, client, turns)
    four.kill(writer.ensemble[2])
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*futures) == [1, 2, 3, 4]
    assert len(writer.metadata.fragments) == 2
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"first", *(turn[0] for turn in turns)]


@pytest.mark.thorough
@pytest.mark.scenario(1)
async def test_what_a_recovery_writes_back_fits_the_frames_that_bookies_take(four: InProcess) -> None:
    client = await four.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"first")
    entries = [bytes(200_000), bytes(ENTRY_BYTES_MAX), b"small", bytes(ENTRY_BYTES_MAX)]
    await asyncio.gather(*(writer.append(data) for data in entries))
    writer.abandon()
    async with asyncio.timeout(DEADLINE_S):
        reader = await client.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 4
    assert await contents(client, writer.ledger_id) == [b"first", *entries]


async def test_a_writer_that_was_held_goes_on_when_resent_batches_are_answered(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new bookie owes too much by what was resent to it alone: its answer lets the writer go on."""
    client = await four.client(unacked_bytes_max=20_000, explicit_lac_interval_s=0, add_timeout_s=2 * DEADLINE_S)
    writer, futures = await pending_on_two(four, client, [[bytes(15_000)], [bytes(15_000)]])
    (spare,) = set("abcd") - set(writer.ensemble)
    storage = four.storage(spare)
    late: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(storage, "add", lambda *args: late.append(args))
        four.kill(writer.ensemble[2])
        await eventually(lambda: bool(late))
        futures.append(writer.append_nowait(b"held"))
        await eventually(lambda: is_held(client, writer))
    for args in late:
        storage.add(*args)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*futures) == [1, 2, 3]
    await writer.close()


async def test_two_recoveries_of_one_ledger_send_their_own_batches(five: InProcess) -> None:
    """Made by one client at once, they cut the same entries differently, and one turn sends both."""
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    pool_of(client).add_key(writer.ledger_id, writer.metadata.ledger_key)
    long, short = (
        WriteBack(
            writer.metadata,
            confirmed=-1,
            parts=replication_context(client).parts,
        )
        for _ in range(2)
    )
    fail_adds(five, writer.ensemble[0])
    for write_back, count in ((long, 10), (short, 3)):
        for run in runs(writer.ledger_id, count):
            await write_back.add(run)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(long.finish(), short.finish())
    (new,) = set(long.metadata.fragments[-1].bookies) - set(writer.ensemble)
    result = await five.storage(new).read(writer.ledger_id, 0, 100, 1 << 20)
    assert [header.entry_id for header in walk(b"".join(result.segments))] == list(range(10))
    long.abandon()
    short.abandon()


def runs(ledger_id: int, count: int) -> list[RecoveredEntry]:
    parts: list[Any] = []
    RecordCodec(ledger_id).encode_run(parts, [payload(i) for i in range(count)], 0, -1, 0)
    view = memoryview(b"".join(parts))
    return [RecoveredEntry(header.entry_id, view[header.offset : header.end], header.length) for header in walk(view)]


@pytest.mark.thorough
@pytest.mark.scenario(24)
async def test_mending_takes_work_in_proportion_to_what_is_pending(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted are the looks at a batch's ids, which whoever goes over all batches again and again has to take."""
    client = await five.client(add_timeout_s=2 * DEADLINE_S)
    count = 4_000
    writer, futures = await pending_on_two(five, client, [[b"%d" % i] for i in range(count)])
    assert writer.pending.replication.acks.pending == count
    looks = 0

    def counted(name: str) -> property:
        slot = vars(PendingEntry)[name]

        def look(batch: PendingEntry) -> int:
            nonlocal looks
            looks += 1
            value: int = slot.__get__(batch)
            return value

        return property(look, slot.__set__)

    for name in ("first_id", "last_id"):
        monkeypatch.setattr(PendingEntry, name, counted(name))
    five.kill(writer.ensemble[2])
    async with asyncio.timeout(2 * DEADLINE_S):
        assert await asyncio.gather(*futures) == list(range(1, count + 1))
    assert count <= looks < 100 * count
    await writer.close()


# --- bookies that refuse ----------------------------------------------------------------------------------------------


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[InProcess]:
    """Three bookies that stay read-only once they are made that, and whose registrations don't say so."""
    local = InProcess(tmp_path)
    await local.start("abc", disk_check_interval_s=600)
    yield local
    await local.stop()


def sent_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bookies that batches are sent to again from now on."""
    sent: list[str] = []
    resend = replication_context(client).parts.dispatcher.resend

    def recorded(writer: Any, bookie_id: str, batches: Any, flags: int) -> None:
        sent.append(bookie_id)
        resend(writer, bookie_id, batches, flags)

    monkeypatch.setattr(replication_context(client).parts.dispatcher, "resend", recorded)
    return sent


def pauses_taken(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of the pauses before further attempts from now on; each is cut short by up to a half of it."""
    pauses: list[float] = []
    next_pause = getattr(*NEXT_PAUSE)

    def recorded(self: Replication) -> float:
        pauses.append(next_pause(self))
        return pauses[-1]

    monkeypatch.setattr(*NEXT_PAUSE, recorded)
    return pauses


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "failed: " in r.getMessage()]


@pytest.mark.scenario(26)
async def test_bookies_that_refuse_are_tried_less_and_less_often_until_the_writer_gives_up(
    refusing: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They can be reached and answer at once: nothing else slows the attempts down."""
    client = await refusing.client(no_bookies_timeout_s=3)
    writer = await client.create_ledger()
    await writer.append(b"0")
    pauses = pauses_taken(monkeypatch)
    sent = sent_again(client, monkeypatch)
    for name in "ab":
        refusing.service(name).refuse_entries()
    with pytest.raises(bkpy.BookieUnavailableError, match="no others"):
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"1")
    assert pauses == [min(0.05 * 2**n, 1.0) for n in range(len(pauses))]
    # Half of each pause is waited at least: eleven are longer than the writer had.
    assert 2 <= len(pauses) <= 11
    assert len(sent) <= 2 * len(pauses)
    assert len(warnings(caplog)) == 2  # once for each of them
    writer.abandon()


@pytest.mark.scenario(26)
async def test_a_writer_gives_up_though_bookies_refuse_one_after_the_other(
    refusing: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the first of them says so, the second has not answered what it was sent again."""
    client = await refusing.client(no_bookies_timeout_s=0.5)
    writer = await client.create_ledger()
    await writer.append(b"0")
    resend = replication_context(client).parts.dispatcher.resend

    def later_to_b(writer: Any, bookie_id: str, batches: Any, flags: int) -> None:
        delay_s = 0.02 if bookie_id == "b" else 0.0  # shorter than any pause
        asyncio.get_running_loop().call_later(delay_s, resend, writer, bookie_id, list(batches), flags)

    monkeypatch.setattr(replication_context(client).parts.dispatcher, "resend", later_to_b)
    for name in "ab":
        refusing.service(name).refuse_entries()
    with pytest.raises(bkpy.BookieUnavailableError, match="no others"):
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"1")
    writer.abandon()


@pytest.mark.scenario(26)
async def test_pauses_are_short_again_once_something_was_acknowledged(
    refusing: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await refusing.client(no_bookies_timeout_s=DEADLINE_S)
    writer = await client.create_ledger()
    await writer.append(b"0")
    pauses = pauses_taken(monkeypatch)
    for entry_id in (1, 2):
        pauses.clear()
        for name in "ab":
            refusing.service(name).refuse_entries()
        pending = writer.append_nowait(b"refused")
        await eventually(lambda: len(pauses) >= 3)
        assert pauses[:3] == [0.05, 0.1, 0.2]
        for name in "ab":
            refusing.service(name).take_entries()
        async with asyncio.timeout(DEADLINE_S):
            assert await pending == entry_id
        await eventually(lambda: not failed_bookies(writer) and not writer.pending.replication.changing)
    await writer.close()


@pytest.mark.thorough
@pytest.mark.scenario(26)
async def test_a_bookie_that_refuses_while_the_ack_quorum_lives_is_complained_about_once(
    refusing: InProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await refusing.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    sent = sent_again(client, monkeypatch)
    refusing.service("a").refuse_entries()
    async with asyncio.timeout(DEADLINE_S):
        while len(sent) < 5:
            await writer.append(b"x")
    assert len(warnings(caplog)) == 1
    await writer.close()
