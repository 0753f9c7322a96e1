"""Recovery: wherever a ledger's writer and bookies were lost, it is closed behind everything that was acknowledged."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.hooks import cluster_of, keys_of, pool_of, settings_of
from tests.in_process import DEADLINE_S, InProcess, stored
from tests.unit.client.support import check_closed, fail_adds, payload, put, write
from tests.waiting import eventually

import bkpy
from bkpy.client.bookies.channel import BookieChannel
from bkpy.client.client import Client, replication_context
from bkpy.client.write.writer import LedgerWriter
from bkpy.metadata.store.outcome import PutOutcome
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op
from bkpy.protocol.wire.records import EXPLICIT_LAC_ENTRY, RecordCodec, ledger_key, walk
from bkpy.recovery.write_back import RecoveredEntry, WriteBack

NEVER_S = 600.0  # longer than any test: whoever waits for that fails


@pytest.mark.scenario(1)
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 3, 3), (3, 2, 2), (5, 3, 2), (1, 1, 1), (4, 4, 1)])
async def test_what_was_acknowledged_is_kept_and_what_was_in_flight_may_be(
    five: InProcess, sizes: tuple[int, int, int]
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    for i in range(10):
        await writer.append(payload(i))
    in_flight = [writer.append_nowait(payload(i)) for i in range(10, 60)]
    await asyncio.sleep(0.001)
    acknowledged = writer.last_add_confirmed
    writer.abandon()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.closed
    assert acknowledged <= reader.last_add_confirmed < 60
    await check_closed(other, writer.ledger_id, reader.last_add_confirmed + 1)
    await asyncio.gather(*in_flight, return_exceptions=True)


async def test_a_bookie_that_nothing_could_be_written_back_to_is_marked(cluster: InProcess) -> None:
    """It is back before the auditor takes it for lost, and would miss the entries until the next check of replicas."""
    client, other = await cluster.client(), await cluster.client()
    records = cluster_of(other).catalog.marks()
    for killed in ("", "a"):
        writer = await write(client, 5)
        writer.abandon()
        if killed:
            cluster.kill(killed)
        reader = await other.recover_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 4
        record = await records.read(writer.ledger_id)
        assert (record.unverified if record is not None else set()) == set(killed)


@pytest.mark.scenario(2)
@pytest.mark.parametrize("count", [0, 1])
async def test_a_ledger_of_no_entry_and_of_one(cluster: InProcess, count: int) -> None:
    client = await cluster.client()
    writer = await write(client, count)
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, count)
    again = await client.recover_ledger(writer.ledger_id)  # closed: it is just opened
    assert again.last_add_confirmed == count - 1


@pytest.mark.scenario(3)
async def test_a_wrong_password_changes_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(password=b"right", digest="hmac-sha256")
    await writer.append(b"0")
    with pytest.raises(bkpy.UnauthorizedError):
        await client.recover_ledger(writer.ledger_id, password=b"wrong")
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
    assert await writer.append(b"1") == 1
    await writer.close()


@pytest.mark.scenario(4)
async def test_too_few_bookies_leave_the_ledger_in_recovery_for_a_later_try(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await write(client, 5)
    for name in "ab":
        cluster.kill(name)
    with pytest.raises(bkpy.LedgerRecoveryError) as failure:
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    assert failure.value.retriable
    assert "a: " in str(failure.value)
    assert "b: " in str(failure.value)
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    await cluster.node("a").stop()
    await cluster.start_node("a")
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 5)


@pytest.mark.scenario(5)
async def test_a_hung_bookie_delays_nothing(five: InProcess) -> None:
    """Its answer could change no decision any more; so nobody waits for it."""
    client = await five.client(read_timeout_s=NEVER_S)
    for _ in range(3):  # so that it is the one that is asked first, once
        writer = await write(client, 5)
        five.hang(writer.ensemble[0])
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
        await check_closed(client, writer.ledger_id, 5)
        for connection in five.connections(writer.ensemble[0]):
            connection.resume("hung")


@pytest.mark.scenario(6)
async def test_a_bookie_that_fails_during_recovery_is_replaced_by_the_closing_write_alone(five: InProcess) -> None:
    client = await five.client()
    writer = await write(client, 5, ack_quorum=3)
    for name in writer.ensemble:
        await put(client, writer, name, [5, 6, 7], lac=4)
    states = await record_writes(client)
    victim = writer.ensemble[2]
    fail_adds(five, victim)
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 8)
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert metadata.fragments[0].bookies == writer.ensemble
    assert [fragment.first_entry for fragment in metadata.fragments] == [0, 5]
    assert victim not in metadata.fragments[1].bookies
    assert states == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]


@pytest.mark.scenario(7)
async def test_at_the_first_entry_of_a_fragment_that_fragment_is_replaced(five: InProcess) -> None:
    client = await five.client()
    writer = await write(client, 0, ack_quorum=3)
    for name in writer.ensemble:
        await put(client, writer, name, [0, 1])
    victim = writer.ensemble[2]
    fail_adds(five, victim)
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 2)
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert [fragment.first_entry for fragment in metadata.fragments] == [0]
    assert victim not in metadata.fragments[0].bookies


@pytest.mark.scenario(8)
async def test_two_bookies_that_fail_on_one_entry(five: InProcess) -> None:
    client = await five.client()
    writer = await write(client, 3)
    for name in writer.ensemble[:2]:  # one bookie alone could be outvoted, were it the last to answer
        await put(client, writer, name, [3], lac=2)
    for victim in writer.ensemble[1:]:
        fail_adds(five, victim)
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 4)
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert set(metadata.fragments[1].bookies).isdisjoint(writer.ensemble[1:])


@pytest.mark.scenario(9)
async def test_entries_that_can_be_read_but_not_written_back_are_not_cut_off(cluster: InProcess) -> None:
    client = await cluster.client(no_bookies_timeout_s=0.2)
    writer = await write(client, 3)
    for name in writer.ensemble[:2]:
        await put(client, writer, name, [3, 4], lac=2)
    undo = [fail_adds(cluster, name) for name in writer.ensemble[1:]]
    with pytest.raises(bkpy.LedgerRecoveryError, match="written back"):
        async with asyncio.timeout(DEADLINE_S):
            await client.recover_ledger(writer.ledger_id)
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    for restore in undo:
        restore()
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 5)


@pytest.mark.scenario(10)
async def test_a_ledger_that_somebody_closes_during_the_recovery_stays_as_they_closed_it(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await write(client, 5)
    catalog = cluster_of(client).catalog
    original = catalog.write

    async def intervene(metadata: Any, version: int) -> PutOutcome:
        if metadata.state is LedgerState.CLOSED:
            await other.recover_ledger(writer.ledger_id)
        return await original(metadata, version)

    catalog.write = intervene  # type: ignore[method-assign]
    reader = await client.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 4
    await check_closed(client, writer.ledger_id, 5)


async def test_a_ledger_that_is_deleted_before_the_mark_is_not_there(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await write(client, 5)
    catalog = cluster_of(client).catalog
    original = catalog.write

    async def intervene(metadata: Any, version: int) -> PutOutcome:
        await other.delete_ledger(writer.ledger_id)
        return await original(metadata, version)

    catalog.write = intervene  # type: ignore[method-assign]
    with pytest.raises(bkpy.NoSuchLedgerError) as missing:
        await client.recover_ledger(writer.ledger_id)
    assert missing.value.ledger_id == writer.ledger_id


async def test_metadata_that_keep_changing_end_a_recovery_that_has_fenced_nobody(cluster: InProcess) -> None:
    client, other = await cluster.client(metadata_conflicts_max=2), await cluster.client()
    writer = await write(client, 5)
    catalog = cluster_of(client).catalog
    original, attempts = catalog.write, 0

    async def intervene(metadata: Any, version: int) -> PutOutcome:
        nonlocal attempts
        attempts += 1
        found, now = await cluster_of(other).catalog.read(writer.ledger_id)
        assert now == version, "each attempt goes by what is there"
        await cluster_of(other).catalog.write(found, now)
        return await original(metadata, version)

    catalog.write = intervene  # type: ignore[method-assign]
    with pytest.raises(bkpy.MetadataConflictError, match="kept changing"):
        await client.recover_ledger(writer.ledger_id)
    assert attempts == 3
    catalog.write = original  # type: ignore[method-assign]
    assert not any(writer.ledger_id in cluster.storage(name).fenced for name in writer.ensemble)
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 5)


@pytest.mark.scenario(11)
async def test_a_fragment_that_the_writer_adds_before_the_mark_is_recovered(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    for i in range(5):
        await writer.append(payload(i))
    catalog = cluster_of(other).catalog
    original = catalog.write
    changed = False

    async def intervene(metadata: Any, version: int) -> PutOutcome:
        nonlocal changed
        if not changed:
            changed = True
            five.kill(writer.ensemble[0])
            await writer.append(payload(5))
        return await original(metadata, version)

    catalog.write = intervene  # type: ignore[method-assign]
    await other.recover_ledger(writer.ledger_id)
    await check_closed(other, writer.ledger_id, 6)
    assert len((await other.ledger_metadata(writer.ledger_id)).fragments) == 2
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.append(b"never")


@pytest.mark.scenario(12)
async def test_the_first_writer_can_not_commit_after_somebody_has_recovered_its_ledger(cluster: InProcess) -> None:
    """Its last entry had reached one bookie, and goes on to another only after the recovery has read that one."""
    client = await cluster.client(explicit_lac_interval_s=0)  # or it may hear of the fence before it sends
    other = await cluster.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(payload(0))
    await other.recover_ledger(writer.ledger_id)
    for name in "abc":
        with pytest.raises(AssertionError):
            await put(client, writer, name, [1], lac=0)
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await writer.append(payload(1))
    assert failure.value.outcome_unknown
    with pytest.raises(bkpy.BookKeeperError):
        await writer.close()
    await check_closed(other, writer.ledger_id, 1)


@pytest.mark.scenario(13)
async def test_a_fresh_last_fragment_that_knows_of_no_entry_does_not_hide_the_ones_before(five: InProcess) -> None:
    client = await five.client()
    writer = await write(client, 5, ensemble_size=2, write_quorum=2, ack_quorum=2)
    metadata, version = await cluster_of(client).catalog.read(writer.ledger_id)
    spare = sorted(set("abcde") - set(writer.ensemble))[:2]
    stored(await cluster_of(client).catalog.write(metadata.new_fragment(5, tuple(spare)), version))
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 5)


async def test_the_length_that_a_writer_published_is_that_of_its_entry_alone(cluster: InProcess) -> None:
    """Later ones were acknowledged, and the last fragment is empty: its bookies heard of an earlier length alone."""
    client, other = await cluster.client(explicit_lac_interval_s=0), await cluster.client()
    writer = await client.create_ledger(ack_quorum=3)
    for i in range(3):
        await writer.append(payload(i))
    writer.pending.lac.publish()
    channels = [pool_of(other).channel(name) for name in writer.ensemble]
    async with asyncio.timeout(DEADLINE_S):
        for channel in channels:  # each has heard of entry 2, with its length
            while await last_published(channel, writer) != 2:
                await asyncio.sleep(0.005)
    for i in range(3, 6):
        await writer.append(payload(i))
    writer.abandon()
    metadata, version = await cluster_of(client).catalog.read(writer.ledger_id)
    turned = (*writer.ensemble[1:], writer.ensemble[0])  # of the same bookies: whichever answer, they have heard
    stored(await cluster_of(client).catalog.write(metadata.new_fragment(6, turned), version))
    await other.recover_ledger(writer.ledger_id)
    await check_closed(other, writer.ledger_id, 6)


async def last_published(channel: BookieChannel, writer: LedgerWriter) -> int:
    """The last add confirmed that the bookie got from the writer without an entry, -1 if none."""
    reply = await channel.call(Op.READ_LAC, m.pack([0, writer.ledger_id]), timeout_s=DEADLINE_S)
    found = [header.last_add_confirmed for header in walk(reply.body) if header.entry_id == EXPLICIT_LAC_ENTRY]
    return max(found, default=-1)


@pytest.mark.parametrize("count", [0, 1, 7])
async def test_a_recovery_with_every_bound_at_one(cluster: InProcess, count: int) -> None:
    client = await cluster.client(explicit_lac_interval_s=0)
    smallest = await cluster.client(
        **SMALLEST, recovery_ranges_at_once=1, recovery_first_entries=1, recovery_range_entries_max=1
    )
    assert settings_of(smallest).metadata_conflicts_max == 1
    writer = await client.create_ledger()
    if count:
        await writer.append(payload(0))
        for name in writer.ensemble[:2]:
            await put(client, writer, name, list(range(1, count)), lac=0)
    writer.abandon()
    async with asyncio.timeout(DEADLINE_S):
        await smallest.recover_ledger(writer.ledger_id)
    await check_closed(smallest, writer.ledger_id, count)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 2)])
async def test_bookies_that_serve_one_request_at_a_time_let_a_recovery_with_many_end(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start(requests_in_flight_max=1)
    client = await cluster.client(explicit_lac_interval_s=0)
    writer = await client.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    for i in range(3):
        await writer.append(payload(i))
    for index, name in enumerate(writer.ensemble):  # none of them is known to be acknowledged
        in_share = [i for i in range(3, 40) if index in write_set(i, sizes[0], sizes[1])]
        await put(client, writer, name, in_share, lac=2)
    writer.abandon()
    for name in "abc":
        await cluster.restart(name)  # its memtable is empty: reads need the disk, and take their time
        cluster.disks[name].stall("read")
        asyncio.get_running_loop().call_later(0.2, cluster.disks[name].unstall)
    many = await cluster.client(recovery_ranges_at_once=4, recovery_first_entries=1, recovery_range_entries_max=1)
    async with asyncio.timeout(DEADLINE_S):
        await many.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 40)
    await cluster.stop()


async def test_a_client_with_every_bound_on_metadata_at_one(five: InProcess) -> None:
    client = await five.client(**SMALLEST)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(payload(0))
    five.kill(writer.ensemble[0])
    async with asyncio.timeout(DEADLINE_S):
        await writer.append(payload(1))
        await writer.close()
    await check_closed(client, writer.ledger_id, 2)
    assert len(client.bookies) == 5
    await client.delete_ledger(writer.ledger_id)


SMALLEST = {
    "metadata_write_attempts_max": 1,
    "metadata_requests_in_flight_max": 1,
    "metadata_conflicts_max": 1,
    "ledger_id_attempts_max": 1,
    "bookie_reads_at_once": 1,
    "recovery_range_bytes_max": 1,
}


@pytest.mark.scenario(14)
@pytest.mark.parametrize(("first_stop", "second_stop"), list(itertools.product(range(4), repeat=2)))
async def test_two_recoveries_at_once_agree(cluster: InProcess, first_stop: int, second_stop: int) -> None:
    """Each is held up before or after its first or second metadata write, until the other has got as far as it can."""
    clients = [await cluster.client(), await cluster.client()]
    writer = await write(clients[0], 3)
    await put(clients[0], writer, writer.ensemble[0], [3], lac=2)
    gates = [asyncio.Event(), asyncio.Event()]
    for client, stop, gate in zip(clients, (first_stop, second_stop), gates, strict=True):
        hold_at(client, stop, gate)
    tasks = [asyncio.create_task(client.recover_ledger(writer.ledger_id)) for client in clients]
    async with asyncio.timeout(DEADLINE_S):
        for gate in gates:
            await asyncio.sleep(0.05)
            gate.set()
        readers = await asyncio.gather(*tasks)
    assert {reader.last_add_confirmed for reader in readers} == {readers[0].last_add_confirmed}
    await check_closed(clients[0], writer.ledger_id, readers[0].last_add_confirmed + 1)


@pytest.mark.scenario(15)
async def test_what_comes_after_the_first_missing_entry_is_not_part_of_the_ledger(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await write(client, 3)
    for name in writer.ensemble[:2]:
        await put(client, writer, name, [3, 5, 6], lac=2)
    await client.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 4)


@pytest.mark.scenario(16)
async def test_recovery_while_the_writer_closes(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    for _ in range(20):
        writer = await client.create_ledger()
        for i in range(3):
            await writer.append(payload(i))
        closed, reader = await asyncio.gather(
            writer.close(), other.recover_ledger(writer.ledger_id), return_exceptions=True
        )
        assert closed is None or isinstance(closed, bkpy.LedgerFencedError)
        assert isinstance(reader, bkpy.LedgerReader)
        assert reader.last_add_confirmed == 2
        await check_closed(other, writer.ledger_id, 3)


SIZES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.thorough
@pytest.mark.scenario(17)
@pytest.mark.parametrize(
    "read_bytes", [3 * 60, *(pytest.param(size, marks=pytest.mark.exhaustive) for size in (1, 13 * 60))]
)
async def test_a_dead_bookie_at_every_size_and_with_windows_of_one_three_and_thirteen_entries(
    five: InProcess, read_bytes: int
) -> None:
    """Whenever the ack quorum allows it the ledger is closed at its end; otherwise it is closed nowhere."""
    client = await five.client(read_bytes=read_bytes, no_bookies_timeout_s=0.2)
    for sizes in SIZES:
        writer = await write(client, 4, ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
        holders = [writer.ensemble[i % sizes[0]] for i in range(4, 20)]
        for entry_id, name in zip(range(4, 20), holders, strict=True):
            await put(client, writer, name, [entry_id], lac=3)
        victim = writer.ensemble[-1]
        for connection in five.connections(victim):
            connection.abort()
        five.refuse(victim)
        try:
            async with asyncio.timeout(DEADLINE_S):
                reader = await client.recover_ledger(writer.ledger_id)
            assert 3 <= reader.last_add_confirmed <= 19
            await check_closed(client, writer.ledger_id, reader.last_add_confirmed + 1)
        except bkpy.LedgerRecoveryError:
            # An entry that only the dead bookie has, or a ledger of which one bookie alone must answer.
            assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
            five.admit(victim)
            async with asyncio.timeout(DEADLINE_S):
                await client.recover_ledger(writer.ledger_id)
            await check_closed(client, writer.ledger_id, 20)
        five.admit(victim)


@pytest.mark.scenario(19)
async def test_after_a_fence_no_bookie_takes_an_add(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    await other.recover_ledger(writer.ledger_id)
    for name in "abc":
        with pytest.raises(AssertionError):
            await put(client, writer, name, [1])


@pytest.mark.scenario(19)
async def test_many_recoveries_and_opens_at_once_end_alike(cluster: InProcess) -> None:
    clients = [await cluster.client() for _ in range(3)]
    writer = await write(clients[0], 20)
    async with asyncio.timeout(DEADLINE_S):
        readers = await asyncio.gather(
            *(client.recover_ledger(writer.ledger_id) for client in clients for _ in range(5)),
            *(client.open_ledger(writer.ledger_id) for client in clients for _ in range(5)),
        )
    assert {reader.last_add_confirmed for reader in readers[:15]} == {19}
    await check_closed(clients[0], writer.ledger_id, 20)


@pytest.mark.scenario(19)
async def test_opening_without_recovery_does_not_fence(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    reader = await other.open_ledger(writer.ledger_id)
    assert not reader.closed
    assert await writer.append(payload(1)) == 1
    await writer.close()
    await check_closed(client, writer.ledger_id, 2)


@pytest.mark.scenario(20)
async def test_a_fence_survives_a_restart_also_where_the_ledger_was_never_seen(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await write(client, 3, ensemble_size=3, write_quorum=1, ack_quorum=1)
    never = await write(client, 0)
    for ledger in (writer, never):
        await other.recover_ledger(ledger.ledger_id)
        for name in ledger.ensemble:
            await five.node(name).stop()
            await five.start_node(name)
            await pool_of(client).channel(name).connect(again=True)
            with pytest.raises(AssertionError):
                await put(client, ledger, name, [3])


@pytest.mark.scenario(20)
async def test_a_hung_bookie_and_a_bad_password_do_not_stop_a_fence(five: InProcess) -> None:
    client, other = await five.client(), await five.client(read_timeout_s=NEVER_S)
    writer = await client.create_ledger(password=b"p")
    await writer.append(payload(0))
    five.hang(writer.ensemble[1])
    with pytest.raises(bkpy.UnauthorizedError):
        await other.recover_ledger(writer.ledger_id, password=b"q")
    async with asyncio.timeout(DEADLINE_S):
        reader = await other.recover_ledger(writer.ledger_id, password=b"p")
    assert reader.last_add_confirmed == 0
    with pytest.raises(bkpy.LedgerFencedError):
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(payload(1))


@pytest.mark.scenario(21)
async def test_a_writer_whose_ledger_was_fenced_and_deleted_can_not_bring_it_back(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    await other.recover_ledger(writer.ledger_id)
    await other.delete_ledger(writer.ledger_id)
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.append(payload(1))
    with pytest.raises(bkpy.BookKeeperError):
        await writer.close()
    with pytest.raises(bkpy.NoSuchLedgerError):
        await other.open_ledger(writer.ledger_id)


async def test_a_swap_in_an_earlier_fragment_is_kept_by_the_closing_write(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await writer.append(payload(0))
    five.kill(writer.ensemble[0])
    await writer.append(payload(1))
    writer.abandon()
    spare = sorted(set("abcde") - {name for f in writer.metadata.fragments for name in f.bookies})[0]
    catalog = cluster_of(client).catalog
    original = catalog.write
    swapped = False

    async def intervene(metadata: Any, version: int) -> PutOutcome:
        nonlocal swapped
        if metadata.state is LedgerState.CLOSED and not swapped:
            swapped = True
            fresh, at = await catalog.read(writer.ledger_id)
            stored(await original(fresh.replace_bookie(0, 0, spare), at))
        return await original(metadata, version)

    catalog.write = intervene  # type: ignore[method-assign]
    await client.recover_ledger(writer.ledger_id)
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.fragments[0].bookies[0] == spare


@pytest.mark.thorough
@pytest.mark.scenario(18)
async def test_bookies_restart_one_after_the_other_during_recovery(tmp_path: Path) -> None:
    five = InProcess(tmp_path)
    await five.start("abcde")
    client = await five.client()
    writer = await write(client, 5)
    await put(client, writer, writer.ensemble[0], list(range(5, 300)), lac=4)
    stop = False

    async def restart() -> None:
        for name in itertools.cycle(writer.ensemble):
            if stop:
                return
            five.kill(name)
            await five.node(name).stop()
            await five.start_node(name)

    restarting = asyncio.create_task(restart())
    async with asyncio.timeout(2 * DEADLINE_S):
        while True:
            try:
                await client.recover_ledger(writer.ledger_id)
                break
            except bkpy.LedgerRecoveryError:
                await asyncio.sleep(0.01)
    stop = True
    await restarting
    # Behind entry 4 nothing was acknowledged. The one bookie with the rest may have been away, and an attempt that
    # failed may have written a part of it back.
    last = (await client.ledger_metadata(writer.ledger_id)).last_entry
    assert last is not None
    assert 4 <= last <= 299
    await check_closed(client, writer.ledger_id, last + 1)
    await five.stop()


@pytest.mark.exhaustive
async def test_ten_thousand_unconfirmed_entries(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(bytes(1000))
    await writer.append_batch([bytes(1000)] * 10_000)
    writer.abandon()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 10_000
    assert reader.length == 10_001 * 1000
    assert sum([len(block) async for block in reader.read_blocks()]) == 10_001


async def test_a_ledger_is_recovered_by_the_client_that_writes_it(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    await client.recover_ledger(writer.ledger_id)
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.append(payload(1))
    await check_closed(client, writer.ledger_id, 1)


# --- helpers ------------------------------------------------------------------------------------------------------


async def record_writes(client: Client) -> list[LedgerState]:
    """The states of all ledger metadata that the client writes from now on."""
    states: list[LedgerState] = []
    catalog = cluster_of(client).catalog
    original = catalog.write

    async def recorded(metadata: Any, version: int) -> PutOutcome:
        states.append(metadata.state)
        return await original(metadata, version)

    catalog.write = recorded  # type: ignore[method-assign]
    return states


def hold_at(client: Client, stop: int, gate: asyncio.Event) -> None:
    """Hold the client up before (0, 2) or after (1, 3) its first or second metadata write until the gate is open."""
    catalog = cluster_of(client).catalog
    original = catalog.write
    count = itertools.count()

    async def held(metadata: Any, version: int) -> PutOutcome:
        turn = next(count)
        if stop == 2 * turn:
            await gate.wait()
        written = await original(metadata, version)
        if stop == 2 * turn + 1:
            await gate.wait()
        return written

    catalog.write = held  # type: ignore[method-assign]


async def test_the_key_in_the_metadata_is_what_fences(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await write(client, 1, password=b"p")
    assert writer.metadata.ledger_key == ledger_key(b"p")
    await client.recover_ledger(writer.ledger_id, password=b"p")
    await eventually(lambda: writer.ledger_id not in keys_of(client))


async def test_what_waits_to_be_written_back_keeps_failed_bookies_a_concern(cluster: InProcess) -> None:
    """One that fails meanwhile is replaced, as it would be while something is on its way to it."""
    client = await cluster.client()
    writer = await write(client, 1)
    write_back = WriteBack(writer.metadata, confirmed=-1, parts=replication_context(client).parts)
    assert write_back.idle
    parts: list[Any] = []
    RecordCodec(writer.ledger_id).encode(parts, [payload(0)], 0, 1, -1, [len(payload(0))])
    await write_back.add(RecoveredEntry(0, memoryview(b"".join(parts)), len(payload(0))))
    assert not write_back.has_pending
    assert not write_back.idle
    pool_of(client).add_key(writer.ledger_id, writer.metadata.ledger_key)
    await write_back.finish()
    assert write_back.idle
    write_back.abandon()
