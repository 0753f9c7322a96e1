"""Copies of a BookKeeper cluster's ledgers: what they have, what an import that was killed leaves, and what fails."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.examples import stride
from tests.hooks import cluster_of
from tests.in_process import ROOT, InProcess, contents, rewrite
from tests.stepping import naming, run_to
from tests.unit.client.bookkeeper.their_bookies import TheirCluster

import bkpy
from bkpy import LedgerWriter
from bkpy.admin.ledger_import import LedgerImport
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    DigestMismatchError,
    LedgerClosedError,
    MetadataConflictError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.metadata import paths
from bkpy.metadata.bookkeeper.layout import HYBRID
from bkpy.metadata.store.memory import MemorySession
from bkpy.metadata.store.store import Delete, Put
from bkpy.protocol.bookkeeper.entries import DigestType
from bkpy.protocol.ledger.accepted_loss import AcceptedLoss

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
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


async def test_a_ledger_that_was_made_again_is_copied_again(world: World) -> None:
    """Callers may choose ids. The ledger that had it before is as long, and its copy is left alone."""
    world.theirs.write(7, 5, owner_token="-1")
    former = await (await world.begun(b"")).copy(7, ignore)
    assert (await world.target.ledger_metadata(former.copy_id)).custom_metadata["bookkeeper.token"] == b"-1"
    world.theirs.tree.apply(Delete(HYBRID.path_of(ROOT, 7)), 0)
    for bookie in world.theirs.bookies.values():
        del bookie.ledgers[7]
    payloads = world.theirs.write(7, 5, text="again", owner_token="2")
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert copied.new
    assert await contents(world.target, copied.copy_id) == payloads != await contents(world.target, former.copy_id)
    assert await (await world.begun(b"")).copy(7, ignore) == copied._replace(new=False)


@pytest.mark.parametrize("count", [5, 6])
async def test_ledgers_of_clusters_without_an_instance_id_are_told_apart(world: World, count: int) -> None:
    """Those of old versions have none: their ledgers of one id are each copied, and no copy is taken for another's."""
    other = TheirCluster()
    await other.start(ports=range(4010, 4020))
    for cluster in (world.theirs, other):
        cluster.tree.apply(Delete(f"{ROOT}/{paths.INSTANCE_ID}"), 0)
    expected = [
        world.theirs.write(7, 5, created_ms=1_000),
        other.write(7, count, created_ms=2_000, text="other"),
    ]
    worlds = [world._replace(source=await cluster.client()) for cluster in (world.theirs, other)]
    copied = [await (await one.begun(b"")).copy(7, ignore) for one in (*worlds, *worlds)]
    assert [one.new for one in copied] == [True, True, False, False]
    assert [one.copy_id for one in copied[:2]] == [one.copy_id for one in copied[2:]]
    assert [await contents(world.target, one.copy_id) for one in copied[:2]] == expected
    await other.stop()


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


async def test_a_copy_with_an_accepted_loss_is_none_and_stays(world: World) -> None:
    """It may miss entries. It was whole once, perhaps, and somebody may read what is left of it."""
    payloads = world.theirs.write(7, 30)
    former = await (await world.begun(b"")).copy(7, ignore)
    await rewrite(world.target, former.copy_id, accepted_loss=AcceptedLoss(1000, 29, 29, {"a": "gone"}, ((0, 29),)))
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert copied.new
    assert await contents(world.target, copied.copy_id) == payloads
    assert {copy.ledger_id for copy in await world.copies()} == {former.copy_id, copied.copy_id}
    assert await (await world.begun(b"")).copy(7, ignore) == copied._replace(new=False)


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


async def test_a_ledger_whose_recovery_by_java_counted_too_much_has_one_copy(world: World) -> None:
    payloads = world.theirs.write(7, 5)
    size = sum(map(len, payloads))
    world.theirs.change(7, length=size + 16)
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert (copied.bytes, copied.new) == (size, True)
    assert await contents(world.target, copied.copy_id) == payloads
    again = await (await world.begun(b"")).copy(7, ignore)
    assert again == copied._replace(new=False)


async def test_a_copy_that_was_not_stored_as_it_was_read_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.theirs.write(7, 300)
    append_batch = LedgerWriter.append_batch

    async def damage(writer: LedgerWriter, payloads: Sequence[bytes]) -> range:
        damaged = [bytes([payload[0] ^ 1]) + payload[1:] for payload in payloads[:1]]
        return await append_batch(writer, [*damaged, *payloads[1:]])

    monkeypatch.setattr(LedgerWriter, "append_batch", damage)
    with pytest.raises(CorruptDataError, match="read back"):
        await (await world.begun(b"")).copy(7, ignore)
    assert await world.copies() == []


@pytest.mark.parametrize("stored", [b"nonsense", b"BookieMetadataFormatVersion\t9\n"])
async def test_a_ledger_with_unreadable_metadata_is_named_and_stops_no_other(world: World, stored: bytes) -> None:
    for ledger_id in (3, 7, 9):
        world.theirs.write(ledger_id, 5)
    world.theirs.tree.apply(Put(HYBRID.path_of(ROOT, 7), stored, 0), 0)
    importing = await world.begun(b"")
    assert [ledger_id async for ledger_id in importing.closed_ledgers()] == [3, 7, 9]
    with pytest.raises(BookKeeperError, match="ledger 7"):
        await importing.copy(7, ignore)
    assert (await importing.copy(9, ignore)).new


async def test_a_ledger_that_the_import_may_not_read_is_named_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id in (3, 7, 9):
        world.theirs.write(ledger_id, 5)
    get, forbidden = MemorySession.get, HYBRID.path_of(ROOT, 7)

    async def get_if_allowed(session: MemorySession, path: str) -> tuple[bytes, int]:
        if path == forbidden:
            raise UnauthorizedError(f"access control forbids this on {path}")
        return await get(session, path)

    monkeypatch.setattr(MemorySession, "get", get_if_allowed)
    importing = await world.begun(b"")
    assert [ledger_id async for ledger_id in importing.closed_ledgers()] == [3, 7, 9]
    with pytest.raises(UnauthorizedError):
        await importing.copy(7, ignore)
    assert (await importing.copy(9, ignore)).new


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


# --- several imports ------------------------------------------------------------------------------------------------


async def test_one_import_makes_one_copy(world: World) -> None:
    world.theirs.write(7, 5)
    importing = await world.begun(b"")
    copied = await importing.copy(7, ignore)
    assert await importing.copy(7, ignore) == copied._replace(new=False)
    assert len(await world.copies()) == 1


async def test_imports_at_the_same_time_make_one_copy(world: World) -> None:
    payloads = world.theirs.write(7, 400)
    imports = [await world.begun(b"") for _ in range(3)]
    copied = await asyncio.gather(*(one.copy(7, ignore) for one in imports))
    assert sorted(one.new for one in copied) == [False, False, True]
    assert {one.copy_id for one in copied} == {copy.ledger_id for copy in await world.copies()}
    assert await contents(world.target, copied[0].copy_id) == payloads


async def test_the_unfinished_copy_of_another_import_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.theirs.write(7, 5)
    reached, held = asyncio.Event(), asyncio.Event()
    close = LedgerWriter.close

    async def hold(writer: LedgerWriter) -> None:
        reached.set()
        await held.wait()
        await close(writer)

    monkeypatch.setattr(LedgerWriter, "close", hold)
    first = asyncio.ensure_future((await world.begun(b"")).copy(7, ignore))
    await reached.wait()
    second = await world.begun(b"")
    assert await second.copy_unless_locked(7, ignore) is None
    (unfinished,) = await world.copies()
    waiting = asyncio.ensure_future(second.copy(7, ignore))
    await asyncio.sleep(60)
    assert not waiting.done()
    held.set()
    assert (await first).copy_id == unfinished.ledger_id
    assert await waiting == (await first)._replace(new=False)


async def test_an_import_that_has_lost_its_lock_finishes_no_copy(world: World) -> None:
    payloads = world.theirs.write(7, 5)
    tree, folder = world.ours.tree, f"{ROOT}/imports/from-an-instance"

    def lose_lock(done: int, total: int) -> None:
        for path in [one for one in tree.paths if one.startswith(f"{folder}/L")]:
            tree.apply(Delete(path), 0)

    with pytest.raises(MetadataConflictError, match="lock on the ledger"):
        await (await world.begun(b"")).copy(7, lose_lock)
    (left,) = await world.copies()
    assert left.state.value == "OPEN", "nor does it delete what another may count on"
    copied = await (await world.begun(b"")).copy(7, ignore)
    assert await contents(world.target, copied.copy_id) == payloads
    assert [copy.ledger_id for copy in await world.copies()] == [copied.copy_id]


async def test_what_is_unfinished_goes_also_where_there_is_a_whole_copy(world: World) -> None:
    world.theirs.write(7, 5)
    copied = await (await world.begun(b"")).copy(7, ignore)
    await world.target.create_ledger(custom_metadata={"bookkeeper.ledger": b"an-instance/7"})
    assert await (await world.begun(b"")).copy(7, ignore) == copied._replace(new=False)
    assert [copy.ledger_id for copy in await world.copies()] == [copied.copy_id]


async def test_a_damaged_ledger_of_the_target_stops_no_import(world: World) -> None:
    world.theirs.write(7, 5)
    damaged = await world.target.create_ledger()
    path = cluster_of(world.target).catalog.path_of(damaged.ledger_id)
    world.ours.tree.apply(Put(path, b"nonsense", None), 0)
    assert (await (await world.begun(b"")).copy(7, ignore)).new


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, True])
async def test_an_import_that_ends_at_any_step_is_finished_by_the_next_one(world: World, late: bool) -> None:
    payloads = world.theirs.write(7, 30)
    for at in itertools.count(0, stride()):
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
