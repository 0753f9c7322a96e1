"""Bookies that fail under a writer: who takes their place, what is acknowledged meanwhile, and what is not."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.hooks import cluster_of, failed_bookies, pool_of, unanswered_adds
from tests.in_process import DEADLINE_S, InProcess, contents, stored
from tests.waiting import eventually

import bkpy
from bkpy.client.client import Client, replication_context
from bkpy.client.write.writer import LedgerWriter
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.store.outcome import Changed, NotDone, PutOutcome, Unknown
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


@asynccontextmanager
async def metadata_writes(
    client: Client,
    act: Callable[[LedgerMetadata, Callable[[], Coroutine[Any, Any, PutOutcome]]], Coroutine[Any, Any, PutOutcome]],
) -> Any:
    """While this is entered, `act(metadata, go_on)` stands before every metadata write of the client."""
    catalog = cluster_of(client).catalog
    write = catalog.write

    async def intercepted(metadata: LedgerMetadata, version: int) -> PutOutcome:
        return await act(metadata, lambda: write(metadata, version))

    catalog.write = intercepted  # type: ignore[method-assign]
    try:
        yield
    finally:
        catalog.write = write  # type: ignore[method-assign]


async def check_copies(client: Client, ledger_id: int, expected: list[bytes]) -> None:
    assert await contents(client, ledger_id) == expected
    metadata = await client.ledger_metadata(ledger_id)
    assert metadata.state == "CLOSED"
    assert metadata.last_entry == len(expected) - 1
    assert metadata.length == sum(map(len, expected))


@pytest.mark.scenario(24)
async def test_a_bookie_that_dies_is_replaced_and_nothing_is_lost(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger()
    for i in range(10):
        await writer.append(b"%d" % i)
    first = writer.ensemble
    five.kill(first[1])
    for i in range(10, 20):
        await writer.append(b"%d" % i)
    await eventually(lambda: len(writer.metadata.fragments) == 2)
    assert writer.ensemble[0] == first[0]
    assert writer.ensemble[2] == first[2]
    assert writer.ensemble[1] not in first
    await writer.append(b"20")
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(21)])
    stored = await client.ledger_metadata(writer.ledger_id)
    assert [fragment.bookies for fragment in stored.fragments] == [first, writer.ensemble]


@pytest.mark.thorough
@pytest.mark.scenario(24)
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 3, 3), (4, 2, 2), (5, 3, 2)])
async def test_every_append_is_acknowledged_while_bookie_after_bookie_dies(
    five: InProcess, sizes: tuple[int, int, int]
) -> None:
    """Each one that died comes back as another process on the same disks, so that there are replacements."""
    client = await five.client(no_bookies_timeout_s=DEADLINE_S, quarantine_s=0.01)
    writer = await client.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
    expected: list[bytes] = []
    stop = False

    async def write() -> None:
        while not stop:
            some = [b"%d" % (len(expected) + k) for k in range(7)]
            expected.extend(some)
            await asyncio.gather(*map(writer.append, some))

    async with asyncio.timeout(DEADLINE_S):
        writing = asyncio.create_task(write())
        for turn in range(4):
            before = len(expected)
            victim = writer.ensemble[turn % sizes[0]]
            five.kill(victim)
            await eventually(lambda seen=before: len(expected) > seen + 100 or writing.done())
            node = five.node(victim)
            await node.stop()
            await five.start_node(victim)
        stop = True
        await writing
        await writer.close()
    await check_copies(client, writer.ledger_id, expected)


@pytest.mark.scenario(25)
async def test_nothing_is_acknowledged_while_the_new_ensemble_is_being_stored(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    go_on = asyncio.Event()
    arrived = asyncio.Event()

    async def hold(metadata: LedgerMetadata, write: Callable[[], Coroutine[Any, Any, PutOutcome]]) -> PutOutcome:
        arrived.set()
        await go_on.wait()
        return await write()

    async with metadata_writes(client, hold):
        five.kill(writer.ensemble[0])
        futures = [writer.append_nowait(b"%d" % i) for i in range(1, 50)]
        async with asyncio.timeout(DEADLINE_S):
            await arrived.wait()
        futures += [writer.append_nowait(b"%d" % i) for i in range(50, 100)]
        confirmed = writer.last_add_confirmed  # those that were on two bookies before the change began
        await asyncio.sleep(0.2)
        assert writer.last_add_confirmed == confirmed < 50
        assert not any(future.done() for future in futures[confirmed:])
        go_on.set()
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*futures) == list(range(1, 100))
    await writer.close()
    stored = await client.ledger_metadata(writer.ledger_id)
    assert stored.fragments[-1].first_entry == confirmed + 1
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(100)])


@pytest.mark.scenario(25)
async def test_answers_that_come_during_a_change_count_when_it_is_stored(five: InProcess) -> None:
    """Of a striped ledger, batches whose bookies stay the same complete without being sent again."""
    client = await five.client()
    writer = await client.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2)
    victim = writer.ensemble[0]  # holds entries 0 and 3 of every four, entry 1 and 2 are elsewhere
    sent: list[tuple[str, int]] = []
    resend = replication_context(client).parts.dispatcher.resend

    def recording(writer: Any, bookie_id: str, batches: Any, flags: int) -> None:
        batches = list(batches)
        sent.extend((bookie_id, batch.first_id) for batch in batches)
        resend(writer, bookie_id, batches, flags)

    replication_context(client).parts.dispatcher.resend = recording  # type: ignore[method-assign]
    go_on = asyncio.Event()

    async def hold(metadata: LedgerMetadata, write: Callable[[], Coroutine[Any, Any, PutOutcome]]) -> PutOutcome:
        await go_on.wait()
        return await write()

    async with metadata_writes(client, hold):
        five.kill(victim)
        futures = [writer.append_nowait(b"%d" % i) for i in range(12)]
        await eventually(lambda: writer.pending.replication.acks.frozen)
        await asyncio.sleep(0.1)
        assert not any(future.done() for future in futures)
        go_on.set()
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*futures) == list(range(12))
    assert {bookie_id for bookie_id, _ in sent} == {writer.ensemble[0]}
    assert {first % 4 for _, first in sent} == {0, 3}
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(12)])


@pytest.mark.scenario(24)
async def test_a_second_failure_joins_the_change_that_is_under_way(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    first = writer.ensemble
    second = asyncio.Event()

    async def hold(metadata: LedgerMetadata, write: Callable[[], Coroutine[Any, Any, PutOutcome]]) -> PutOutcome:
        if not second.is_set():
            five.kill(first[1])
            await eventually(lambda: first[1] in failed_bookies(writer))
            second.set()
        return await write()

    five.hang(first[1])
    async with metadata_writes(client, hold):
        futures = [writer.append_nowait(b"%d" % i) for i in range(1, 30)]
        await asyncio.sleep(0)  # they are on their way
        five.kill(first[0])
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*futures) == list(range(1, 30))
    assert set(first[:2]).isdisjoint(writer.ensemble)
    stored = await client.ledger_metadata(writer.ledger_id)
    # The second change began where the first one had: it took that one's place.
    assert [fragment.first_entry for fragment in stored.fragments] == [0, 1]
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(30)])


async def test_the_first_fragment_is_replaced_if_nothing_of_it_was_acknowledged(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    five.kill(writer.ensemble[2])
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"0") == 0
    assert [fragment.first_entry for fragment in writer.metadata.fragments] == [0]
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"0"])


@pytest.mark.scenario(25)
async def test_a_failure_behind_the_ack_quorum_is_mended_as_well(five: InProcess) -> None:
    """With no append pending, the next one finds out; the entries from then on have all their copies."""
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    victim = writer.ensemble[2]
    five.kill(victim)
    await writer.append(b"1")
    await eventually(lambda: victim not in writer.ensemble)
    assert await writer.append(b"2") == 2
    await writer.close()


@pytest.mark.scenario(26)
async def test_without_other_bookies_writing_goes_on_as_long_as_the_ack_quorum_lives(cluster: InProcess) -> None:
    client = await cluster.client(no_bookies_timeout_s=0.2)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    first = writer.ensemble
    cluster.kill(first[0])
    for i in range(1, 20):
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"%d" % i)
    assert writer.ensemble == first
    cluster.kill(first[1])
    with pytest.raises(bkpy.BookieUnavailableError, match="no others") as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"20")
    assert failure.value.outcome_unknown
    assert failure.value.ledger_id == writer.ledger_id
    await writer.close()
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry) == ("CLOSED", 19)
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(20)]


@pytest.mark.scenario(26)
async def test_bookies_that_come_back_in_time_save_the_writer(cluster: InProcess) -> None:
    client = await cluster.client(no_bookies_timeout_s=DEADLINE_S)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    for name in "ab":
        cluster.kill(name)
    pending = writer.append_nowait(b"1")
    await eventually(lambda: set(failed_bookies(writer)) == {"a", "b"})
    assert not pending.done()
    for name in "ab":
        await cluster.node(name).stop()
        await cluster.start_node(name)
    async with asyncio.timeout(DEADLINE_S):
        assert await pending == 1
        assert await writer.append(b"2") == 2
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"0", b"1", b"2"])


@pytest.mark.scenario(26)
async def test_a_bookie_that_joins_later_takes_the_place_of_the_dead_one(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    victim = writer.ensemble[1]
    cluster.kill(victim)
    await writer.append(b"1")
    await cluster.start_node("d")
    await eventually(lambda: "d" in writer.ensemble)
    assert victim not in writer.ensemble
    await writer.append(b"2")
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"0", b"1", b"2"])


async def other_writes(client: Client, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
    metadata, version = await cluster_of(client).catalog.read(ledger_id)
    stored(await cluster_of(client).catalog.write(change(metadata), version))


@pytest.mark.scenario(27)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda metadata: metadata.in_recovery(), bkpy.LedgerFencedError),
        (lambda metadata: metadata.closed(0, 1), bkpy.LedgerClosedError),
    ],
)
async def test_a_ledger_that_somebody_took_over_during_the_change_fails_its_writer(
    five: InProcess, change: Callable[[LedgerMetadata], LedgerMetadata], error: type[bkpy.BookKeeperError]
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    await other_writes(other, writer.ledger_id, change)
    five.kill(writer.ensemble[0])
    with pytest.raises(error) as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"1")
    assert failure.value.outcome_unknown
    with pytest.raises(error):
        await writer.append(b"2")


@pytest.mark.scenario(27)
async def test_a_change_that_somebody_else_has_made_is_adopted(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    spare = sorted(set("abcde") - set(first))[0]
    await other_writes(other, writer.ledger_id, lambda metadata: metadata.new_fragment(1, (spare, *first[1:])))
    five.kill(first[0])
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
    assert writer.ensemble == (spare, *first[1:])
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"0", b"1"])


@pytest.mark.scenario(27)
async def test_a_copy_of_an_earlier_fragment_that_was_moved_meanwhile_stays_moved(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await writer.append(b"0")
    five.kill(writer.ensemble[0])
    await writer.append(b"1")
    fragments = writer.metadata.fragments
    assert len(fragments) == 2
    spare = sorted(set("abcde") - set(fragments[0].bookies) - set(fragments[1].bookies))[0]
    await other_writes(other, writer.ledger_id, lambda metadata: metadata.replace_bookie(0, 0, spare))
    five.kill(writer.ensemble[0])
    async with asyncio.timeout(DEADLINE_S):
        await writer.append(b"2")
    assert writer.metadata.fragments[0].bookies[0] == spare
    assert len(writer.metadata.fragments) == 3
    await writer.close()


@pytest.mark.scenario(25)
@pytest.mark.scenario(27)
@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (Changed(), bkpy.LedgerFencedError),
        (RuntimeError("a defect"), bkpy.BookKeeperError),
        (asyncio.CancelledError(), bkpy.ClientClosedError),
    ],
    ids=["recovery", "defect", "abandon"],
)
async def test_what_was_counted_during_a_change_is_not_acknowledged_if_the_change_ends_in_an_error(
    five: InProcess, ending: BaseException | Changed, error: type[bkpy.BookKeeperError]
) -> None:
    """It counts a bookie that the metadata may name no more: a recovery need not ask it."""
    client, other = await five.client(add_timeout_s=2 * DEADLINE_S), await five.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    slow, replaced, hung = writer.ensemble
    channels = [pool_of(client).channel(name) for name in writer.ensemble]
    await eventually(lambda: not any(unanswered_adds(channel) for channel in channels))
    five.hang(slow)
    five.hang(hung)
    pending = writer.append_nowait(b"1")
    await eventually(
        lambda: bool(unanswered_adds(channels[0])) and not unanswered_adds(channels[1])
    )  # one bookie has it

    async def end(metadata: LedgerMetadata, write: Callable[[], Coroutine[Any, Any, PutOutcome]]) -> PutOutcome:
        await other_writes(other, writer.ledger_id, lambda metadata: metadata.in_recovery())
        for connection in five.connections(slow):
            connection.resume("hung")
        await eventually(
            lambda: writer.pending.replication.acks.above()[0].done
        )  # a second one, but the first is being replaced
        if isinstance(ending, asyncio.CancelledError):
            writer.abandon()
        if isinstance(ending, BaseException):
            raise ending
        return ending

    async with metadata_writes(client, end):
        five.kill(replaced)
        writer.append_nowait(b"2")  # which finds out
        with pytest.raises(error) as failure:
            async with asyncio.timeout(DEADLINE_S):
                await pending
    assert failure.value.outcome_unknown
    assert writer.last_add_confirmed == 0
    await eventually(lambda: not writer.pending.replication.changing)
    assert writer.last_add_confirmed == 0


async def test_a_change_whose_outcome_is_unknown_is_found_out(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    lost = 0

    async def lose(metadata: LedgerMetadata, write: Callable[[], Coroutine[Any, Any, PutOutcome]]) -> PutOutcome:
        nonlocal lost
        version = await write()
        if lost < 2:
            lost += 1
            return Unknown(MetadataUnavailableError("the reply was lost"))
        return version

    async with metadata_writes(client, lose):
        five.kill(writer.ensemble[0])
        async with asyncio.timeout(DEADLINE_S):
            assert await writer.append(b"1") == 1
    assert lost >= 1
    await writer.close()
    assert len((await client.ledger_metadata(writer.ledger_id)).fragments) == 2
    await check_copies(client, writer.ledger_id, [b"0", b"1"])


@pytest.mark.scenario(28)
async def test_a_delayed_change_waits_until_the_ack_quorum_is_in_danger(five: InProcess) -> None:
    client = await five.client(delay_ensemble_change=True)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    first = writer.ensemble
    five.kill(first[0])
    for i in range(1, 20):
        await writer.append(b"%d" % i)
    assert writer.ensemble == first
    assert first[0] in failed_bookies(writer)
    five.kill(first[1])
    async with asyncio.timeout(DEADLINE_S):
        await writer.append(b"20")
    assert set(first[:2]).isdisjoint(writer.ensemble)
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(21)])


@pytest.mark.scenario(29)
async def test_without_changes_the_same_bookie_is_sent_to_again(five: InProcess) -> None:
    client = await five.client(disable_ensemble_change=True)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    five.kill(first[0])
    pending = [writer.append_nowait(b"%d" % i) for i in range(1, 30)]
    await eventually(lambda: first[0] in failed_bookies(writer))
    await asyncio.sleep(0.1)
    assert not any(future.done() for future in pending)
    await five.node(first[0]).stop()
    await five.start_node(first[0])
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*pending) == list(range(1, 30))
    assert writer.metadata.fragments == (bkpy.LedgerMetadata.decode(0, writer.metadata.encode()).fragments[0],)
    assert writer.ensemble == first
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(30)])


@pytest.mark.scenario(30)
async def test_too_many_changes_in_a_time_end_the_writer(five: InProcess) -> None:
    client = await five.client(ensemble_changes_max=1)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    five.kill(writer.ensemble[0])
    await writer.append(b"1")
    five.kill(writer.ensemble[1])
    with pytest.raises(bkpy.BookieUnavailableError, match="keep failing") as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"2")
    assert failure.value.outcome_unknown
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"0", b"1"])


@pytest.mark.scenario(31)
async def test_an_ack_quorum_that_never_answers_is_a_timeout(five: InProcess) -> None:
    client = await five.client(add_quorum_timeout_s=0.5)
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    for name in writer.ensemble[:2]:
        five.hang(name)
    with pytest.raises(bkpy.QuorumTimeoutError) as failure:
        async with asyncio.timeout(DEADLINE_S):
            await writer.append(b"1")
    assert failure.value.outcome_unknown
    assert isinstance(failure.value, TimeoutError)
    await writer.close()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 0


async def test_a_bookie_that_hangs_is_replaced(five: InProcess) -> None:
    client = await five.client(add_timeout_s=0.5)
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    victim = writer.ensemble[1]
    five.hang(victim)
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*(writer.append(b"%d" % i) for i in range(1, 20))) == list(range(1, 20))
    assert victim not in writer.ensemble
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(20)])


async def test_without_the_metadata_store_the_bookies_that_are_left_have_to_do(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(ack_quorum=2)
    await writer.append(b"0")
    first = writer.ensemble

    async def refuse(metadata: LedgerMetadata, write: Callable[[], Coroutine[Any, Any, PutOutcome]]) -> PutOutcome:
        return NotDone(MetadataUnavailableError("no connection"))

    async with metadata_writes(client, refuse):
        five.kill(first[0])
        for i in range(1, 50):
            async with asyncio.timeout(DEADLINE_S):
                await writer.append(b"%d" % i)
        assert writer.ensemble == first
    await eventually(lambda: first[0] not in writer.ensemble)  # the store is back
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(50)])


@pytest.mark.scenario(34)
async def test_closing_during_a_change_ends_every_append(five: InProcess) -> None:
    client = await five.client()
    for _ in range(10):
        writer = await client.create_ledger(ack_quorum=2)
        await writer.append(b"0")
        futures = [writer.append_nowait(b"%d" % i) for i in range(1, 40)]
        victim = writer.ensemble[0]
        for connection in five.connections(victim):
            connection.abort()
        async with asyncio.timeout(DEADLINE_S):
            await writer.close()
        assert [await future for future in futures] == list(range(1, 40))
        with pytest.raises(bkpy.LedgerClosedError):
            await writer.append(b"late")
        await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(40)])


async def test_a_writer_closes_though_a_bookie_fails_in_the_same_turn(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    writer.pending.replication.bookie_failed(
        writer.ensemble[0], bkpy.BookieUnavailableError("the connection was lost"), 0
    )
    async with asyncio.timeout(DEADLINE_S):
        await writer.close()
    await check_copies(client, writer.ledger_id, [b"0"])


@pytest.mark.thorough
async def test_a_thousand_ledgers_lose_the_same_bookie(five: InProcess) -> None:
    """In frames that many ledgers share, each ledger changes its own ensemble."""
    client = await five.client()
    writers: list[LedgerWriter] = [await client.create_ledger(ack_quorum=2) for _ in range(300)]

    async def write(writer: LedgerWriter) -> None:
        for i in range(20):
            await writer.append(b"%d" % i)

    async with asyncio.timeout(2 * DEADLINE_S):
        writing = asyncio.gather(*map(write, writers))
        await eventually(lambda: writers[0].last_add_confirmed >= 3)
        five.kill("a")
        await writing
        await asyncio.gather(*(writer.append(b"20") for writer in writers))
        for writer in writers:
            await eventually(lambda w=writer: "a" not in w.ensemble)
        await asyncio.gather(*(writer.close() for writer in writers))
    for writer in writers[::10]:
        await check_copies(client, writer.ledger_id, [b"%d" % i for i in range(21)])


async def test_a_writer_whose_close_was_cancelled_replaces_nobody_when_all_has_ended(five: InProcess) -> None:
    client = await five.client(write_window_entries=1, add_timeout_s=0.3)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(b"0")
    late = writer.ensemble[2]
    five.hang(late)
    appends = [asyncio.ensure_future(writer.append(payload)) for payload in (b"1", b"2")]  # the second waits for room
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(writer.close())
    await asyncio.sleep(0)
    closing.cancel()
    assert await asyncio.gather(*appends) == [1, 2]
    await eventually(lambda: late in failed_bookies(writer) and not writer.pending.replication.changing)
    assert len(writer.metadata.fragments) == 1
    await writer.close()
    await check_copies(client, writer.ledger_id, [b"0", b"1", b"2"])
