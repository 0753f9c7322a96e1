"""Reading with bookies that are slow, damaged, away or no longer those that hold the ledger."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, free_slots, pool_of, tasks_of, unanswered_calls
from tests.in_process import DEADLINE_S, InProcess, add, contents, lag_behind, rewrite

import bkpy
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op
from bkpy.protocol.wire.records import RecordCodec, walk
from bkpy.storage.engine import LedgerStorage, ReadResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

NEVER_S = 600.0  # longer than any test: whoever waits for that fails


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abcde")
    yield local
    await local.stop()


async def closed_ledger(client: Client, count: int = 100, size: int = 10, **sizes: int) -> LedgerWriter:
    writer = await client.create_ledger(**({"ack_quorum": sizes.get("write_quorum", 3)} | sizes))
    await writer.append_batch([b"%d" % i * size for i in range(count)])
    await writer.close()
    return writer


def payloads(count: int = 100, size: int = 10) -> list[bytes]:
    return [b"%d" % i * size for i in range(count)]


async def collect(entries: AsyncIterator[bkpy.Entry], found: list[bytes]) -> None:
    async for entry in entries:
        found.append(entry.data)


class Reads:
    """What a bookie's storage does with reads: counts them, and does `then` to their results."""

    def __init__(self, storage: LedgerStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.released = asyncio.Event()
        self.released.set()
        self.then: Callable[[ReadResult], ReadResult] = lambda result: result
        original = storage.read

        async def read(ledger_id: int, first: int, last: int, bytes_max: int) -> ReadResult:
            self.count += 1
            await self.released.wait()
            return self.then(await original(ledger_id, first, last, bytes_max))

        monkeypatch.setattr(storage, "read", read)

    def hang(self) -> None:
        self.released.clear()


def watched(cluster: InProcess, writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> dict[str, Reads]:
    """The reads of the ledger's bookies."""
    return {i: Reads(cluster.storage(i), monkeypatch) for i in writer.metadata.fragments[0].bookies}


def deny(result: ReadResult) -> ReadResult:
    return ReadResult([], 1 << 40, [], -1)


def forget(result: ReadResult) -> ReadResult:
    return ReadResult([], 1 << 40, [(0, 1 << 40)], -1)


def damage_id_of(entry_id: int) -> Callable[[ReadResult], ReadResult]:
    """Flip a bit of that entry's id, so that its record seems to be another's."""

    def damage(result: ReadResult) -> ReadResult:
        data = bytearray(b"".join(result.segments))
        for header in walk(bytes(data)):
            if header.entry_id == entry_id:
                data[header.offset + 8 + 5] ^= 1
        return result._replace(segments=[data])

    return damage


def damage_from(entry_id: int) -> Callable[[ReadResult], ReadResult]:
    """Flip a bit in the payload of that entry and of all behind it."""

    def damage(result: ReadResult) -> ReadResult:
        data = bytearray(b"".join(result.segments))
        for header in walk(bytes(data)):
            if header.entry_id >= entry_id:
                data[header.end - 1] ^= 1
        return result._replace(segments=[data])

    return damage


# --- late replicas ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario(38)
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 3, "write_quorum": 2}, {"ensemble_size": 5}], ids=str)
async def test_a_bookie_that_hangs_does_not_hold_up_reads(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    client = await cluster.client(read_timeout_s=NEVER_S, read_late_default_s=0.05)
    writer = await closed_ledger(client, **sizes)
    reads = watched(cluster, writer, monkeypatch)
    hung = writer.metadata.fragments[0].bookies[1]
    reads[hung].hang()
    latency = pool_of(client).latency
    async with asyncio.timeout(DEADLINE_S):
        while not pool_of(client).channel(hung).slow_until:  # each reader begins anywhere
            assert await contents(client, writer.ledger_id) == payloads()
        before, asked = reads[hung].count, latency.speculative
        # From now on nobody is late, however slow this machine is: if it were asked, it would be waited for.
        latency.late_s = NEVER_S
        monkeypatch.setattr(latency, "answered", lambda bookie_id, seconds: None)
        for name in reads:
            pool_of(client).channel(name).slow_until = math.inf if name == hung else 0.0
        for _ in range(20):
            assert await contents(client, writer.ledger_id) == payloads()
    assert asked >= 3
    assert reads[hung].count == before  # it is asked no more while others answer
    await asyncio.sleep(0)
    assert not unanswered_calls(pool_of(client).channel(hung))  # the losers were given up
    assert free_slots(pool_of(client).channel(hung)) == 128


@pytest.mark.scenario(38)
async def test_two_bookies_that_hang_do_not_hold_up_reads(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await cluster.client(read_timeout_s=NEVER_S, read_late_default_s=0.05)
    writer = await closed_ledger(client)
    reads = watched(cluster, writer, monkeypatch)
    for hung in writer.metadata.fragments[0].bookies[:2]:
        reads[hung].hang()
    async with asyncio.timeout(DEADLINE_S):
        while not pool_of(client).latency.won:  # which bookie is asked first is left to chance
            assert await contents(client, writer.ledger_id) == payloads()


@pytest.mark.scenario(38)
async def test_no_second_replica_is_asked_while_reads_are_in_time(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(read_late_default_s=NEVER_S, read_late_min_s=NEVER_S)
    writer = await closed_ledger(client)
    reads = watched(cluster, writer, monkeypatch)
    reader = await client.open_ledger(writer.ledger_id)
    for i in range(60):
        assert [e.data async for e in reader.read(i, i)] == [payloads()[i]]
    assert pool_of(client).latency.speculative == 0
    assert [r.count for r in reads.values()] == [20, 20, 20]  # and all have their share


@pytest.mark.scenario(38)
async def test_a_late_answer_is_taken_if_the_other_replica_has_none(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(read_timeout_s=NEVER_S, read_late_default_s=0.01, read_late_min_s=0.01)
    writer = await closed_ledger(client, ensemble_size=2, write_quorum=2)
    reads = watched(cluster, writer, monkeypatch)
    late, other = reads.values()
    late.hang()
    other.then = deny
    reader = await client.open_ledger(writer.ledger_id)
    reading = asyncio.ensure_future(anext(reader.read(0, 0)))
    async with asyncio.timeout(DEADLINE_S):
        while not (late.count and other.count):
            await asyncio.sleep(0.01)
        late.released.set()
        assert (await reading).data == payloads()[0]


@pytest.mark.scenario(38)
async def test_a_bookie_that_never_answers_is_given_up_in_the_end(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(read_timeout_s=0.3)
    writer = await closed_ledger(client, ensemble_size=1, write_quorum=1)
    reads = watched(cluster, writer, monkeypatch)
    for hung in reads.values():
        hung.hang()
    reader = await client.open_ledger(writer.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(bkpy.BookieUnavailableError, match="no answer"):
            [e async for e in reader.read()]


async def test_a_read_that_is_cancelled_leaves_nothing_behind(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(read_timeout_s=NEVER_S, read_late_default_s=0.01)
    writer = await closed_ledger(client)
    reads = watched(cluster, writer, monkeypatch)
    for hung in reads.values():
        hung.hang()
    reader = await client.open_ledger(writer.ledger_id)
    reading = asyncio.ensure_future(anext(reader.read()))
    async with asyncio.timeout(DEADLINE_S):
        while not all(r.count for r in reads.values()):
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        while any(unanswered_calls(pool_of(client).channel(i)) for i in reads):
            await asyncio.sleep(0.01)
    assert not [task for task in tasks_of(client) if "read of ledger" in task.get_name()]


# --- bookies that are gone or damaged ---------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.scenario(42)
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}], ids=str)
async def test_reads_go_on_when_the_preferred_replica_fails(cluster: InProcess, sizes: dict[str, int]) -> None:
    client = await cluster.client(read_bytes=5000)
    writer = await closed_ledger(client, 2000, 50, **sizes)
    reader = await client.open_ledger(writer.ledger_id)
    found = []
    async with asyncio.timeout(DEADLINE_S):
        async for entry in reader.read():
            found.append(entry.data)
            if len(found) == 100:
                await cluster.node(writer.ensemble[0]).stop()
    assert found == payloads(2000, 50)


@pytest.mark.scenario(37)
@pytest.mark.scenario(39)
@pytest.mark.parametrize("digest", ["crc32c", "hmac-sha256"])
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}, {"ensemble_size": 3, "write_quorum": 2}], ids=str)
async def test_a_damaged_replica_gives_its_intact_part_and_others_the_rest(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], digest: str
) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(
        **({"ack_quorum": sizes.get("write_quorum", 3)} | sizes), password=b"p", digest=digest
    )
    await writer.append_batch(payloads())
    await writer.close()
    reads = watched(cluster, writer, monkeypatch)
    next(iter(reads.values())).then = damage_from(40)
    for _ in range(4):  # whichever is asked first
        assert await contents(client, writer.ledger_id, b"p") == payloads()


@pytest.mark.scenario(37)
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}], ids=str)
async def test_damage_on_all_replicas_is_a_digest_mismatch_and_comes_after_the_intact_entries(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    client = await cluster.client()
    writer = await closed_ledger(client, **sizes)
    for reads in watched(cluster, writer, monkeypatch).values():
        reads.then = damage_from(40)
    reader = await client.open_ledger(writer.ledger_id)
    found: list[bytes] = []
    with pytest.raises(bkpy.DigestMismatchError) as raised:
        await collect(reader.read(), found)
    assert found == payloads()[:40]
    assert (raised.value.ledger_id, raised.value.entry_id) == (writer.ledger_id, 40)


@pytest.mark.scenario(36)
@pytest.mark.scenario(37)
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}], ids=str)
async def test_a_record_whose_id_is_damaged_everywhere_is_a_digest_mismatch_and_not_a_missing_entry(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    client = await cluster.client()
    writer = await closed_ledger(client, **sizes)
    for reads in watched(cluster, writer, monkeypatch).values():
        reads.then = damage_id_of(40)
    reader = await client.open_ledger(writer.ledger_id)
    found: list[bytes] = []
    with pytest.raises(bkpy.DigestMismatchError) as raised:
        await collect(reader.read(), found)
    assert found == payloads()[:40]
    assert (raised.value.ledger_id, raised.value.entry_id) == (writer.ledger_id, 40)


@pytest.mark.scenario(36)
@pytest.mark.parametrize(
    ("behaviours", "error"),
    [
        ((deny, deny, deny), bkpy.NoSuchEntryError),
        ((deny, damage_from(0), deny), bkpy.DigestMismatchError),
        ((forget, deny, deny), bkpy.CorruptDataError),
        ((forget, damage_from(0), deny), bkpy.CorruptDataError),
    ],
)
async def test_negatives_damage_and_doubt_are_told_apart(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, behaviours: tuple[Any, ...], error: type[Exception]
) -> None:
    client = await cluster.client()
    writer = await closed_ledger(client)
    for reads, then in zip(watched(cluster, writer, monkeypatch).values(), behaviours, strict=True):
        reads.then = then
    reader = await client.open_ledger(writer.ledger_id)
    for first in range(3):
        with pytest.raises(bkpy.BookKeeperError) as raised:
            [e async for e in reader.read(first)]
        assert type(raised.value) is error


@pytest.mark.scenario(36)
async def test_a_bookie_that_is_down_forbids_to_deny_an_entry(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(read_timeout_s=0.3)
    writer = await closed_ledger(client)
    reads = watched(cluster, writer, monkeypatch)
    for each in reads.values():
        each.then = deny
    down = next(iter(reads))
    await cluster.node(down).stop()
    reader = await client.open_ledger(writer.ledger_id)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(bkpy.BookieUnavailableError, match=down):
            [e async for e in reader.read()]


@pytest.mark.thorough
@pytest.mark.scenario(39)
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}], ids=str)
async def test_ranges_are_bounded_by_bytes_and_give_everything_once(cluster: InProcess, sizes: dict[str, int]) -> None:
    client = await cluster.client(read_bytes=1000)
    writer = await client.create_ledger(**({"ack_quorum": 3} | sizes))
    data = [bytes([i % 256]) * (i * 37 % 3000) for i in range(300)]  # some are larger than a range
    await writer.append_batch(data)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id)
    blocks = [block async for block in reader.read_blocks(17, 283)]
    assert [bytes(p) for block in blocks for p in block.payloads()] == data[17:284]
    assert blocks[0].first_entry == 17
    if not sizes:
        assert max(len(block.buffer) for block in blocks) <= 1000 + 3032


# --- ensembles that were rewritten ------------------------------------------------------------------------------------


async def moved_ledger(cluster: InProcess, client: Client) -> tuple[bkpy.LedgerReader, str, str]:
    """A ledger of one copy, a reader of it, and where the copy is after re-replication, as the reader doesn't know."""
    writer = await closed_ledger(client, ensemble_size=1, write_quorum=1)
    reader = await client.open_ledger(writer.ledger_id)
    return reader, *await move(client, writer)


async def move(client: Client, writer: LedgerWriter) -> tuple[str, str]:
    """Re-replicate a ledger of one copy; returns where the copy was and where it is."""
    old = writer.metadata.fragments[0].bookies[0]
    new = next(i for i in "abcde" if i != old)
    frame = (
        await pool_of(client)
        .channel(old)
        .call(Op.READ, m.pack([0, writer.ledger_id, 0, 99, 1 << 20]), timeout_s=DEADLINE_S)
    )
    pool_of(client).add_key(writer.ledger_id, writer.metadata.ledger_key)
    columns = [int(Flags.RECOVERY), [writer.ledger_id], [0], [100], 1, [len(frame.body)]]
    assert await add(pool_of(client).channel(new), columns, bytes(frame.body), pool_of(client)) == 0
    await rewrite(client, writer.ledger_id, fragments=(Fragment(0, (new,)),))
    return old, new


@pytest.mark.scenario(41)
async def test_a_reader_follows_an_ensemble_whose_old_bookie_has_collected_its_copy(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    reader, old, _ = await moved_ledger(cluster, client)
    Reads(cluster.storage(old), monkeypatch).then = deny
    assert [e.data async for e in reader.read()] == payloads()


@pytest.mark.scenario(41)
async def test_a_reader_follows_an_ensemble_whose_old_bookie_is_gone(cluster: InProcess) -> None:
    client = await cluster.client(read_timeout_s=NEVER_S)
    reader, old, new = await moved_ledger(cluster, client)
    await cluster.node(old).stop()
    async with asyncio.timeout(DEADLINE_S):
        assert [e.data async for e in reader.read()] == payloads()
    assert reader.metadata.fragments[0].bookies == (new,)


@pytest.mark.scenario(41)
async def test_an_entry_is_denied_on_fresh_metadata_alone(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's metadata server lags behind: a plain read gives the ensemble that was."""
    client, behind = await cluster.client(), await cluster.client()
    writer = await closed_ledger(client, ensemble_size=1, write_quorum=1)
    await lag_behind(cluster_of(behind).store, cluster_of(behind).catalog.path_of(writer.ledger_id), monkeypatch)
    reader = await behind.open_ledger(writer.ledger_id)
    old, _ = await move(client, writer)
    Reads(cluster.storage(old), monkeypatch).then = deny
    assert [e.data async for e in reader.read()] == payloads()


@pytest.mark.scenario(41)
async def test_no_entry_is_denied_while_the_metadata_cannot_be_read(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    reader, old, _ = await moved_ledger(cluster, client)
    Reads(cluster.storage(old), monkeypatch).then = deny
    store: Any = cluster_of(client).store
    store.call_timeout_s = 0.05
    store.suspend()
    with pytest.raises(bkpy.MetadataUnavailableError):
        [e async for e in reader.read()]
    store.resume()
    assert [e.data async for e in reader.read()] == payloads()


@pytest.mark.scenario(41)
async def test_a_denied_entry_of_a_deleted_ledger_is_told_as_that(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    writer = await closed_ledger(client)
    reader = await client.open_ledger(writer.ledger_id)
    for reads in watched(cluster, writer, monkeypatch).values():
        reads.then = deny
    await client.delete_ledger(writer.ledger_id)
    with pytest.raises(bkpy.NoSuchLedgerError):
        [e async for e in reader.read()]


# --- past last add confirmed ------------------------------------------------------------------------------------------


async def unconfirmed_ledger(client: Client, **sizes: int) -> tuple[LedgerWriter, bkpy.LedgerReader]:
    """An open ledger of 100 entries and a reader that knows of none."""
    writer = await client.create_ledger(**({"ack_quorum": 3} | sizes))
    reader = await client.open_ledger(writer.ledger_id)
    await writer.append_batch(payloads())
    return writer, reader


@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}], ids=str)
async def test_entries_past_last_add_confirmed_are_read_on_request(cluster: InProcess, sizes: dict[str, int]) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    writer, reader = await unconfirmed_ledger(client, **sizes)
    assert reader.last_add_confirmed == -1
    with pytest.raises(bkpy.NoSuchEntryError):
        [e async for e in reader.read(0, 99)]
    assert [e.data async for e in reader.read_unconfirmed(0, 99)] == payloads()
    assert [e.entry_id async for e in reader.read_unconfirmed(90, 95)] == list(range(90, 96))
    assert reader.last_add_confirmed == -1
    assert await writer.append(b"nobody was disturbed") == 100
    await writer.close()


@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 5}], ids=str)
async def test_reading_unconfirmed_ends_with_an_error_at_the_first_entry_that_nobody_has(
    cluster: InProcess, sizes: dict[str, int]
) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    _, reader = await unconfirmed_ledger(client, **sizes)
    found: list[bytes] = []
    with pytest.raises(bkpy.NoSuchEntryError) as raised:
        await collect(reader.read_unconfirmed(0, 250), found)
    assert found == payloads()
    assert raised.value.entry_id == 100
    with pytest.raises(bkpy.ConfigError):
        [e async for e in reader.read_unconfirmed(-1, 5)]


async def test_reading_unconfirmed_stops_at_the_end_of_a_ledger_that_was_closed_meanwhile(cluster: InProcess) -> None:
    """Recovery closed it before entries that bookies still hold."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer, reader = await unconfirmed_ledger(client)
    await rewrite(client, writer.ledger_id, state=LedgerState.CLOSED, last_entry=49, length=1000)
    with pytest.raises(bkpy.NoSuchEntryError, match="49"):
        [e async for e in reader.read_unconfirmed(0, 99)]
    assert [e.data async for e in reader.read_unconfirmed(0, 49)] == payloads()[:50]
    assert [e.data async for e in reader.read()] == payloads()[:50]


async def test_an_entry_that_is_in_metadata_of_a_newer_fragment_is_found(cluster: InProcess) -> None:
    """The reader was opened before the ensemble changed."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append_batch(payloads(10))
    reader = await client.open_ledger(writer.ledger_id)
    old = writer.metadata.fragments[0].bookies[0]
    new = next(i for i in "abcde" if i != old)
    await rewrite(client, writer.ledger_id, fragments=(Fragment(0, (old,)), Fragment(10, (new,))))
    record = bytearray()
    parts: list[Any] = []
    RecordCodec(writer.ledger_id).encode_run(parts, [b"new"], 10, 9, 100)
    for part in parts:
        record += part
    columns = [0, [writer.ledger_id], [10], [1], 1, [len(record)]]
    assert await add(pool_of(client).channel(new), columns, bytes(record), pool_of(client)) == 0
    assert [e.data async for e in reader.read_unconfirmed(5, 10)] == [*payloads(10)[5:], b"new"]
