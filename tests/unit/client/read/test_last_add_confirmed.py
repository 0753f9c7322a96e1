"""How far a reader finds that an open ledger may be read: the highest that enough bookies prove."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from tests.hooks import codec_of
from tests.unit.client.support import put, write

import bkpy
from bkpy.protocol.wire.records import walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.in_process import InProcess

    from bkpy.storage.engine import LastEntry

LAST_ADD_CONFIRMED = 16  # the offset of its lowest byte in a record


@pytest.mark.parametrize("bookies", list(permutations("abc")), ids="".join)
async def test_the_highest_answer_counts_once_the_ack_quorums_are_represented(
    cluster: InProcess, bookies: tuple[str, str, str]
) -> None:
    ahead, behind, away = bookies
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await write(client, 1)
    await put(client, writer, ahead, [3], lac=2)
    await put(client, writer, behind, [2], lac=1)
    cluster.kill(away)
    reader = await client.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 2


def in_the_entry(last: LastEntry, flip: Callable[[bytes], bytes]) -> LastEntry:
    return last._replace(entry=flip(b"".join([last.entry])))


def in_the_explicit_record(last: LastEntry, flip: Callable[[bytes], bytes]) -> LastEntry:
    return last._replace(explicit_lac=flip(last.explicit_lac))


@pytest.mark.parametrize("explicit", [False, True])
async def test_a_damaged_last_add_confirmed_proves_nothing(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, explicit: bool
) -> None:
    """One bit of it says that entries were acknowledged that weren't."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    for i in range(2):
        await writer.append(b"%d" % i)
    await put(client, writer, "a", [2, 3])  # on one of three: not acknowledged
    if explicit:
        record = codec_of(writer).explicit_lac(0, 1)
        await cluster.storage("a").set_explicit_lac(writer.ledger_id, record)
    storage = cluster.storage("a")
    last_entry = storage.last_entry

    def flip(record: bytes) -> bytes:
        damaged = bytearray(record)
        damaged[LAST_ADD_CONFIRMED : LAST_ADD_CONFIRMED + 8] = (3).to_bytes(8, "little")
        (header,) = walk(bytes(damaged))
        assert header.last_add_confirmed == 3
        return bytes(damaged)

    async def damaged(ledger_id: int) -> LastEntry:
        last = await last_entry(ledger_id)
        return (in_the_explicit_record if explicit else in_the_entry)(last, flip)

    monkeypatch.setattr(storage, "last_entry", damaged)
    reader = await client.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 0
    cluster.kill("c")  # now it is needed
    with pytest.raises(bkpy.BookieUnavailableError, match="too few"):
        await reader.read_last_add_confirmed()
    assert reader.last_add_confirmed == 0
    writer.abandon()


async def test_what_entries_have_on_average_follows_the_entries_themselves(cluster: InProcess) -> None:
    """A length that the writer published once says nothing of what was confirmed since."""
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    assert reader.bytes_of(10) == 0
    for _ in range(2):
        await writer.append(b"x" * 100)
    for bookie in "abc":
        await cluster.storage(bookie).set_explicit_lac(writer.ledger_id, codec_of(writer).explicit_lac(1, 200))
    await reader.read_last_add_confirmed()
    assert (reader.last_add_confirmed, reader.length, reader.bytes_of(2)) == (1, 200, 200)
    for _ in range(8):
        await writer.append(b"x" * 50)
    await reader.read_last_add_confirmed()
    assert (reader.last_add_confirmed, reader.bytes_of(9)) == (8, 540)
    await writer.close()
    await reader.read_last_add_confirmed()
    assert (reader.last_add_confirmed, reader.length, reader.bytes_of(10)) == (9, 600, 600)
