"""Copies of a BookKeeper cluster's ledgers: what they have, what an import that was killed leaves, and what fails."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.in_process import InProcess, contents
from tests.stepping import naming, run_to
from tests.unit.client.bookkeeper.their_bookies import TheirCluster

import bkpy
from bkpy.admin.ledger_import import LedgerImport
from bkpy.errors import (
    ConfigError,
    CorruptDataError,
    DigestMismatchError,
    LedgerClosedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.protocol.bookkeeper.entries import DigestType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

PASSWORD = b"secret"


class World(NamedTuple):
    """A BookKeeper cluster and one of bkpy, with a client of each."""

    theirs: TheirCluster
    ours: InProcess
    source: Client
    target: Client

    def new_import(
        self, password: bytes | None = PASSWORD, quorums: tuple[int, int, int] | None = None
    ) -> LedgerImport:
        source, target = bkpy.AdminClient(self.source), bkpy.AdminClient(self.target)
        return LedgerImport(source, target, password=password, quorums=quorums)

    async def begun(self, password: bytes | None = PASSWORD) -> LedgerImport:
        made = self.new_import(password)
        await made.begin()
        return made

    async def left(self, ids: set[int]) -> None:
        """Return when there are these copies and no others: what was cancelled takes back what it has made."""
        async with asyncio.timeout(30):
            while {copy.ledger_id for copy in await self.copies()} != ids:
                await asyncio.sleep(0.01)

    async def copies(self) -> list[LedgerMetadata]:
        return [ledger async for ledger in bkpy.AdminClient(self.target).find_ledgers()]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    theirs, ours = TheirCluster(), InProcess(tmp_path)
    await theirs.start(ports=range(4000, 4010))
    await ours.start()
    yield World(theirs, ours, await theirs.client(read_bytes=1000), await ours.client())
    await ours.stop()
    await theirs.stop()


def ignore(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("digest_type", DigestType)
async def test_a_copy_has_what_the_original_has(world: World, digest_type: DigestType) -> None:
    payloads = world.theirs.write(
        7, 150, write_quorum=2, digest_type=digest_type, password=PASSWORD, custom_metadata={"who": b"me"}
    )
    seen: list[tuple[int, int]] = []
    copied = await (await world.begun()).copy(7, lambda done, total: seen.append((done, total)))
    assert (copied.entries, copied.bytes, copied.new) == (150, sum(map(len, payloads)), True)
    assert seen[-1] == (150, 150)
    assert await contents(world.target, copied.copy_id, PASSWORD) == payloads
    copy = await world.target.ledger_metadata(copied.copy_id)
    assert copy.custom_metadata == {"who": b"me", "bookkeeper.ledger": b"an-instance/7"}
    assert (copy.ensemble_size, copy.write_quorum, copy.ack_quorum) == (3, 2, 2)
    assert copy.digest == ("hmac-sha256" if digest_type == DigestType.HMAC else "crc32c")
    with pytest.raises(UnauthorizedError):
        await world.target.open_ledger(copied.copy_id)


async def test_a_second_import_copies_nothing_twice(world: World) -> None:
    for ledger_id in (7, 3, 1 << 40):
        world.theirs.write(ledger_id, 5)
    world.theirs.write(9, 5, closed=False)
    first = await world.begun(b"")
    ids = [ledger_id async for ledger_id in first.closed_ledgers()]
    assert ids == [3, 7, 1 << 40]
    copies = [await first.copy(ledger_id, ignore) for ledger_id in ids]
    second = await world.begun(b"")
    assert [await second.copy(ledger_id, ignore) for ledger_id in ids] == [one._replace(new=False) for one in copies]
    assert len(await world.copies()) == 3


async def test_an_empty_ledger_has_an_empty_copy(world: World) -> None:
    world.theirs.write(7, 0)
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert await contents(world.target, copied.copy_id) == []


async def test_the_password_that_is_stored_opens_a_ledger(world: World) -> None:
    payloads = world.theirs.write(7, 5, password=PASSWORD)
    with pytest.raises(UnauthorizedError):
        await (await world.begun(b"other")).copy(7, ignore)
    assert await world.copies() == []
    copied = await (await world.begun(None)).copy(7, ignore)
    assert await contents(world.target, copied.copy_id, PASSWORD) == payloads


async def test_what_a_killed_import_has_left_is_made_again(world: World) -> None:
    payloads = world.theirs.write(7, 400)
    importing = await world.begun(b"")
    stopped = asyncio.Event()

    def stop(done: int, total: int) -> None:
        stopped.set()
        killed.cancel()

    killed = asyncio.ensure_future(importing.copy(7, stop))
    await asyncio.gather(killed, return_exceptions=True)
    assert stopped.is_set()
    (left,) = await world.copies()
    assert left.state.value == "OPEN"
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert [copy.ledger_id for copy in await world.copies()] == [copied.copy_id]
    assert copied.copy_id != left.ledger_id
    assert await contents(world.target, copied.copy_id) == payloads


async def test_a_part_that_was_recovered_is_no_copy(world: World) -> None:
    payloads = world.theirs.write(7, 400)
    importing = await world.begun(b"")
    killed = asyncio.ensure_future(importing.copy(7, lambda done, total: killed.cancel() and None))
    await asyncio.gather(killed, return_exceptions=True)
    (left,) = await world.copies()
    reader = await world.target.recover_ledger(left.ledger_id)
    assert reader.last_add_confirmed < 399
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert copied.new
    assert [copy.ledger_id for copy in await world.copies()] == [copied.copy_id]
    assert await contents(world.target, copied.copy_id) == payloads


async def test_a_ledger_that_cannot_be_read_whole_has_no_copy(world: World) -> None:
    world.theirs.write(7, 300)
    payloads = world.theirs.write(8, 5)
    for bookie in world.theirs.bookies.values():
        entry = bookie.ledgers[7].entries[290]
        bookie.ledgers[7].entries[290] = entry[:-1] + bytes([entry[-1] ^ 1])
    importing = await world.begun(b"")
    with pytest.raises(DigestMismatchError):
        await importing.copy(7, ignore)
    assert await world.copies() == []
    copied = await importing.copy(8, ignore)
    assert await contents(world.target, copied.copy_id) == payloads


async def test_a_length_that_the_entries_do_not_have_is_no_copy(world: World) -> None:
    world.theirs.write(7, 5)
    world.theirs.change(7, length=1)
    with pytest.raises(CorruptDataError, match="bytes up to entry"):
        await (await world.begun(b"")).copy(7, ignore)
    assert await world.copies() == []


async def test_an_open_ledger_is_not_imported(world: World) -> None:
    world.theirs.write(7, 5, closed=False)
    importing = await world.begun(b"")
    with pytest.raises(LedgerClosedError, match="OPEN"):
        await importing.copy(7, ignore)
    with pytest.raises(NoSuchLedgerError):
        await importing.copy(8, ignore)


async def test_the_copies_may_have_other_quorums(world: World) -> None:
    world.theirs.write(7, 5)
    importing = world.new_import(b"", (2, 2, 2))
    await importing.begin()
    copied = await importing.copy(7, ignore)
    copy = await world.target.ledger_metadata(copied.copy_id)
    assert (copy.ensemble_size, copy.write_quorum, copy.ack_quorum) == (2, 2, 2)


async def test_an_import_goes_one_way(world: World) -> None:
    source, target = bkpy.AdminClient(world.source), bkpy.AdminClient(world.target)
    with pytest.raises(ConfigError, match="in a cluster of bkpy"):
        LedgerImport(target, target, password=b"")
    with pytest.raises(ConfigError, match="into a cluster of bkpy"):
        LedgerImport(source, source, password=b"")


@pytest.mark.parametrize("late", [False, True])
async def test_an_import_that_ends_at_any_step_is_finished_by_the_next_one(world: World, late: bool) -> None:
    payloads = world.theirs.write(7, 30)
    for at in itertools.count():
        importing = await world.begun(b"")
        with naming("import", at, late):
            reached = await run_to(importing.copy(7, ignore), at, late, None)
            copied = await (await world.begun(b"")).copy(7, ignore)
            assert await contents(world.target, copied.copy_id) == payloads
            await world.left({copied.copy_id})
        if not reached:
            assert not copied.new
            break
        await world.target.delete_ledger(copied.copy_id)
    assert at > 10
