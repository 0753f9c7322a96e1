"""One ledger is worked off: copied from what is left, swapped in, and whole again; or left as it was, and said why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, keys_of, pool_of
from tests.in_process import DEADLINE_S, InProcess, contents, rewrite
from tests.unit.client.support import payload, put, write
from tests.unit.replication.repairing import Repairs, held, whole
from tests.waiting import eventually

from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.replication.locks import LedgerLock
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire.records import walk
from bkpy.replication.worker.ledger_repair import GRACE, LOCK_LOST, LOCKED, RepairOutcome
from bkpy.replication.worker.pacing import CopyRate
from bkpy.replication.worker.share_reader import ShareReader

if TYPE_CHECKING:
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

ENTRIES = 60


async def closed(client: Client, count: int = ENTRIES, **ledger: Any) -> LedgerWriter:
    writer = await client.create_ledger(**ledger)
    for i in range(count):
        writer.append_nowait(payload(i))
    await writer.close()
    return writer


async def lose(cluster: InProcess, client: Client, *names: str) -> None:
    """The bookies end, and the client knows."""
    for name in names:
        await cluster.node(name).stop()
    await eventually(lambda: not set(names) & (client.bookies.keys() | client.read_only_bookies.keys()))


@pytest.mark.scenario(59)
@pytest.mark.parametrize("digest", ["crc32c", "hmac-sha256"])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2), (4, 3, 2)])
async def test_the_lost_share_is_copied_and_the_new_bookie_named(
    five: InProcess, sizes: tuple[int, int, int], digest: str
) -> None:
    client = await five.client(batch_bytes_max=500, read_bytes=1000)
    writer = await closed(
        client, ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2], password=b"p", digest=digest
    )
    victim = writer.ensemble[1]
    await lose(five, client, victim)
    repairs = Repairs(await five.client(batch_bytes_max=500, read_bytes=1000))
    ended = await repairs.run(writer.ledger_id, {victim})
    assert (ended.how, ended.left, repairs.left) == (RepairOutcome.DONE, {victim}, {victim})
    metadata = await whole(client, writer.ledger_id)
    (new,) = set(metadata.fragments[0].bookies) - set(writer.ensemble)
    assert metadata.fragments[0].bookies == (writer.ensemble[0], new, *writer.ensemble[2:])
    copied = await held(client, writer.ledger_id, new, ENTRIES - 1)
    expected = [n for n in range(ENTRIES) if 1 in [(n + k) % sizes[0] for k in range(sizes[1])]]
    assert sorted(copied) == expected  # and nothing else
    assert repairs.count.entries == len(expected)
    assert repairs.count.fragments == 1
    assert repairs.count.bytes == sum(map(len, copied.values()))
    assert await contents(client, writer.ledger_id, b"p") == [payload(i) for i in range(ENTRIES)]
    assert not keys_of(repairs.client)
    assert not [path for path in five.tree.paths if "/locks/L" in path]
    again = await repairs.run(writer.ledger_id, {victim})
    assert again.how is RepairOutcome.DONE
    assert repairs.count.fragments == 1


async def test_a_ledger_of_several_fragments_and_two_lost_bookies(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    for i in range(4):
        await writer.append(payload(i))
        if i in (0, 2):
            five.kill(writer.ensemble[0])
    await writer.close()
    fragments = writer.metadata.fragments
    assert len(fragments) > 1
    dead = [name for name in "abcde" if name in {fragments[0].bookies[0], fragments[1].bookies[0]}]
    await lose(five, client, *dead)
    repairs = Repairs(await five.client())
    assert (await repairs.run(writer.ledger_id, dead)).how is RepairOutcome.DONE
    metadata = await whole(client, writer.ledger_id)
    assert not {name for fragment in metadata.fragments for name in fragment.bookies} & set(dead)


@pytest.mark.scenario(59)
async def test_an_open_ledger_is_recovered_after_the_grace_period_and_not_before(five: InProcess) -> None:
    client = await five.client()
    writer = await write(client, 5)
    victim = writer.ensemble[0]
    await lose(five, client, victim)
    repairs = Repairs(await five.client())
    ended = await repairs.run(writer.ledger_id, {victim})
    assert (ended.how, ended.why, ended.left) == (RepairOutcome.WAITING, GRACE, set())
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
    assert repairs.count.entries == 0
    ended = await repairs.run(writer.ledger_id, {victim}, grace_over=True)
    assert ended.how is RepairOutcome.DONE
    metadata = await whole(client, writer.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry == 4


@pytest.mark.scenario(23)
async def test_a_ledger_that_is_being_written_loses_nothing_and_its_writer_goes_on(five: InProcess) -> None:
    """Its last fragment is left alone, the earlier ones are copied beside the writer."""
    client = await five.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(payload(0))
    victim = writer.ensemble[0]
    await lose(five, client, victim)
    await writer.append(payload(1))
    await eventually(lambda: victim not in writer.ensemble)
    repairs = Repairs(await five.client())
    assert (await repairs.run(writer.ledger_id, {victim})).how is RepairOutcome.DONE
    for i in range(2, 20):
        await writer.append(payload(i))
    await writer.close()
    metadata = await whole(client, writer.ledger_id)
    assert victim not in metadata.fragments[0].bookies
    assert metadata.last_entry == 19


async def test_an_empty_ledger_and_one_that_is_gone(five: InProcess) -> None:
    client = await five.client()
    empty = await closed(client, 0)
    gone = await closed(client, 3)
    await client.delete_ledger(gone.ledger_id)
    repairs = Repairs(client)
    for ledger_id in (empty.ledger_id, gone.ledger_id):
        assert (await repairs.run(ledger_id, {empty.ensemble[0]})).how is RepairOutcome.DONE
    assert empty.ensemble[0] not in (await client.ledger_metadata(empty.ledger_id)).fragments[0].bookies
    assert repairs.count.entries == 0


@pytest.mark.scenario(59)
async def test_the_lock_keeps_others_away(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client)
    repairs, others = Repairs(client), Repairs(await five.client())
    lock = await others.locks.take(writer.ledger_id)
    assert isinstance(lock, LedgerLock)
    ended = await repairs.run(writer.ledger_id, {writer.ensemble[0]})
    assert (ended.how, ended.why) == (RepairOutcome.LATER, LOCKED)
    await others.locks.release(lock)
    assert (await repairs.run(writer.ledger_id, {writer.ensemble[0]})).how is RepairOutcome.DONE


async def test_without_its_lock_nothing_is_swapped(five: InProcess) -> None:
    """The session that held it has ended while entries were copied."""
    client = await five.client()
    writer = await closed(client)
    repairs = Repairs(client)
    copy = repairs.repair.copy

    async def lose_the_lock(*args: Any) -> Any:
        copied = await copy(*args)
        for path in [path for path in five.tree.paths if "/locks/L" in path]:
            await cluster_of(client).store.delete(path)
        return copied

    repairs.repair.copy = lose_the_lock  # type: ignore[method-assign]
    ended = await repairs.run(writer.ledger_id, {writer.ensemble[0]})
    assert (ended.how, ended.why) == (RepairOutcome.LATER, LOCK_LOST)
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble


async def test_metadata_that_others_change_meanwhile_are_kept_and_nothing_is_copied_twice(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(payload(0))
    first = writer.ensemble
    five.kill(first[0])
    await writer.append(payload(1))
    await eventually(lambda: len(writer.metadata.fragments) == 2)
    repairs = Repairs(await five.client())
    copy = repairs.repair.copy

    async def meanwhile(*args: Any) -> Any:
        copied = await copy(*args)
        await rewrite(client, writer.ledger_id, custom_metadata={"of": b"others"})
        return copied

    repairs.repair.copy = meanwhile  # type: ignore[method-assign]
    assert (await repairs.run(writer.ledger_id, {first[0]})).how is RepairOutcome.DONE
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert repairs.count.entries == metadata.fragments[1].first_entry
    assert metadata.custom_metadata == {"of": b"others"}
    assert first[0] not in metadata.fragments[0].bookies
    writer.abandon()


async def test_a_ledger_that_is_deleted_meanwhile_is_done(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client)
    repairs = Repairs(client)
    copy = repairs.repair.copy

    async def meanwhile(*args: Any) -> Any:
        copied = await copy(*args)
        await client.delete_ledger(writer.ledger_id)
        return copied

    repairs.repair.copy = meanwhile  # type: ignore[method-assign]
    ended = await repairs.run(writer.ledger_id, {writer.ensemble[0]})
    assert (ended.how, ended.left) == (RepairOutcome.DONE, {writer.ensemble[0]})


async def test_copies_that_lack_entries_or_are_damaged_are_made_up_for_by_others(five: InProcess) -> None:
    """An ack quorum of two: one bookie never got entry 5, another one has entry 3 damaged."""
    client = await five.client()
    writer = await write(client, 5)
    a, b, c = writer.ensemble
    await put(client, writer, a, [5], lac=4)
    await put(client, writer, b, [5], lac=4)
    reader = await client.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 5
    damage(five, b, writer.ledger_id, 3)
    await lose(five, client, a)
    repairs = Repairs(await five.client())
    assert (await repairs.run(writer.ledger_id, {a})).how is RepairOutcome.DONE
    metadata = await client.ledger_metadata(writer.ledger_id)
    (new,) = set(metadata.fragments[0].bookies) - {b, c}
    assert sorted(await held(client, writer.ledger_id, new, 5)) == list(range(6))


def damage(cluster: InProcess, name: str, ledger_id: int, entry_id: int) -> None:
    """The bookie returns this entry with a flipped byte."""
    storage = cluster.storage(name)
    read = storage.read

    async def damaged(ledger: int, first: int, last: int, bytes_max: int) -> Any:
        result = await read(ledger, first, last, bytes_max)
        if ledger != ledger_id:
            return result
        view = bytearray(b"".join(bytes(part) for part in result.segments))
        for header in walk(bytes(view)):
            if header.entry_id == entry_id:
                view[header.end - 1] ^= 1
        return result._replace(segments=[memoryview(view)])

    storage.read = damaged  # type: ignore[method-assign]


@pytest.mark.scenario(41)
async def test_a_reader_goes_on_when_all_copies_have_moved(four: InProcess) -> None:
    client = await four.client(read_entries_max=5, prefetch_depth=1)
    writer = await closed(client, ensemble_size=2, write_quorum=2, ack_quorum=2)
    reader = await client.open_ledger(writer.ledger_id)
    read = []
    async for entry in reader.read():
        read.append(entry.data)
        if len(read) == 8:
            other = await four.client()
            assert (await Repairs(other).run(writer.ledger_id, writer.ensemble)).how is RepairOutcome.DONE
            await lose(four, other, *writer.ensemble)
    assert read == [payload(i) for i in range(ENTRIES)]


@pytest.mark.scenario(59)
async def test_what_nobody_can_read_is_said_and_nothing_is_swapped(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client, 6)
    a, b, c = writer.ensemble
    for name in (b, c):
        damage(five, name, writer.ledger_id, 3)
    await lose(five, client, a)
    repairs = Repairs(await five.client(read_timeout_s=0.5))
    ended = await repairs.run(writer.ledger_id, {a})
    assert ended.how is not RepairOutcome.DONE
    assert "entry 3" in ended.why
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
    await five.start_node(a)  # it comes back, and is a source though it is to go
    await eventually(lambda: a in client.bookies and a in repairs.client.bookies)
    async with asyncio.timeout(DEADLINE_S):  # the client may take a second to connect to it again
        while (await repairs.run(writer.ledger_id, {a})).how is not RepairOutcome.DONE:
            pass


async def test_a_ledger_all_of_whose_bookies_are_lost_says_who_has_to_come_back(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client, 6, ensemble_size=2, write_quorum=2, ack_quorum=2)
    await lose(five, client, *writer.ensemble)
    repairs = Repairs(await five.client())
    ended = await repairs.run(writer.ledger_id, writer.ensemble)
    assert ended.how is RepairOutcome.STUCK
    assert "entries 0 to 5" in ended.why
    assert " or ".join(sorted(writer.ensemble)) in ended.why


async def test_there_may_be_no_bookie_to_copy_to(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await closed(client)
    await lose(cluster, client, "b")
    repairs = Repairs(await cluster.client())
    ended = await repairs.run(writer.ledger_id, {"b"})
    assert ended.how is RepairOutcome.STUCK
    assert "no writable bookie is outside the ensemble" in ended.why
    await cluster.start_node("d")
    await eventually(lambda: "d" in repairs.client.bookies)
    assert (await repairs.run(writer.ledger_id, {"b"})).how is RepairOutcome.DONE


async def test_a_target_that_is_named_is_the_only_one(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client)
    spare = sorted(set("abcde") - set(writer.ensemble))
    for name in spare:
        await closed(client)
        repairs = Repairs(client, target=name)
        leaving = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies[0]
        assert (await repairs.run(writer.ledger_id, {leaving})).how is RepairOutcome.DONE
        assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies[0] == name
    named = Repairs(client, target=spare[-1])
    ended = await named.run(writer.ledger_id, {writer.ensemble[1]})
    assert ended.how is RepairOutcome.STUCK


async def test_a_target_that_fails_is_left_for_another_one(five: InProcess) -> None:
    client = await five.client(add_timeout_s=0.3)
    writer = await closed(client)
    spares = sorted(set("abcde") - set(writer.ensemble))
    repairs = Repairs(client)
    choose = repairs.repair.choose
    chosen: list[str] = []

    async def then_it_hangs(*args: Any) -> Any:
        name = await choose(*args)
        assert name is not None
        chosen.append(name)
        if len(chosen) == 1:
            five.hang(name)
        return name

    repairs.repair.choose = then_it_hangs  # type: ignore[method-assign]
    async with asyncio.timeout(DEADLINE_S):
        ended = await repairs.run(writer.ledger_id, {writer.ensemble[0]})
        assert ended.how is RepairOutcome.LATER
        assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
        assert (await repairs.run(writer.ledger_id, {writer.ensemble[0]})).how is RepairOutcome.DONE
    assert sorted(chosen) == spares


async def test_a_metadata_store_that_fails_at_any_step_leaves_a_whole_ledger(five: InProcess) -> None:
    """Each call in turn is lost, before or after it took effect; the next run ends it all the same."""
    client = await five.client()
    writer = await closed(client)
    number = 0
    while True:
        repairs = Repairs(await five.client())
        leaving = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies[0]
        passed = fail_call(repairs, number // 2, after=bool(number % 2))
        async with asyncio.timeout(DEADLINE_S):
            ended = await repairs.run(writer.ledger_id, {leaving})
            if ended.how is not RepairOutcome.DONE:
                assert ended.how is RepairOutcome.LATER
                await whole(client, writer.ledger_id)
                assert (await repairs.run(writer.ledger_id, {leaving})).how is RepairOutcome.DONE
        assert leaving not in (await whole(client, writer.ledger_id)).fragments[0].bookies
        if not passed():
            break
        number += 1
    assert number >= 10  # a repair has five calls, each lost in two ways


def fail_call(repairs: Repairs, number: int, *, after: bool) -> Any:
    """Let the client's `number`-th call of the store fail; what tells whether it came to that."""
    store: Any = cluster_of(repairs.client).store
    left = [number]

    def wrapped(name: str) -> Any:
        original = getattr(store, name)

        async def call(*args: Any, **rest: Any) -> Any:
            left[0] -= 1
            if left[0] != -1:
                return await original(*args, **rest)
            writes = name in ("multi", "put", "create", "delete")
            if after and writes:
                await original(*args, **rest)
            raise MetadataUnavailableError("lost", outcome_unknown=writes)

        return call

    for name in ("multi", "put", "create", "delete", "get", "exists", "sync"):
        setattr(store, name, wrapped(name))
    return lambda: left[0] < 0


async def test_a_copy_on_a_connection_that_was_made_anew_does_not_count(five: InProcess, monkeypatch: Any) -> None:
    """A bookie without a journal may have forgotten, by its restart, what it had answered before."""
    client = await five.client()
    writer = await closed(client)
    victim = writer.ensemble[1]
    (target, *_) = sorted(set("abcde") - set(writer.ensemble))
    repairs = Repairs(await five.client(batch_bytes_max=500, read_bytes=1000), target=target, copy_window_bytes=1)
    spend, sent = CopyRate.spend, 0

    async def and_break_off(rate: CopyRate, size: int) -> None:
        nonlocal sent
        sent += 1
        if sent == 2:  # everything before is answered: no more than one may be unanswered
            channel = pool_of(repairs.client).channel(target)
            before = channel.generation
            for connection in five.connections(target):
                connection.abort()
            await eventually(lambda: not channel.up or channel.generation > before)
            await channel.connect(again=True)
            assert channel.generation > before
        await spend(rate, size)

    monkeypatch.setattr(CopyRate, "spend", and_break_off)
    ended = await repairs.run(writer.ledger_id, {victim})
    assert sent > 2
    assert ended.how is RepairOutcome.LATER
    assert "the connection was lost while it was copied to" in ended.why
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
    assert (await repairs.run(writer.ledger_id, {victim})).how is RepairOutcome.DONE
    await whole(client, writer.ledger_id)


async def test_a_damaged_record_of_a_striped_ledger_is_not_copied(five: InProcess) -> None:
    client = await five.client()
    writer = await closed(client, ensemble_size=4, write_quorum=2, ack_quorum=2)
    victim, other = writer.ensemble[1:3]  # which have entry 1, and nobody else has
    damage(five, other, writer.ledger_id, 1)
    await lose(five, client, victim)
    repairs = Repairs(client)
    ended = await repairs.run(writer.ledger_id, {victim})
    assert ended.how is RepairOutcome.LATER  # the victim may come back
    assert f"{other}: its copy doesn't match the digest" in ended.why
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble


async def test_a_copy_that_misses_some_of_its_share_is_an_error(five: InProcess, monkeypatch: Any) -> None:
    """Also without asserts."""
    client = await five.client(batch_bytes_max=500, read_bytes=1000)
    writer = await closed(client)
    victim = writer.ensemble[1]
    await lose(five, client, victim)
    batches = ShareReader.batches

    async def all_but_the_first(reader: ShareReader) -> Any:
        skipped = False
        async for some in batches(reader):
            if skipped:
                yield some
            skipped = True

    monkeypatch.setattr(ShareReader, "batches", all_but_the_first)
    with pytest.raises(AssertionError, match="entries were copied of"):
        await Repairs(client).run(writer.ledger_id, {victim})
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
    assert not [path for path in five.tree.paths if "/locks/L" in path]
