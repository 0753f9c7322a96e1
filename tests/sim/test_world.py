"""Boots, crashes and power cuts of whole hosts, and that a seed repeats."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bkpy.metadata.store.store import Create, NoNode

from .loop import StuckError
from .world import Host, HostDied, UnhandledError, World

if TYPE_CHECKING:
    from bkpy.metadata.store.store import MetadataStore


async def log_forever(host: Host, acknowledged: list[int], *, synced: bool) -> None:
    """Append numbers to a file, as a process that acknowledges what it has stored."""
    files = host.runtime.files
    files.make_dirs("/data")
    worker = files.worker("log")
    if not files.exists("/data/log"):
        files.open("/data/log", create=True).close()
        files.sync_dir("/data")
    file = files.open("/data/log")

    def store(number: int) -> None:
        file.pwritev([number.to_bytes(4, "big")], number * 4)
        if synced:
            file.fdatasync()

    number = 0
    while True:
        await worker.run(store, number)
        acknowledged.append(number)
        number += 1


def stored(host: Host) -> list[int]:
    data = host.disk.contents("/data/log")
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


@pytest.mark.thorough
@pytest.mark.parametrize("synced", [True, False])
def test_what_survives_a_crash_and_what_survives_a_power_cut(synced: bool) -> None:
    lost_to_power = 0
    for seed in range(20):
        world = World(seed)
        host = world.add_host("h")
        acknowledged: list[int] = []

        async def main(
            world: World = world, host: Host = host, acknowledged: list[int] = acknowledged
        ) -> tuple[bool, bool]:
            host.boot()
            host.start(log_forever(host, acknowledged, synced=synced))
            await asyncio.sleep(0.5)
            host.crash()
            count = len(acknowledged)
            after_crash = stored(host)[:count] == acknowledged
            host.power_cut()
            after_power_cut = host.disk.exists("/data/log") and stored(host)[:count] == acknowledged
            await asyncio.sleep(5)
            assert len(acknowledged) == count > 100
            return after_crash, after_power_cut

        after_crash, after_power_cut = world.run(main())
        assert after_crash
        lost_to_power += not after_power_cut
    assert (lost_to_power == 0) if synced else (lost_to_power > 10)


def test_a_crash_at_an_operation_of_the_disk_kills_the_process_there() -> None:
    world = World(1)
    host = world.add_host("h")
    acknowledged: list[int] = []

    async def main() -> None:
        host.boot()
        host.disk.crash_at(50, operation="fdatasync")
        with pytest.raises(HostDied):
            await host.start(log_forever(host, acknowledged, synced=True))
        assert len(acknowledged) <= 49
        assert not host.up
        host.boot()
        assert stored(host)[: len(acknowledged)] == acknowledged
        await asyncio.sleep(1)
        host.power_cut()
        assert stored(host)[: len(acknowledged)] == acknowledged

    world.run(main())


def test_a_crash_on_the_loop_itself_kills_the_process_too() -> None:
    world = World(1)
    host = world.add_host("h")

    async def starts() -> None:
        host.runtime.files.make_dirs("/data")

    async def main() -> None:
        host.boot()
        host.disk.crash_at(1)
        with pytest.raises(HostDied):
            await host.start(starts())
        host.boot()
        await host.start(starts())
        assert host.disk.exists("/data")

    world.run(main())


def test_each_process_has_its_own_randomness_and_the_same_one_for_a_seed() -> None:
    def draws(seed: int) -> list[float]:
        world = World(seed)
        host = world.add_host("h")
        found = []
        for _ in range(2):
            found.append(host.boot().rng.random())
            host.crash()
        world.loop.close()
        return found

    assert draws(1) == draws(1)
    assert len({*draws(1), *draws(2)}) == 4


def test_a_task_started_from_outside_its_host_is_refused() -> None:
    world = World(1)
    host = world.add_host("h")

    async def main() -> None:
        runtime = host.boot()
        stray = asyncio.sleep(1)
        with pytest.raises(AssertionError, match="outside of its host"):
            runtime.spawn(stray, name="stray")
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await stray  # nobody needs to look after what was refused

    world.run(main())


def test_an_error_that_nobody_handles_fails_the_run() -> None:
    world = World(1)
    host = world.add_host("h")

    async def dies() -> None:
        raise ValueError("nobody looks")

    async def owner() -> None:
        host.runtime.spawn(dies(), name="child")

    async def main() -> None:
        host.boot()
        await host.start(owner())
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="task child died"):
        world.run(main())


def test_a_run_that_does_not_end_is_reported() -> None:
    world = World(1)
    host = world.add_host("h")

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.1)
            host.record("tick")

    async def main() -> None:
        host.boot()
        host.start(tick())
        await world.loop.create_future()

    with pytest.raises(StuckError, match="still running"):
        world.run(main(), limit_s=10)
    assert 98 <= sum(event.what == "tick" for event in world.trace) <= 100


def test_a_dead_process_loses_its_session_after_the_timeout() -> None:
    world = World(1)
    a, b = world.add_host("a"), world.add_host("b")

    async def main() -> None:
        a.boot()
        b.boot()
        session = a.session()
        await a.start(session.create("/here", b"a", ephemeral=True))
        other = b.session()
        a.crash()
        await asyncio.sleep(session.session_timeout_s - 1)
        assert await b.start(other.exists("/here"))
        await asyncio.sleep(2)
        with pytest.raises(NoNode):
            await b.start(other.get("/here"))

    world.run(main())


def test_calls_of_a_session_take_effect_in_order() -> None:
    world = World(3)
    host = world.add_host("h")

    async def main() -> None:
        host.boot()
        session = host.session()
        await host.start(session.create("/n", b""))
        order: list[int] = []
        calls = [host.start(session.put("/n", str(i).encode(), i)) for i in range(20)]
        for i, call in enumerate(calls):
            call.add_done_callback(lambda _, i=i: order.append(i))
        await asyncio.gather(*calls)
        assert await host.start(session.get("/n")) == (b"19", 20)
        assert order == sorted(order)

    world.run(main())


PROGRAM = """
import asyncio, sys
from tests.sim.test_world import noisy_run
print(noisy_run(int(sys.argv[1])))
"""


def noisy_run(seed: int) -> str:
    """A run with traffic, disks, a crash and a power cut; the hash of its trace."""
    world = World(seed)
    rng = world.stream("workload")
    hosts = [world.add_host(name) for name in "abc"]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # of connections whose other end has crashed
            while data := await reader.read(100):
                writer.write(data)

    async def talk(target: Host) -> None:
        try:
            reader, writer = await asyncio.open_connection(target.address, 7)
            writer.write(rng.randbytes(rng.randrange(1, 5000)))
            await reader.read(10)
        except OSError as error:
            world.record("talk", "failed", type(error).__name__)

    async def process(host: Host) -> None:
        await asyncio.start_server(echo, "0.0.0.0", 7)
        host.runtime.spawn(log_forever(host, [], synced=rng.random() < 0.5), name="log")
        while True:
            # Sets of tasks and of strings are what differs between processes when it is allowed to.
            tasks = {asyncio.create_task(talk(other)) for other in hosts}
            done, _ = await asyncio.wait(tasks, timeout=1.0)
            for name in sorted({str(len(done)), host.name, "x"}):
                world.record(host.name, name)
            await asyncio.sleep(rng.random() * 0.1)

    async def main() -> None:
        for host in hosts:
            host.boot()
            host.start(process(host))
        for _ in range(6):
            await asyncio.sleep(rng.random() * 0.2)
            host = rng.choice(hosts)
            host.crash() if rng.random() < 0.5 else host.power_cut()
            await asyncio.sleep(rng.random() * 0.2)
            host.boot()
            host.start(process(host))

    world.run(main())
    assert len(world.trace) > 1000
    return world.trace_hash()


def test_clocks_of_hosts_count_at_their_own_rates() -> None:
    world = World(0)
    host = world.add_host("a")
    host.rate = 2.0

    async def times() -> list[float]:
        loop, clock = asyncio.get_running_loop(), host.runtime.clock
        began = loop.time(), clock.monotonic(), clock.time(), world.loop.now
        await asyncio.sleep(1.0)
        try:
            async with asyncio.timeout(3.0):
                await asyncio.Event().wait()
        except TimeoutError:
            loop.call_at(loop.time() + 1.0, (woken := asyncio.Event()).set)
            await woken.wait()
        ended = loop.time(), clock.monotonic(), clock.time(), world.loop.now
        return [round(after - before, 6) for before, after in zip(began, ended, strict=True)]

    async def main() -> None:
        await asyncio.sleep(7.0)
        host.boot()
        assert await host.start(times()) == [5.0, 5.0, 5.0, 2.5]
        began = world.loop.time()
        await asyncio.sleep(1.0)
        assert world.loop.time() - began == 1.0

    world.run(main())


def test_a_disk_that_others_use_is_no_slower_for_a_host_whose_clock_is_slow() -> None:
    world = World(0)
    host = world.add_host("a")
    host.rate = 0.5

    async def main() -> None:
        await asyncio.sleep(100.0)
        host.boot()
        worker = host.runtime.files.worker("one")
        await worker.run(int)

        async def use() -> None:
            await worker.run(int)

        began = world.loop.now
        await host.start(use())
        assert world.loop.now - began < 1.0

    world.run(main())


def test_a_follower_goes_back_with_the_store() -> None:
    world = World(0)
    far = world.add_host("far")

    async def main() -> None:
        far.boot()
        far.follow(1.0)
        store = far.session()
        await far.start(store.create("/a", b"1"))
        older = world.metadata.copy()
        await far.start(store.put("/a", b"2", 0))
        await far.start(store.create("/b", b""))
        world.metadata.put_back(older)
        assert await far.start(store.get("/a")) == (b"1", 0)
        assert not await far.start(store.exists("/b"))
        assert "b" not in await far.start(store.children("/"))
        await far.start(store.close())

    world.run(main())


def test_a_follower_is_behind_but_not_behind_its_own_writes_nor_a_sync() -> None:
    world = World(0)
    near, far = world.add_host("near"), world.add_host("far")
    seen: list[list[str]] = []

    async def watching(store: MetadataStore) -> None:
        async for _ in store.watch("/a", children=True):
            seen.append(await store.children("/a"))

    async def main() -> None:
        near.boot()
        far.boot()
        leader, store = near.session(), far.session()
        await near.start(leader.create("/a", b"1"))
        far.start(watching(store))
        await asyncio.sleep(0.1)
        far.follow(1.0)
        await near.start(leader.put("/a", b"2", 0))
        await near.start(leader.multi([Create("/a/b", b""), Create("/a/c", b"")]))
        await asyncio.sleep(0.1)
        assert (await far.start(store.get("/a")), await near.start(leader.get("/a"))) == ((b"1", 0), (b"2", 1))
        assert not await far.start(store.exists("/a/b"))
        assert seen[-1] == []
        await far.start(store.create("/d", b""))  # which comes behind the others
        assert await far.start(store.get("/a")) == (b"2", 1)
        await near.start(leader.delete("/a/b"))
        await asyncio.sleep(0.1)
        assert seen[-1] == ["b", "c"]
        await far.start(store.sync("/a"))
        assert not await far.start(store.exists("/a/b"))
        await near.start(leader.create("/a/e", b"", ephemeral=True))
        await asyncio.sleep(0.5)
        assert seen[-1] == ["c"]
        await asyncio.sleep(1.0)
        assert seen[-1] == ["c", "e"]
        await near.start(leader.close())
        far.follow(0.0)
        await asyncio.sleep(0.1)
        assert seen[-1] == ["c"]

    world.run(main())


@pytest.mark.exhaustive
def test_a_seed_repeats_in_every_process() -> None:
    root = Path(__file__).parents[2]
    hashes = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, "7"],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert hashes == [noisy_run(7)] * 2
    assert noisy_run(8) != hashes[0]


def test_the_trace_ends_with_the_run_and_not_with_what_never_ended() -> None:
    world = World(1)
    host = world.add_host("h")

    async def never_ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            host.record("on its way out")

    async def main() -> None:
        host.boot()
        host.start(never_ends())
        await asyncio.sleep(1)
        host.crash()
        world.record("event", "the end")

    world.run(main())
    assert [event.what for event in world.trace][-2:] == ["crash", "the end"]
