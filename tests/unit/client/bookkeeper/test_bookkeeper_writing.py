"""Writing to a BookKeeper cluster: what its bookies and its metadata have afterwards, and what ends a writer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.in_process import ROOT, contents
from tests.unit.client.bookkeeper.their_bookies import TheirCluster

from bkpy.errors import BookKeeperError, ConfigError, FrameTooLargeError, LedgerFencedError, NoSuchLedgerError
from bkpy.metadata.bookkeeper.layout import HYBRID
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.ledger_metadata import DIGEST_NAMES, BookKeeperLedgerMetadata
from bkpy.protocol.bookkeeper.messages import AddEntryRequest
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy import LedgerWriter
    from bkpy.buffers import Bytes

    Lie = Callable[[m.RequestHeader, m.AddEntryResponse], list[Bytes]]

PASSWORD = b"secret"
PAYLOADS = [f"entry {n}".encode() * (n % 7) for n in range(120)]


@pytest.fixture
async def five() -> AsyncIterator[TheirCluster]:
    cluster = TheirCluster()
    await cluster.start("abcde")
    yield cluster
    await cluster.stop()


async def stored(theirs: TheirCluster, ledger_id: int) -> BookKeeperLedgerMetadata:
    value, _ = await theirs.tree.session().get(HYBRID.path_of(ROOT, ledger_id))
    return BookKeeperLedgerMetadata.decode(ledger_id, value)


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("striped", [False, True])
async def test_what_is_written_is_as_java_writes_it(
    theirs: TheirCluster, digest_type: DigestType, striped: bool
) -> None:
    client = await theirs.client()
    writer = await client.create_ledger(
        write_quorum=2 if striped else 3,
        digest=DIGEST_NAMES[digest_type],
        password=PASSWORD,
        custom_metadata={"who": b"me"},
    )
    assert await writer.append(PAYLOADS[0]) == 0
    assert (await writer.append_batch(PAYLOADS[1:60]))[-1] == 59
    await asyncio.gather(*map(writer.append, PAYLOADS[60:]))
    await writer.close()
    metadata = await stored(theirs, writer.ledger_id)
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, len(PAYLOADS) - 1)
    assert metadata.length == sum(map(len, PAYLOADS))
    assert (metadata.password, metadata.custom_metadata, metadata.format_version) == (PASSWORD, {"who": b"me"}, 3)
    codec, bookies = EntryCodec(writer.ledger_id, digest_type, PASSWORD), metadata.fragments[0].bookies
    length = 0
    for n, payload in enumerate(PAYLOADS):
        length += len(payload)
        for k in range(metadata.write_quorum):
            ledger = theirs.bookies[bookies[(n + k) % 3]].ledgers[writer.ledger_id]
            assert ledger.key == master_key(PASSWORD)
            entry = codec.decode(ledger.entries[n])
            assert (entry.entry_id, entry.length, bytes(entry.data)) == (n, length, payload)
            assert entry.last_add_confirmed < n
    assert await contents(await theirs.client(), writer.ledger_id, PASSWORD) == PAYLOADS


async def test_no_entry_is_acknowledged_that_one_bookie_keeps_waiting(theirs: TheirCluster) -> None:
    for bookie in theirs.bookies.values():
        bookie.answer_by = lambda request: (
            None if isinstance(request, AddEntryRequest) and request.entry_id == 7 else StatusCode.EOK
        )
    client = await theirs.client()
    writer = await client.create_ledger()
    appended = asyncio.ensure_future(writer.append_batch(PAYLOADS[:20]))
    await asyncio.sleep(1)
    assert not appended.done()
    writer.abandon()
    await asyncio.gather(appended, return_exceptions=True)


async def test_a_writer_that_pauses_publishes_its_last_entry(theirs: TheirCluster) -> None:
    client = await theirs.client(explicit_lac_interval_s=0.1)
    writer = await client.create_ledger()
    await writer.append(b"only")
    reader = await (await theirs.client()).open_ledger(writer.ledger_id)
    while await reader.read_last_add_confirmed() < 0:
        await asyncio.sleep(0.05)
    assert [entry.data async for entry in reader.read()] == [b"only"]
    await writer.close()


async def replaced(theirs: TheirCluster, writer: LedgerWriter, bookie_id: str) -> BookKeeperLedgerMetadata:
    """Append the rest until another bookie is in its place, and close."""
    await writer.append_batch(PAYLOADS[40:])
    while bookie_id in (await stored(theirs, writer.ledger_id)).fragments[-1].bookies:
        await asyncio.sleep(0.01)
    await writer.close()
    return await stored(theirs, writer.ledger_id)


async def test_a_bookie_that_dies_is_replaced(five: TheirCluster) -> None:
    client = await five.client()
    writer = await client.create_ledger()
    await writer.append_batch(PAYLOADS[:40])
    gone = (await stored(five, writer.ledger_id)).fragments[0].bookies[1]
    five.bookies[gone].kill()
    metadata = await replaced(five, writer, gone)
    assert len(metadata.fragments) == 2
    assert metadata.fragments[1].first_entry >= 40
    assert await contents(await five.client(), writer.ledger_id) == PAYLOADS


@pytest.mark.parametrize("status", [StatusCode.EREADONLY, StatusCode.EUA, StatusCode.EIO])
async def test_a_bookie_that_refuses_is_replaced(five: TheirCluster, status: StatusCode) -> None:
    client = await five.client()
    writer = await client.create_ledger()
    await writer.append_batch(PAYLOADS[:40])
    refusing = (await stored(five, writer.ledger_id)).fragments[0].bookies[1]
    five.bookies[refusing].answer_by = lambda request: status
    metadata = await replaced(five, writer, refusing)
    assert refusing in metadata.fragments[0].bookies
    assert [node for node in five.tree.paths if "underreplication" in node] == []  # bkpy's records are not BookKeeper's
    assert await contents(await five.client(), writer.ledger_id) == PAYLOADS


async def test_a_recovery_by_somebody_else_fences_the_writer(theirs: TheirCluster) -> None:
    client = await theirs.client()
    writer = await client.create_ledger()
    await writer.append_batch(PAYLOADS)
    reader = await (await theirs.client()).recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == len(PAYLOADS) - 1
    with pytest.raises(LedgerFencedError):
        await writer.append(b"late")
    writer.abandon()
    assert await contents(client, writer.ledger_id) == PAYLOADS


async def test_an_entry_that_no_frame_can_hold_is_refused(theirs: TheirCluster) -> None:
    client = await theirs.client(bookkeeper_frame_bytes_max=10_000)
    writer = await client.create_ledger()
    with pytest.raises(FrameTooLargeError):
        await writer.append(bytes(10_000))
    assert await writer.append(bytes(9_000)) == 0
    await writer.close()


async def test_a_digest_that_bookkeeper_lacks_is_refused(theirs: TheirCluster) -> None:
    client = await theirs.client()
    with pytest.raises(ConfigError, match="hmac-sha1"):
        await client.create_ledger(digest="hmac-sha256")


async def test_a_ledger_is_deleted(theirs: TheirCluster) -> None:
    theirs.write(7, 3)
    client = await theirs.client()
    await client.delete_ledger(7)
    with pytest.raises(NoSuchLedgerError):
        await client.open_ledger(7)
    with pytest.raises(NoSuchLedgerError):
        await client.delete_ledger(7)
    assert [node for node in theirs.tree.paths if "audit" in node or "logs" in node] == []


def other_operation(header: m.RequestHeader, found: m.AddEntryResponse) -> list[Bytes]:
    other = m.RequestHeader(m.Operation.FORCE_LEDGER, header.transaction_id)
    return m.encode_response(other, m.ForceLedgerResponse(StatusCode.EOK, found.ledger_id))


def other_entry(header: m.RequestHeader, found: m.AddEntryResponse) -> list[Bytes]:
    return m.encode_response(header, found._replace(entry_id=found.entry_id + 1))


def other_ledger(header: m.RequestHeader, found: m.AddEntryResponse) -> list[Bytes]:
    return m.encode_response(header, found._replace(ledger_id=found.ledger_id + 1))


def no_entry(header: m.RequestHeader, found: m.AddEntryResponse) -> list[Bytes]:
    return m.encode_refusal(header, StatusCode.EOK)


@pytest.mark.parametrize("lie", [other_operation, other_entry, other_ledger, no_entry])
async def test_what_answers_something_else_acknowledges_nothing(theirs: TheirCluster, lie: Lie) -> None:
    def mangle(frame: bytes) -> bytes:
        found = m.decode_response(frame[frames.PREFIX_BYTES :])
        if not isinstance(found.response, m.AddEntryResponse):
            return frame
        header = m.RequestHeader(m.Operation.ADD_ENTRY, found.transaction_id)
        return b"".join(lie(header, found.response))

    for bookie in theirs.bookies.values():
        bookie.mangle = mangle
    client = await theirs.client(add_timeout_s=1)
    writer = await client.create_ledger()
    with pytest.raises(BookKeeperError):
        await writer.append(b"x")
    assert writer.last_add_confirmed == -1
