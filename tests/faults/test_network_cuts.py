"""Whatever the network does between a client and one bookie, writing and reading go on and no promise is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import pytest

import bkpy

from .clusters import ProxiedNodes
from .load import Load
from .oracle import check, check_replicas
from .proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0
ADD_TIMEOUT_S = 1.0
LASTS_S = 1.5  # a fault: long enough for the client to give the bookie up
PAUSE_S = 1.0  # of each of the writer's lanes meanwhile, unless it is to write as much as it can


async def slow(proxy: Proxy) -> None:
    for flow in proxy.flows:
        flow.delay(0.02, jitter_s=0.05)


async def requests_stop(proxy: Proxy) -> None:
    proxy.requests.stop()


async def replies_stop(proxy: Proxy) -> None:
    proxy.replies.stop()


async def requests_vanish(proxy: Proxy) -> None:
    proxy.requests.drop()


async def replies_vanish(proxy: Proxy) -> None:
    proxy.replies.drop()


async def cut(proxy: Proxy) -> None:
    proxy.cut()


async def half_open(proxy: Proxy) -> None:
    proxy.abandon()


async def half_open_and_silent(proxy: Proxy) -> None:
    proxy.silence()
    proxy.abandon()


async def reset(proxy: Proxy) -> None:
    proxy.reset()


async def reset_in_the_middle_of_a_request(proxy: Proxy) -> None:
    proxy.requests.cut_after(1001)


async def reset_in_the_middle_of_a_reply(proxy: Proxy) -> None:
    proxy.replies.cut_after(1)


async def reset_and_refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.reset()


async def reset_and_silent(proxy: Proxy) -> None:
    proxy.silence()
    proxy.reset()


async def reset_again_and_again(proxy: Proxy) -> None:
    for _ in range(5):
        proxy.reset()
        await asyncio.sleep(0.1)


Fault = Callable[[Proxy], Awaitable[None]]
FAULTS: list[Fault] = [
    slow, requests_stop, replies_stop, requests_vanish, replies_vanish, cut, half_open, half_open_and_silent, reset,
    reset_in_the_middle_of_a_request, reset_in_the_middle_of_a_reply, reset_and_refuse, reset_and_silent,
    reset_again_and_again,
]  # fmt: skip
# Of faults that are alike one befalls a writer in every run, and each of them each kind of writer in the full one.
OF_EACH_KIND = (replies_stop, requests_vanish, half_open, reset_in_the_middle_of_a_reply)
OF_STRIPED = (cut, reset_in_the_middle_of_a_request)
OF_OTHERS = (requests_stop, replies_vanish, reset, reset_and_refuse)


def each_fault(always: Sequence[Fault]) -> pytest.MarkDecorator:
    """All faults in the full run, and these in every run."""
    return pytest.mark.parametrize(
        "fault",
        [pytest.param(fault, marks=() if fault in always else pytest.mark.exhaustive) for fault in FAULTS],
        ids=lambda fault: fault.__name__,
    )


def each_fault_of_a_writer(always: Sequence[Fault], further: Sequence[Fault]) -> pytest.MarkDecorator:
    """All faults under full load and `further` under little in the full run; `always` under little in every run."""
    return pytest.mark.parametrize(
        ("fault", "pause_s"),
        [
            *(pytest.param(fault, 0.0, id=fault.__name__, marks=pytest.mark.exhaustive) for fault in FAULTS),
            *(
                pytest.param(fault, PAUSE_S, id=f"{fault.__name__}, little load", marks=marks)
                for faults, marks in ((always, ()), (further, pytest.mark.exhaustive))
                for fault in faults
            ),
        ],
    )


@each_fault_of_a_writer(OF_EACH_KIND[::2], OF_EACH_KIND[1::2])
async def test_writing_goes_on_without_one_bookie_and_nothing_is_lost(
    tmp_path: Path, fault: Fault, pause_s: float
) -> None:
    await write_on(tmp_path, fault, (3, 3, 2), pause_s)


@each_fault_of_a_writer(OF_STRIPED[:1], OF_STRIPED[1:])
async def test_writing_a_striped_ledger_goes_on_without_one_bookie(
    tmp_path: Path, fault: Fault, pause_s: float
) -> None:
    await write_on(tmp_path, fault, (4, 3, 2), pause_s)


async def write_on(directory: Path, fault: Fault, sizes: tuple[int, int, int], pause_s: float) -> None:
    """Write while the fault befalls a bookie of the ledger, and after it, and demand that every promise was kept.

    `pause_s`: of each lane of the load while the fault lasts.
    """
    async with ProxiedNodes(directory, bookies=5) as cluster:
        client = await cluster.client(add_timeout_s=ADD_TIMEOUT_S, connect_timeout_s=1.0)
        writer = await client.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
        async with Load(writer) as load:
            following = asyncio.create_task(load.follow(await client.open_ledger(writer.ledger_id)))
            await load.more(300)
            load.pause_s = pause_s  # from the next calls on: those under way are as many as there can be
            await fault(cluster.proxies[writer.metadata.fragments[-1].bookies[0]])
            await asyncio.sleep(LASTS_S)
            load.pause_s = 0.0
            await load.more(300)
            await cluster.heal()
            await load.more(300)
        await writer.close()
        async with asyncio.timeout(DEADLINE_S):
            await following
        fresh = await cluster.client(connect_timeout_s=DEADLINE_S)  # it is to judge, however busy the machine is
        assert (await check(fresh, load.promises)).last_entry + 1 == load.acknowledged
        await check_replicas(fresh, writer.ledger_id)


@pytest.mark.scenario(42)
@each_fault(OF_EACH_KIND + OF_STRIPED)
async def test_reading_goes_on_without_one_bookie(tmp_path: Path, fault: Fault) -> None:
    await read_on(tmp_path, fault, (3, 3, 2))


async def read_on(directory: Path, fault: Fault, sizes: tuple[int, int, int]) -> None:
    """Let the fault befall a bookie in the middle of a scan of many ranges, and scan once more."""
    async with ProxiedNodes(directory) as cluster:
        writing = await cluster.client()
        writer = await writing.create_ledger(ensemble_size=sizes[0], write_quorum=sizes[1], ack_quorum=sizes[2])
        payloads = [b"%d " % i * 100 for i in range(2000)]
        async with writer:
            await writer.append_batch(payloads)
        client = await cluster.client(read_timeout_s=3.0, connect_timeout_s=1.0, read_bytes=20_000)
        async with asyncio.timeout(DEADLINE_S), await client.open_ledger(writer.ledger_id) as reader:
            found = []
            async for entry in reader.read():
                if len(found) == 500:
                    await fault(cluster.proxies["a"])
                found.append(entry.data)
            assert found == payloads
            assert [entry.data async for entry in reader.read()] == payloads


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))])
async def test_delays_of_all_bookies_keep_the_order_of_everything(tmp_path: Path, seed: int) -> None:
    async with ProxiedNodes(tmp_path, seed=seed) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(write_quorum=2, password=b"pw", digest="hmac-sha256")
        for proxy in cluster.proxies.values():
            await slow(proxy)
        async with Load(writer, seed=seed) as load:
            reader = await client.open_ledger(writer.ledger_id, password=b"pw")
            following = asyncio.create_task(load.follow(reader))
            await load.more(1500)
        await writer.close()
        async with asyncio.timeout(DEADLINE_S):
            await following
        await check(await cluster.client(), load.promises, b"pw")


async def test_without_any_bookie_the_writer_fails_and_its_ledger_ends_behind_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client(add_timeout_s=1.0, connect_timeout_s=1.0)
        writer = await client.create_ledger()
        async with Load(writer) as load:
            await load.more(300)
            for proxy in cluster.proxies.values():
                proxy.cut()
            error = await load.fails()
        assert error.retriable
        assert load.promises.unknown, "what was in flight may have been written"
        await cluster.heal()
        async with asyncio.timeout(DEADLINE_S):
            await writer.close()
        contents = await check(await cluster.client(), load.promises)
        assert contents.last_entry == writer.last_add_confirmed


async def test_a_reader_without_any_bookie_says_so_and_can_be_used_again(tmp_path: Path) -> None:
    async with ProxiedNodes(tmp_path) as cluster:
        client = await cluster.client(read_timeout_s=1.0, connect_timeout_s=1.0)
        async with await client.create_ledger() as writer:
            await writer.append_batch([b"%d" % i for i in range(100)])
        reader = await client.open_ledger(writer.ledger_id)
        for proxy in cluster.proxies.values():
            await reset_and_refuse(proxy)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(bkpy.BookieUnavailableError, match="entry 0") as caught:
                [entry async for entry in reader.read()]
        assert all(f"{bookie_id}: " in str(caught.value) for bookie_id in cluster.proxies)
        await cluster.heal()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    assert [entry.data async for entry in reader.read()] == [b"%d" % i for i in range(100)]
                    break
                except bkpy.BookieUnavailableError:
                    continue  # until the client has connected again
