"""The oracle is content with a cluster in order, and notices everything that could be wrong with a ledger."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

import bkpy
from tests.hooks import cluster_of
from tests.in_process import stored
from tests.waiting import turns

from .clusters import ProxiedNodes
from .load import Load
from .oracle import (
    BrokenPromiseError,
    Contents,
    Promises,
    account,
    check,
    check_replicas,
    demand,
    make_payload,
    number_of,
    replicas,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

LEDGER = 7
DEADLINE_S = 60.0


# --- payloads -------------------------------------------------------------------------------------------------------


def test_a_payload_says_which_append_it_is_from() -> None:
    payload = make_payload(LEDGER, 12, random.Random(0), 100)
    assert number_of(LEDGER, payload) == 12
    with pytest.raises(ValueError, match="append 12 of ledger 7"):
        number_of(8, payload)


@pytest.mark.parametrize("filler_bytes", [0, 30])
def test_a_payload_with_any_changed_bit_or_length_is_nobodys(filler_bytes: int) -> None:
    payload = make_payload(LEDGER, 12, random.Random(0), filler_bytes)
    for i in range(len(payload) * 8):
        changed = bytearray(payload)
        changed[i // 8] ^= 1 << i % 8
        with pytest.raises(ValueError, match="nobody"):
            number_of(LEDGER, bytes(changed))
    for cut in range(len(payload)):
        with pytest.raises(ValueError, match="nobody"):
            number_of(LEDGER, payload[:cut])
    with pytest.raises(ValueError, match="nobody"):
        number_of(LEDGER, payload + b"\0")


# --- what is wrong with a ledger --------------------------------------------------------------------------------------

PAYLOADS = [make_payload(LEDGER, number, random.Random(number), 20) for number in range(12)]


def fenced(number: int, *, outcome_unknown: bool) -> bkpy.BookKeeperError:
    return bkpy.LedgerFencedError(f"append {number}", outcome_unknown=outcome_unknown)


def promised() -> Promises:
    """Ten appends, of which the first six were acknowledged, two may have been written, and two were refused."""
    promises = Promises(LEDGER)
    for number in range(10):
        assert promises.next_number() == number
    for number in range(6):
        promises.acked(number, PAYLOADS[number], number)
    for number in (6, 7):
        promises.failed(number, fenced(number, outcome_unknown=True))
    for number in (8, 9):
        promises.failed(number, fenced(number, outcome_unknown=False))
    for number in range(3):
        promises.returned(number, PAYLOADS[number])
    return promises


def contents(*numbers: int) -> Contents:
    """A closed ledger of these appends."""
    data = [PAYLOADS[number] for number in numbers]
    return Contents("CLOSED", len(numbers) - 1, sum(map(len, data)), list(enumerate(data)))


@pytest.mark.parametrize("kept", [6, 7, 8])
def test_appends_of_unknown_outcome_may_be_there_or_not(kept: int) -> None:
    assert account(promised(), contents(*range(kept))) == []
    demand(promised(), contents(*range(kept)))


def test_refused_appends_leave_no_gap() -> None:
    promises = promised()
    del promises.refused[8]
    promises.acked(6, PAYLOADS[8], 6)
    del promises.unknown[6]
    promises.refused[6] = promises.refused[7] = "refused"
    assert account(promises, contents(*range(6), 8)) == []


def test_an_empty_ledger_keeps_no_promise_that_nobody_was_made() -> None:
    assert account(Promises(LEDGER), contents()) == []


def without(found: Contents, entry_id: int) -> None:
    found.entries = [entry for entry in found.entries if entry[0] != entry_id]
    found.length -= len(PAYLOADS[0])


def swapped(found: Contents, one: int, other: int) -> None:
    """The payloads of two entries, exchanged."""
    entries = list(found.entries)
    entries[one], entries[other] = (one, entries[other][1]), (other, entries[one][1])
    found.entries = entries


def turned(found: Contents) -> None:
    """Two entries, read in the wrong order."""
    entries = list(found.entries)
    entries[2], entries[3] = entries[3], entries[2]
    found.entries = entries


def replaced(found: Contents, entry_id: int, data: bytes) -> None:
    entries = list(found.entries)
    found.length += len(data) - len(entries[entry_id][1])
    entries[entry_id] = (entry_id, data)
    found.entries = entries


def with_attribute(name: str, value: object) -> Callable[[Contents], None]:
    return lambda found: setattr(found, name, value)


WRONG: dict[str, tuple[Callable[[Contents], None], list[str]]] = {
    "open": (with_attribute("state", "IN_RECOVERY"), ["the ledger is IN_RECOVERY"]),
    "length": (with_attribute("length", 1), ["length is 1, its entries have"]),
    "past the end": (with_attribute("past_the_end", [6, 7]), ["readable past the last entry, which is 5: 6, 7"]),
    "lost": (lambda found: without(found, 3), ["not there: 3", "acknowledged and lost: 3"]),
    "lost after it was read": (lambda found: without(found, 1), ["read before and lost: 1"]),
    "swapped": (
        lambda found: swapped(found, 3, 4),
        ["acknowledged with other bytes: 3, 4", "in another order than they were called: 3"],
    ),
    "read twice with other bytes": (
        lambda found: replaced(found, 2, PAYLOADS[6]),
        ["read before with other bytes: 2", "appends 2"],
    ),
    "out of order": (turned, ["in order, but 6 entries", "read out of order: 2"]),
    "twice": (lambda found: replaced(found, 5, PAYLOADS[4]), ["appends that come twice", "other bytes: 5"]),
    "a stranger": (lambda found: replaced(found, 5, b"stranger"), ["not from this writer: 5"]),
    "of another ledger": (
        lambda found: replaced(found, 5, make_payload(8, 5, random.Random(0), 1)),
        ["not from this writer: 5"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_ledger_that_is_not_as_promised(case: str) -> None:
    spoil, expected = WRONG[case]
    found = contents(*range(6))
    spoil(found)
    wrong = "\n".join(account(promised(), found))
    for words in expected:
        assert words in wrong
    with pytest.raises(BrokenPromiseError, match="ledger 7: 6 acknowledged up to entry 5, 2 unknown, 2 refused"):
        demand(promised(), found)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (range(5), "acknowledged and past the last entry, which is 4: 5"),
        (range(2), "read before and past the last entry, which is 1: 2"),
        (range(9), "refused and there all the same: appends 8: LedgerFencedError: append 8"),
        ((*range(6), 7), "not there, though later ones are: appends 6"),
        ((*range(8), 10), "never called: appends 10"),
    ],
)
def test_a_ledger_that_ends_too_early_or_too_late(numbers: range | tuple[int, ...], expected: str) -> None:
    assert expected in account(promised(), contents(*numbers))


def test_a_long_list_of_entries_is_cut() -> None:
    promises = Promises(LEDGER, sent=None)
    for i in range(100):
        promises.acked(i, make_payload(LEDGER, i, random.Random(i), 0), i)
    assert any(what.endswith("8, 9 ... (100 in all)") for what in account(promises, contents()))


def test_what_is_wrong_at_once() -> None:
    promises = Promises(LEDGER, sent=5)
    promises.acked(1, PAYLOADS[1], 1)
    promises.acked(0, PAYLOADS[0], 1)
    promises.acked(1, PAYLOADS[2], 1)
    promises.acked(2, PAYLOADS[3], 1)
    promises.confirmed(0)
    promises.returned(4, PAYLOADS[4])
    promises.returned(4, PAYLOADS[5])
    assert promises.violations == [
        "entry 0 was acknowledged after entry 1",
        "entry 1 was acknowledged twice",
        "entry 2 was acknowledged when last add confirmed was 1",
        "last add confirmed went from 1 back to 0",
        "entry 4 was read with different bytes at different times",
    ]
    assert account(promises, contents(*range(5)))[:5] == promises.violations


def test_promises_of_a_process_that_was_killed(tmp_path: Path) -> None:
    promises = Promises(LEDGER)
    promises.log_to(tmp_path / "promises")
    for number in range(6):
        promises.acked(number, PAYLOADS[number], number)
    log = (tmp_path / "promises").read_bytes()
    (tmp_path / "promises").write_bytes(log[:-3])
    loaded = Promises.load(tmp_path / "promises")
    assert loaded.acknowledged == {i: promises.acknowledged[i] for i in range(5)}
    assert account(loaded, contents(*range(8))) == []  # nobody knows how many it has called
    assert account(loaded, contents(*range(4))) == ["acknowledged and past the last entry, which is 3: 4"]


# --- on real bookies ------------------------------------------------------------------------------------------------


@pytest.mark.scenario(33)
@pytest.mark.scenario(34)
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (3, 3, 3), (1, 1, 1)])
async def test_healthy_bookies_keep_every_promise(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(
            ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2], password=b"pw"
        )
        async with Load(writer) as load:
            following = asyncio.create_task(load.follow(await client.open_ledger(writer.ledger_id, password=b"pw")))
            await load.more(2000)
            assert load.longest_pause_s > 0
        await writer.close()
        async with asyncio.timeout(DEADLINE_S):
            await following
        assert load.error is None
        assert load.promises.seen.keys() == load.promises.acknowledged.keys()
        found = await check(await cluster.client(), load.promises, b"pw")
        assert (found.last_entry, found.length) == (writer.last_add_confirmed, writer.length)
        assert found.last_entry + 1 == load.acknowledged >= 2000
        await check_replicas(client, writer.ledger_id, b"pw")
        held = await replicas(client, writer.ledger_id, b"pw")
        assert all(len(bookies) <= sizes[1] for bookies in held.values())


async def test_a_small_window_refuses_some_and_loses_none(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client(write_window_entries=20)
        writer = await client.create_ledger()
        async with Load(writer) as load:
            await load.more(1000)
        await writer.close()
        assert load.promises.refused
        assert all(error.startswith("WouldBlock") for error in load.promises.refused.values())
        await check(await cluster.client(), load.promises)


async def test_a_ledger_that_was_closed_too_early_is_noticed(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger()
        async with Load(writer) as load:
            await load.more(100)
        catalog = cluster_of(client).catalog
        metadata, version = await catalog.read(writer.ledger_id)
        stored(await catalog.write(metadata.closed(50, writer.length), version))
        with pytest.raises(BrokenPromiseError, match=r"past the last entry, which is 50: 51, 52(.|\n)*length is"):
            await check(await cluster.client(), load.promises)


async def test_an_entry_that_is_on_too_few_bookies_is_noticed(tmp_path: Path) -> None:
    """A bookie that holds nothing has taken the place of one that does, in the metadata only."""
    async with ProxiedNodes(tmp_path, bookies=4) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(ack_quorum=3)
        async with Load(writer) as load:
            await load.more(100)
        await writer.close()
        await check_replicas(client, writer.ledger_id)
        catalog = cluster_of(client).catalog
        metadata, version = await catalog.read(writer.ledger_id)
        (empty,) = set("abcd").difference(metadata.fragments[0].bookies)
        stored(await catalog.write(metadata.replace_bookie(0, 1, empty), version))
        with pytest.raises(BrokenPromiseError, match="on fewer than 3 of their bookies: 0, 1, 2"):
            await check_replicas(client, writer.ledger_id)
        await check(await cluster.client(), load.promises)  # a reader gets it all the same


async def test_appends_that_hang_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger()
        load = Load(writer, outstanding=5)
        load.start()
        await load.more(10)
        for proxy in cluster.proxies.values():
            proxy.cut()
        await turns()  # what was answered before is taken note of, and the next appends are begun
        monkeypatch.setattr("tests.faults.load.DEADLINE_S", 0.5)
        await load.stop()
        assert load.promises.violations == ["5 appends have not ended in 0.5 s"]


class HastyReader:
    """Returns what has not been confirmed, and an entry twice."""

    closed = False
    last_add_confirmed = 100

    async def tail(self) -> AsyncIterator[bkpy.Entry]:
        for entry_id in (0, 1, 1, 3):
            yield bkpy.Entry(0, entry_id, PAYLOADS[entry_id])


async def test_a_tail_that_returns_the_wrong_entries_is_noticed(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger()
        load = Load(writer)
        await writer.append_batch(PAYLOADS[:2])
        await load.follow(HastyReader())  # type: ignore[arg-type]
        assert load.promises.violations == [
            "a tail returned entry 1 instead of 2",
            "a tail returned entry 3 instead of 2",
            "a tail returned entry 3 before it was confirmed",
        ]
