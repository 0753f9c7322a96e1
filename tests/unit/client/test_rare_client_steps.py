"""What seldom happens to a client's connections, reads and writes ends in an error that says so, or harms nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import cluster_of, free_slots, pool_of
from tests.in_process import contents, rewrite, runtime_here
from tests.unit.client.write.test_absent_bookies import taken_in, without
from tests.waiting import eventually

import bkpy
from bkpy.client.arguments import LEDGERS_MAX, PASSWORD_BYTES_MAX, format_ledger_ids, parse_ledger_ids
from bkpy.client.bookies.dialling import Dialler
from bkpy.client.read.hedged_read import HedgedRead
from bkpy.client.read.missing_entry import MissKind
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ConfigError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    ProtocolError,
    TlsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.outcome import NotDone
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX, Fragment
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.records import walk

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client

READ_TIMEOUT_S = 30.0


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is none"),
        ("7,x", "'x' is none"),
        ("9-7", "the range 9-7 ends before it begins"),
        (str(LEDGER_ID_MAX + 1), "is too large: a ledger id is at most"),
        (f"0-{LEDGERS_MAX}", f"at most {LEDGERS_MAX} ledgers"),
        (f"1,2-{LEDGERS_MAX + 1}", f"at most {LEDGERS_MAX} ledgers"),
    ],
)
def test_text_that_names_no_ledgers_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_ledger_ids(text)


@pytest.mark.parametrize("text", ["7", "0-3", "1,3-5,9", f"{LEDGER_ID_MAX}"])
def test_ids_come_back_from_the_text_that_they_were_written_as(text: str) -> None:
    assert format_ledger_ids(parse_ledger_ids(text)) == text
    assert parse_ledger_ids(f"{text}, {text}") == parse_ledger_ids(text)


async def test_what_no_ledger_can_have_is_refused_and_what_is_not_there_is_said(cluster: InProcess) -> None:
    client = await cluster.client()
    for wrong, words in (
        ({"digest": "md5"}, "md5"),
        ({"password": bytes(PASSWORD_BYTES_MAX + 1)}, "password must have at most"),
        ({"custom_metadata": {"n": 1}}, "custom metadata maps text to bytes; 'n' does not"),
    ):
        with pytest.raises(ConfigError, match=words):
            await client.create_ledger(**wrong)  # type: ignore[arg-type]
    with pytest.raises(NoSuchLedgerError, match="there is no such ledger"):
        await client.delete_ledger(12345)
    assert client.layout == "long-hierarchical"


def test_a_setting_that_has_become_internal_is_told_to_whoever_gave_it() -> None:
    with pytest.warns(DeprecationWarning, match="setting close_linger_s has become internal") as told:
        bkpy.connect("zk://127.0.0.1:1/x", close_linger_s=1.0).close()
    assert told[0].filename == __file__


# --- connections ------------------------------------------------------------------------------------------------------


async def test_a_connection_that_dies_of_an_error_nobody_expects_is_made_again_by_the_next_use(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    channel = pool_of(await cluster.client()).channel("a")
    with (
        patch.object(Dialler, "dial", side_effect=KeyError("unexpected")),
        pytest.raises(BookieUnavailableError, match=r"the connection failed: KeyError\('unexpected'\)"),
    ):
        await channel.connect()
    assert "the connection to bookie a failed" in caplog.text
    assert not channel.up
    await channel.connect()
    assert channel.up


# --- reads ------------------------------------------------------------------------------------------------------------


async def written(client: Client, count: int = 3, **sizes: Any) -> bkpy.LedgerWriter:
    async with await client.create_ledger(ack_quorum=3, **sizes) as writer:
        await writer.append_batch([b"%d" % i for i in range(count)])
    return writer


def hedged(client: Client, writer: bkpy.LedgerWriter, order: str, judge: Any) -> HedgedRead[list[int]]:
    head = m.pack([0, writer.ledger_id, 0, 10, 1 << 20])
    return HedgedRead(
        pool_of(client), runtime_here(), order=list(order), head=head, judge=judge, timeout_s=READ_TIMEOUT_S
    )


def ids(frame: Any, _: str) -> list[int]:
    return [header.entry_id for header in walk(frame.body)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TlsError("no CA signed it"), MissKind.UNTRUSTED),
        (UnauthorizedError("another key"), MissKind.FORBIDDEN),
        (BookieUnavailableError("gone"), MissKind.UNAVAILABLE),
        (MetadataUnavailableError("away"), MissKind.UNAVAILABLE),
        (TooManyRequestsError("busy"), MissKind.UNAVAILABLE),
        (ProtocolError("what?"), MissKind.REFUSED),
        (BookKeeperError("limbo"), MissKind.UNKNOWN),
    ],
)
async def test_whatever_one_replica_answers_the_next_one_is_asked(
    cluster: InProcess, error: BookKeeperError, kind: MissKind
) -> None:
    client = await cluster.client()
    writer = await written(client)

    def judge(frame: Any, bookie_id: str) -> list[int]:
        if bookie_id == "a":
            raise error
        return ids(frame, bookie_id)

    outcome = await hedged(client, writer, "ab", judge).run()
    assert outcome.good == [0, 1, 2]
    assert (outcome.answers["a"].kind, outcome.answers["a"].text) == (kind, error.message)
    none = await hedged(client, writer, "a", judge).run()
    assert (none.good, none.answers["a"].kind) == (None, kind)


async def test_a_client_that_is_overloaded_asks_no_second_replica(cluster: InProcess) -> None:
    client = await cluster.client(calls_in_flight_max=1)
    writer = await written(client)
    pool = pool_of(client)
    cluster.hang("a")
    await pool.channel("b").slots.acquire()
    reading = asyncio.create_task(hedged(client, writer, "ab", ids).run())
    await asyncio.sleep(READ_TIMEOUT_S / 2)
    assert pool.latency.speculative == 0
    pool.channel("b").slots.release()
    assert (await reading).good == [0, 1, 2]
    assert pool.latency.speculative == 1


async def test_a_replica_without_a_free_slot_is_passed_over(cluster: InProcess) -> None:
    """What has the slots of a hung bookie may wait for longer than any read: this one would, too."""
    client = await cluster.client(calls_in_flight_max=1)
    writer = await written(client)
    await pool_of(client).channel("a").slots.acquire()
    async with asyncio.timeout(pool_of(client).latency.late_s):
        assert (await hedged(client, writer, "ab", ids).run()).good == [0, 1, 2]


async def test_a_read_that_waits_for_a_slot_waits_for_each_replica_in_turn(cluster: InProcess) -> None:
    client = await cluster.client(calls_in_flight_max=1)
    writer = await written(client)
    pool = pool_of(client)
    for name in "ab":
        await pool.channel(name).slots.acquire()
    reading = asyncio.create_task(hedged(client, writer, "ab", ids).run())
    await asyncio.sleep(READ_TIMEOUT_S)  # the client is overloaded: its reads wait for longer than a bookie may
    assert not reading.done()
    pool.channel("b").slots.release()
    async with asyncio.timeout(2 * READ_TIMEOUT_S):
        assert (await reading).good == [0, 1, 2]
    assert free_slots(pool.channel("b")) == 1


async def test_a_part_of_a_block_is_what_lies_in_it(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await written(client, 10)
    reader = await client.open_ledger(writer.ledger_id)
    (block,) = [block async for block in reader.read_blocks(2, 8)]
    for first, last in ((2, 8), (0, 99), (3, 5), (2, 2), (8, 20), (0, 2)):
        part = block.slice(first, last)
        expected = range(max(2, first), min(8, last) + 1)
        assert [(entry.entry_id, entry.data) for entry in part] == [(i, b"%d" % i) for i in expected]
    assert block.slice(0, 99) is block
    assert [entry.length for entry in block] == [1] * 7


# --- writes -----------------------------------------------------------------------------------------------------------


async def test_a_writer_ends_where_somebody_has_moved_what_it_has_written(five: InProcess) -> None:
    """What was acknowledged must be where it was: nobody but the writer may say where an open ledger's entries are."""
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger()
    assert await writer.append(b"0") == 0
    a, b, c = writer.ensemble
    spare = next(name for name in "abcde" if name not in writer.ensemble)
    await rewrite(other, writer.ledger_id, fragments=(Fragment(0, (a, b, spare)),))
    five.kill(c)

    async def append_on() -> None:
        for _ in range(1000):
            await writer.append(b"more")

    with pytest.raises(MetadataConflictError, match="another client has changed the bookies of entries") as conflict:
        await append_on()
    assert conflict.value.outcome_unknown
    assert not writer.usable


@pytest.mark.parametrize("how", ["hung", "fenced"])
async def test_closing_ends_a_ledger_before_what_nobody_acknowledged(cluster: InProcess, how: str) -> None:
    client, other = await cluster.client(add_quorum_timeout_s=2.0, add_timeout_s=1.0), await cluster.client()
    writer = await client.create_ledger()
    assert await writer.append(b"0") == 0
    if how == "fenced":
        await other.recover_ledger(writer.ledger_id)
    else:
        for name in "abc":
            cluster.hang(name)
    late = writer.append_nowait(b"1")
    if how == "fenced":
        with pytest.raises(LedgerFencedError):
            await writer.close()
    else:
        await writer.close()
        for name in "abc":
            await cluster.restart(name)
    assert isinstance(late.exception(), BookKeeperError)
    assert await contents(other, writer.ledger_id) == [b"0"]


async def test_a_force_hears_of_a_fence(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"0")
    assert await writer.force() == 0
    await other.recover_ledger(writer.ledger_id)
    for _ in range(2):
        with pytest.raises(LedgerFencedError):
            await writer.force()
    assert not writer.usable


async def test_a_force_of_a_ledger_that_a_bookie_does_not_know_is_its_error(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"0")
    channel = pool_of(client).channel(writer.ensemble[0])
    call = channel.call_as_owner

    async def elsewhere(op: int, head: bytes, **given: Any) -> Any:
        return await call(op, m.pack([1 << 40]), **given)

    with patch.object(channel, "call_as_owner", elsewhere), pytest.raises(BookKeeperError) as refused:
        await writer.force()
    assert not refused.value.outcome_unknown or writer.usable
    assert await writer.force() == 0
    await writer.close()


async def test_while_the_store_is_away_the_bookies_that_are_left_have_to_do(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    lost = writer.ensemble[0]
    session_of(client).suspend()
    five.kill(lost)
    for i in range(1, 20):
        await writer.append(b"%d" % i)
    assert lost in writer.ensemble
    session_of(client).resume()
    await eventually(lambda: lost not in writer.ensemble)
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(20)]


def session_of(client: Client) -> MemorySession:
    store = cluster_of(client).store
    assert isinstance(store, MemorySession)
    return store


@pytest.mark.parametrize("abandoned", [False, True])
async def test_metadata_that_somebody_has_changed_are_read_when_the_store_is_back_unless_the_writer_has_ended(
    five: InProcess, abandoned: bool
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    spare = next(name for name in "abcde" if name not in first)
    await rewrite(other, writer.ledger_id, fragments=(Fragment(0, first), Fragment(1, (spare, *first[1:]))))
    read, tries = LedgerCatalog.read, 0

    async def away(catalog: LedgerCatalog, ledger_id: int, **given: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 5:
            raise MetadataUnavailableError("away")
        return await read(catalog, ledger_id, **given)

    with patch.object(LedgerCatalog, "read", away):
        five.kill(first[0])
        appending = asyncio.create_task(writer.append(b"1"))
        await eventually(lambda: tries)
        if abandoned:
            writer.abandon()
            with pytest.raises(BookKeeperError):
                await appending
            await asyncio.sleep(1.0)
            assert tries <= 5
        else:
            assert await appending == 1
            assert writer.ensemble == (spare, *first[1:])
            await writer.close()


@pytest.mark.parametrize("answer", [NotDone(MetadataUnavailableError("away")), UnauthorizedError("not allowed")])
async def test_a_bookie_is_taken_in_though_that_can_not_be_recorded_at_once(
    cluster: InProcess, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    client = await without(cluster, "c")
    writer = await client.create_ledger()
    await writer.append(b"0")
    real, answers = UnderreplicationQueue.taken_in, [answer] * 3

    async def troubled(queue: UnderreplicationQueue, *given: Any) -> Any:
        if answers:
            found = answers.pop()
            if isinstance(found, BaseException):
                raise found
            return found
        return await real(queue, *given)

    with patch.object(UnderreplicationQueue, "taken_in", troubled):
        await cluster.start_node("c")
        await eventually(lambda: not writer.absent)
        assert await writer.append(b"1") == 1
        if isinstance(answer, NotDone):
            await taken_in(client, writer, 1)
        else:
            await eventually(lambda: "failed to update its under-replication record: not allowed" in caplog.text)
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1"]


@pytest.mark.parametrize("answer", [NotDone(MetadataUnavailableError("away")), UnauthorizedError("not allowed")])
async def test_a_ledger_is_closed_though_nobody_can_be_told_of_missing_copies(
    cluster: InProcess, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    lost = writer.ensemble[0]
    cluster.kill(lost)
    await writer.append(b"1")

    async def troubled(*_: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    with patch.object(UnderreplicationQueue, "add", troubled):
        await writer.close()
    assert f"ledger {writer.ledger_id}: failed to mark it under-replicated on ['{lost}']" in caplog.text
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 1
