"""A client of a BookKeeper cluster: reading, tailing, recovering, and what bookies may answer."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import ROOT, contents, runtime_here
from tests.unit.client.bookkeeper.their_bookies import TheirCluster, TheirLedger

import bkpy
from bkpy.client.bookkeeper import dialect
from bkpy.client.bookkeeper.dialect import RANGE_ENTRIES_MAX
from bkpy.client.client import log_parts, open_client, replication_context
from bkpy.config.client import ClientSettings, client_settings
from bkpy.errors import (
    BookieUnavailableError,
    ConfigError,
    DigestMismatchError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as b
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from tests.unit.client.bookkeeper.their_bookies import TheirBookie

PASSWORD = b"secret"


def reads(request: Any) -> bool:
    return isinstance(request, b.ReadEntryRequest)


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("striped", [False, True])
async def test_a_ledger_of_java_is_read(theirs: TheirCluster, digest_type: DigestType, striped: bool) -> None:
    payloads = theirs.write(
        7, 100, write_quorum=2 if striped else 3, digest_type=digest_type, password=PASSWORD, created_ms=5
    )
    client = await theirs.client()
    assert await contents(client, 7, PASSWORD) == payloads
    reader = await client.open_ledger(7, password=PASSWORD)
    assert [entry async for block in reader.read_blocks(10, 19) for entry in block.payloads()] == payloads[10:20]
    metadata = await client.ledger_metadata(7)
    assert (metadata.last_entry, metadata.length) == (99, sum(map(len, payloads)))
    assert [ledger_id async for ledger_id in client.list_ledgers()] == [7]


async def test_an_empty_ledger_has_no_entries(theirs: TheirCluster) -> None:
    theirs.write(7, 0)
    client = await theirs.client()
    assert await contents(client, 7) == []


async def test_a_wrong_password_is_refused(theirs: TheirCluster) -> None:
    theirs.write(7, 3, password=PASSWORD)
    client = await theirs.client()
    for wrong in (b"", b"other"):
        with pytest.raises(UnauthorizedError):
            await client.open_ledger(7, password=wrong)
        with pytest.raises(UnauthorizedError):
            await client.recover_ledger(7, password=wrong)
    with pytest.raises(NoSuchLedgerError):
        await client.open_ledger(8)


async def test_entries_of_any_size_are_read_in_few_bytes_at_a_time(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 300)
    client = await theirs.client(read_bytes=400, bookkeeper_reads_first=1, bookkeeper_reads_at_once=3)
    assert await contents(client, 7) == payloads


@pytest.mark.thorough
async def test_a_range_of_small_entries_is_not_more_requests_than_its_time_is_enough_for(theirs: TheirCluster) -> None:
    theirs.write(7, 2 * RANGE_ENTRIES_MAX)
    reader = await (await theirs.client()).open_ledger(7)
    ranges = [len(block) async for block in reader.read_blocks()]
    assert sum(ranges) == 2 * RANGE_ENTRIES_MAX
    assert max(ranges) <= RANGE_ENTRIES_MAX


def test_ranges_are_short_whatever_the_settings_say() -> None:
    long, short = 5 * RANGE_ENTRIES_MAX, RANGE_ENTRIES_MAX // 5
    for given, used in ((long, RANGE_ENTRIES_MAX), (short, short)):
        settings = ClientSettings(read_entries_max=given, recovery_range_entries_max=given)
        bounded = dialect.with_short_ranges(settings)
        assert (bounded.read_entries_max, bounded.recovery_range_entries_max) == (used, used)


async def test_a_range_ends_with_its_time_however_slow_the_bookies_are(theirs: TheirCluster) -> None:
    """What they have answered until then is returned, and the rest is asked for anew."""
    theirs.write(7, 100)
    for bookie in theirs.bookies.values():
        bookie.seconds_each = 0.1
    client = await theirs.client(read_timeout_s=6, bookkeeper_reads_at_once=1)
    reader = await client.open_ledger(7)
    ranges = [len(block) async for block in reader.read_blocks()]
    assert sum(ranges) == 100
    assert 1 < max(ranges) < 10


@pytest.mark.parametrize("seconds_each", [0.03, 0.1, 1.0])
async def test_bookies_that_answer_one_read_after_the_other_are_read(theirs: TheirCluster, seconds_each: float) -> None:
    """A range has no more requests outstanding than the bookie answers in the range's time.

    What one range has seen of the bookie's pace holds for the first requests of the next.
    """
    payloads = theirs.write(7, 200)
    for bookie in theirs.bookies.values():
        bookie.seconds_each = seconds_each
    assert await contents(await theirs.client(), 7) == payloads


async def test_slow_bookies_of_a_large_write_quorum_are_read() -> None:
    """The time of a range is a part of what a reader gives each of the nine replicas."""
    cluster = TheirCluster()
    await cluster.start("abcdefghi")
    payloads = cluster.write(7, 40, names="abcdefghi", write_quorum=9, ack_quorum=5)
    for bookie in cluster.bookies.values():
        bookie.seconds_each = 0.1
    client = await cluster.client(read_timeout_s=9, bookkeeper_reads_at_once=1, prefetch_depth=1)
    assert await contents(client, 7) == payloads
    await cluster.stop()


async def test_a_read_without_an_answer_holds_back_no_entry_before_it(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 100)
    for bookie in theirs.bookies.values():
        bookie.answer_by = lambda request: None if reads(request) and request.entry_id == 50 else StatusCode.EOK
    blocks = (await (await theirs.client()).open_ledger(7)).read_blocks()
    assert (await anext(blocks)).payloads() == payloads[:50]
    with pytest.raises(BookieUnavailableError):
        await anext(blocks)


async def test_a_late_range_has_its_first_entry_and_no_answer_after_its_end(theirs: TheirCluster) -> None:
    """Entry 0 is answered when its range is late, and entry 50 when that range has ended without it."""
    payloads = theirs.write(7, 100)
    for bookie in theirs.bookies.values():
        bookie.delay_s = lambda request: 3.0 if reads(request) and request.entry_id in (0, 50) else 0.0
    reader = await (await theirs.client()).open_ledger(7)
    blocks = [block async for block in reader.read_blocks()]
    assert [payload for block in blocks for payload in block.payloads()] == payloads
    assert [(block.first_entry, len(block)) for block in blocks] == [(0, 50), (50, 50)]


async def test_quick_bookies_are_asked_for_many_entries_at_a_time(theirs: TheirCluster) -> None:
    """8 entries, and then 128 at a time: a thousand take nine times as long as one."""
    theirs.write(7, 1000)
    for bookie in theirs.bookies.values():
        bookie.delay_s = lambda request: 0.01 if reads(request) else 0.0
    reader = await (await theirs.client(prefetch_depth=1)).open_ledger(7)
    began = asyncio.get_running_loop().time()
    ranges = [len(block) async for block in reader.read_blocks()]
    assert ranges == [1000]
    assert asyncio.get_running_loop().time() - began < 0.13


@pytest.mark.thorough
async def test_a_recovery_has_its_time_for_few_requests_too(
    theirs: TheirCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "RANGE_ENTRIES_MAX", 20)
    theirs.write(7, 400, closed=False, at_once=True)
    for bookie in theirs.bookies.values():
        bookie.seconds_each = 0.01
    client = await theirs.client(read_timeout_s=1)
    assert (await client.recover_ledger(7)).last_add_confirmed == 399


@pytest.mark.thorough
@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.HMAC])
async def test_an_entry_that_v2_alone_has_a_frame_for_ends_no_connection(
    theirs: TheirCluster, digest_type: DigestType
) -> None:
    """A recovery can't write it back, but nothing else that the client does on these bookies may fail with it."""
    limit, codec = 10_000, EntryCodec(7, digest_type)
    client = await theirs.client(bookkeeper_frame_bytes_max=limit)
    for bookie in theirs.bookies.values():
        bookie.frame_bytes_max = limit
    theirs.write(8, 1, closed=False)
    await client.recover_ledger(8)  # now there is a connection to each
    connections = [set(bookie.connections) for bookie in theirs.bookies.values()]
    largest = limit - len(b"".join(p.encode_add(bytes(20), codec.encode(0, -1, 0, b""))))
    fits = []
    for less in range(0, 150, 3):
        theirs.write(1000 + less, 0, closed=False, digest_type=digest_type)
        entry = EntryCodec(1000 + less, digest_type).encode(0, -1, largest - less, bytes(largest - less))
        for bookie in theirs.bookies.values():
            bookie.ledgers[1000 + less] = TheirLedger(master_key(b""), {0: entry})
        try:
            fits.append((await client.recover_ledger(1000 + less)).last_add_confirmed == 0)
        except LedgerRecoveryError:
            fits.append(False)
    assert fits == sorted(fits)
    assert set(fits) == {False, True}
    assert [set(bookie.connections) for bookie in theirs.bookies.values()] == connections


async def test_a_client_forgets_a_ledger_with_its_last_reader(theirs: TheirCluster) -> None:
    theirs.write(7, 3)
    client = await theirs.client()
    first, second = await client.open_ledger(7), await client.open_ledger(7)
    del first
    gc.collect()
    assert len([entry async for entry in second.read()]) == 3
    del second
    gc.collect()
    assert len(await contents(client, 7)) == 3


# --- damage and failures --------------------------------------------------------------------------------------------


def damage(bookie: TheirBookie, ledger_id: int, entry_id: int) -> None:
    entry = bookie.ledgers[ledger_id].entries[entry_id]
    bookie.ledgers[ledger_id].entries[entry_id] = entry[:-1] + bytes([entry[-1] ^ 1])


@pytest.mark.thorough
@pytest.mark.parametrize("striped", [False, True])
async def test_another_bookie_has_what_one_has_damaged(theirs: TheirCluster, striped: bool) -> None:
    payloads = theirs.write(7, 60, write_quorum=2 if striped else 3)
    for number, name in enumerate("abc"):
        for entry_id in range(60):
            if entry_id % 3 == number and entry_id in theirs.bookies[name].ledgers[7].entries:
                damage(theirs.bookies[name], 7, entry_id)
    client = await theirs.client()
    assert await contents(client, 7) == payloads


async def test_what_all_have_damaged_is_no_entry(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 5)
    for bookie in theirs.bookies.values():
        damage(bookie, 7, 3)
    client = await theirs.client()
    reader = await client.open_ledger(7)
    assert [entry.data async for entry in reader.read(0, 2)] == payloads[:3]
    with pytest.raises(DigestMismatchError):
        await contents(client, 7)


async def test_another_entry_than_the_one_asked_for_is_damage(theirs: TheirCluster) -> None:
    theirs.write(7, 5)
    for bookie in theirs.bookies.values():
        bookie.ledgers[7].entries[3] = bookie.ledgers[7].entries[2]
    client = await theirs.client()
    with pytest.raises(DigestMismatchError):
        await contents(client, 7)


async def test_what_all_deny_is_missing(theirs: TheirCluster) -> None:
    theirs.write(7, 5)
    for bookie in theirs.bookies.values():
        del bookie.ledgers[7].entries[3]
    client = await theirs.client()
    with pytest.raises(NoSuchEntryError):
        await contents(client, 7)


@pytest.mark.parametrize("status", [s for s in StatusCode if s not in (StatusCode.EOK, StatusCode.EUA)] + [999])
async def test_only_enoentry_and_enoledger_deny_an_entry(theirs: TheirCluster, status: Any) -> None:
    theirs.write(7, 5)
    for bookie in theirs.bookies.values():
        bookie.answer_by = lambda request: status if reads(request) else StatusCode.EOK
    client = await theirs.client(read_timeout_s=0.5)
    with pytest.raises(bkpy.BookKeeperError) as raised:
        await contents(client, 7)
    denied = isinstance(raised.value, NoSuchEntryError)
    assert denied == (status in (StatusCode.ENOENTRY, StatusCode.ENOLEDGER))


async def test_a_bookie_that_wants_authentication_is_named(theirs: TheirCluster) -> None:
    theirs.write(7, 5)
    theirs.write(8, 5, closed=False)
    for bookie in theirs.bookies.values():
        bookie.answer_by = lambda request: StatusCode.EUA
    client = await theirs.client()
    with pytest.raises(UnauthorizedError, match="SASL"):
        await contents(client, 7)
    with pytest.raises(LedgerRecoveryError, match="SASL"):
        await client.recover_ledger(8)
    writer = await client.create_ledger()
    with pytest.raises(BookieUnavailableError, match="SASL"):
        await writer.append(b"x")


async def test_readers_go_on_while_bookies_die(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 200)
    client = await theirs.client(read_bytes=1000)
    reader = await client.open_ledger(7)
    found = []
    async for entry in reader.read():
        found.append(entry.data)
        if len(found) == 50:
            theirs.bookies["a"].kill()
        if len(found) == 100:
            theirs.bookies["b"].answer_by = lambda request: None
    assert found == payloads


async def test_a_reply_that_is_none_ends_the_connection_and_no_reader(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 20)

    class Nonsense:
        """A bookie's transport that writes what no client reads."""

        def __init__(self, of: Any) -> None:
            self._of = of

        def writelines(self, buffers: Any) -> None:
            self._of.write(b"\0\0\0\4\2\1\0\0")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._of, name)

    bookie = theirs.bookies["a"]
    client = await theirs.client()

    def answer_by(request: Any) -> StatusCode:
        for connection in bookie.connections:
            connection.transport = Nonsense(connection.transport)  # type: ignore[assignment]
        return StatusCode.EOK

    bookie.answer_by = answer_by
    for _ in range(3):
        assert await contents(client, 7) == payloads


@pytest.mark.parametrize("seed", range(12))
async def test_no_answer_makes_a_reader_return_what_nobody_wrote(theirs: TheirCluster, seed: int) -> None:
    rng = random.Random(seed)
    payloads = theirs.write(7, 40, closed=False)

    def mangled(frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(changed))
            changed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        return bytes(changed)

    theirs.bookies["a"].mangle = mangled
    client = await theirs.client(read_timeout_s=1)
    for _ in range(3):
        reader = await client.open_ledger(7)
        assert reader.last_add_confirmed == 38
        assert [entry.data async for entry in reader.read()] == payloads[:39]
    reader = await client.recover_ledger(7)
    assert [entry.data async for entry in reader.read()] == payloads


# --- last add confirmed and tailing ---------------------------------------------------------------------------------


def append(theirs: TheirCluster, ledger_id: int, entry_id: int, data: bytes, *, lac: int) -> None:
    entry = EntryCodec(ledger_id, DigestType.CRC32C).encode(entry_id, lac, 1000, data)
    for bookie in theirs.bookies.values():
        bookie.ledgers[ledger_id].entries[entry_id] = entry
        bookie.ledgers[ledger_id].raise_lac(lac)


def publish(theirs: TheirCluster, ledger_id: int, lac: int) -> None:
    for bookie in theirs.bookies.values():
        bookie.ledgers[ledger_id].explicit = EntryCodec(ledger_id, DigestType.CRC32C).encode_lac(lac)
        bookie.ledgers[ledger_id].raise_lac(lac)


async def test_last_add_confirmed_is_what_entries_and_the_writer_prove(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 10, closed=False)
    client = await theirs.client()
    reader = await client.open_ledger(7)
    assert reader.last_add_confirmed == 8  # what the last entry proves
    publish(theirs, 7, 9)
    assert await reader.read_last_add_confirmed() == 9
    assert [entry.data async for entry in reader.read()] == payloads


async def test_a_damaged_last_add_confirmed_proves_nothing(theirs: TheirCluster) -> None:
    theirs.write(7, 10, closed=False)
    for bookie in theirs.bookies.values():
        body = EntryCodec(7, DigestType.CRC32C).encode_lac(500)
        bookie.ledgers[7].explicit = body[:-1] + bytes([body[-1] ^ 1])
    client = await theirs.client()
    with pytest.raises(BookieUnavailableError, match="too few"):
        await client.open_ledger(7)


async def test_a_tail_follows_a_writer_to_the_end(theirs: TheirCluster) -> None:
    payloads = theirs.write(7, 3, closed=False)
    client, found = await theirs.client(), []
    reader = await client.open_ledger(7)

    async def follow() -> None:
        async for entry in reader.tail():
            found.append(entry.data)

    following = asyncio.ensure_future(follow())
    while len(found) < 2:
        await asyncio.sleep(0.01)
    asked = sum(len(bookie.asked) for bookie in theirs.bookies.values())
    await asyncio.sleep(5)  # of virtual time: the bookies hold the polls meanwhile
    assert sum(len(bookie.asked) for bookie in theirs.bookies.values()) <= asked + 6
    append(theirs, 7, 3, b"new", lac=2)
    append(theirs, 7, 4, b"newer", lac=3)
    while len(found) < 4:
        await asyncio.sleep(0.01)
    publish(theirs, 7, 4)
    while len(found) < 5:
        await asyncio.sleep(0.01)
    recovering = await theirs.client()
    await recovering.recover_ledger(7)
    await following
    assert found == [*payloads, b"new", b"newer"]


async def test_a_tail_of_a_ledger_without_entries_waits(theirs: TheirCluster) -> None:
    theirs.write(7, 0, closed=False)
    client = await theirs.client()
    reader = await client.open_ledger(7)
    following = asyncio.ensure_future(anext(aiter(reader.tail())))
    await asyncio.sleep(2)
    assert sum(len(bookie.asked) for bookie in theirs.bookies.values()) < 200
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


# --- recovery -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("format_version", [2, 3])
async def test_a_ledger_is_recovered(
    theirs: TheirCluster, digest_type: DigestType, striped: bool, format_version: int
) -> None:
    quorum = 2 if striped else 3
    payloads = theirs.write(
        7,
        40,
        write_quorum=quorum,
        digest_type=digest_type,
        password=PASSWORD,
        closed=False,
        unacknowledged=1,
        format_version=format_version,
    )
    client = await theirs.client()
    reader = await client.recover_ledger(7, password=PASSWORD)
    assert reader.closed
    assert reader.last_add_confirmed in (39, 40)
    found = [entry.data async for entry in reader.read()]
    assert found[:40] == payloads
    assert reader.length == sum(map(len, found))
    metadata = await client.ledger_metadata(7)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry == len(found) - 1
    assert metadata.format_version == format_version  # type: ignore[attr-defined]
    # What it ends with is on its whole write set, with a digest that Java verifies, and the bookies are fenced.
    codec = EntryCodec(7, digest_type, PASSWORD)
    last = len(found) - 1
    for k in range(quorum):
        bookie = theirs.bookies["abc"[(last + k) % 3]]
        assert bytes(codec.decode(bookie.ledgers[7].entries[last]).data) == found[last]
    assert sum(bookie.ledgers[7].fenced for bookie in theirs.bookies.values()) >= 2
    again = await (await theirs.client()).recover_ledger(7, password=PASSWORD)
    assert again.last_add_confirmed == last


@pytest.mark.parametrize("striped", [False, True])
async def test_a_recovery_asks_for_few_entries_behind_the_end(theirs: TheirCluster, striped: bool) -> None:
    theirs.write(7, 400, write_quorum=2 if striped else 3, closed=False, at_once=True)
    client = await theirs.client()
    assert (await client.recover_ledger(7)).last_add_confirmed == 399
    asked = [request for bookie in theirs.bookies.values() for request in bookie.asked if reads(request)]
    assert sum(request.entry_id > 399 for request in asked) <= 400


async def test_recovery_ends_no_ledger_by_what_bookies_cannot_tell(theirs: TheirCluster) -> None:
    theirs.write(7, 10, closed=False)
    for name in "bc":
        theirs.bookies[name].answer_by = lambda request: (
            StatusCode.EUNKNOWNLEDGERSTATE if reads(request) and request.entry_id >= 10 else StatusCode.EOK
        )
    client = await theirs.client(read_timeout_s=1)
    with pytest.raises(LedgerRecoveryError):
        await client.recover_ledger(7)
    assert (await client.ledger_metadata(7)).state is LedgerState.IN_RECOVERY
    for name in "bc":
        theirs.bookies[name].answer_by = lambda request: StatusCode.EOK
    assert (await client.recover_ledger(7)).last_add_confirmed == 9


async def test_a_bookie_that_is_not_fenced_does_not_count(theirs: TheirCluster) -> None:
    theirs.write(7, 10, closed=False)
    for name in "bc":
        theirs.bookies[name].answer_by = lambda request: (
            StatusCode.EIO if reads(request) and request.fence else StatusCode.EOK
        )
    client = await theirs.client(read_timeout_s=1)
    with pytest.raises(LedgerRecoveryError, match="fenced"):
        await client.recover_ledger(7)


async def test_no_ledger_ends_by_denials_of_something_else(theirs: TheirCluster) -> None:
    theirs.write(7, 10, closed=False, at_once=True)

    def mangle(frame: bytes) -> bytes:
        found = b.decode_response(frame[frames.PREFIX_BYTES :])
        if not isinstance(found.response, b.ReadEntryResponse) or found.response.entry_id < 0:
            return frame
        denial = b.ReadEntryResponse(StatusCode.ENOENTRY, 7, found.response.entry_id + 1)
        return b"".join(b.encode_response(b.RequestHeader(b.Operation.READ_ENTRY, found.transaction_id), denial))

    for bookie in theirs.bookies.values():
        bookie.mangle = mangle
    client = await theirs.client()
    with pytest.raises(LedgerRecoveryError):
        await client.recover_ledger(7)


async def test_an_empty_ledger_is_recovered(theirs: TheirCluster) -> None:
    theirs.write(7, 0, closed=False)  # no bookie knows it
    client = await theirs.client()
    reader = await client.recover_ledger(7)
    assert (reader.last_add_confirmed, reader.length) == (-1, 0)


async def test_the_length_is_not_that_of_an_explicit_last_add_confirmed(theirs: TheirCluster) -> None:
    """It has none."""
    payloads = theirs.write(7, 10, closed=False)
    publish(theirs, 7, 9)
    client = await theirs.client()
    reader = await client.recover_ledger(7)
    assert reader.last_add_confirmed == 9
    assert reader.length == sum(map(len, payloads))


# --- what isn't there -----------------------------------------------------------------------------------------------


async def test_what_is_not_offered_is_refused_in_one_line(theirs: TheirCluster) -> None:
    theirs.write(7, 3)
    client = await theirs.client()
    before = dict.fromkeys(theirs.tree.paths)
    calls: list[Any] = [
        client.create_ledger(caller_ids=True),
        client.create_ledger(deferred_sync=True),
        client.open_log("orders", create=True),
        client.read_log("orders"),
        client.delete_log("orders"),
        bkpy.AdminClient(client).replication_status(),
        bkpy.AdminClient(client).auditor(),
        bkpy.AdminClient(client).close_ledger(7),
        bkpy.AdminClient(client).describe_log("orders"),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="cluster of Apache BookKeeper"):
            await call
    for listing in (client.list_logs, bkpy.AdminClient(client).list_under_replicated):
        with pytest.raises(ConfigError, match="cluster of Apache BookKeeper"):
            await anext(aiter(listing()))
    for part in (replication_context, log_parts):
        with pytest.raises(ConfigError, match="cluster of Apache BookKeeper"):
            part(client)
    assert dict.fromkeys(theirs.tree.paths) == before


async def test_what_does_not_ask_for_it_gets_no_such_client(theirs: TheirCluster) -> None:
    with pytest.raises(ConfigError, match="is one of Apache BookKeeper"):
        await open_client(theirs.tree.session(), ROOT, runtime_here(), client_settings())


async def test_an_administrator_finds_ledgers_and_asks_what_bookies_have(theirs: TheirCluster) -> None:
    theirs.write(7, 3)
    theirs.write(8, 0, closed=False)
    client = await theirs.client()
    admin = bkpy.AdminClient(client)
    assert [ledger.ledger_id async for ledger in admin.find_ledgers(state="CLOSED")] == [7]
    assert await admin.last_entries(await client.ledger_metadata(7)) == {"a": 2, "b": 2, "c": 2}
    assert await admin.last_entries(await client.ledger_metadata(8)) == {"a": -1, "b": -1, "c": -1}
